"""This node leads the region's logs: it serves the followers, moves HW, and has the in-sync set changed.

INV-RLD1 a follower is served under the leader epoch that this node leads, if it is registered, and under no other; whoever waited while
         that ended is refused. A connection is of one term: where a log was cut, and the term began anew under the same leader epoch
         (INV-RTM4), followers connect again
INV-RLD2 who reports is said by the connection (INV-PSS2), and a connection's end is told at once
INV-RLD3 a claim of a newer leader epoch is refused, and deposes nobody: that is the metadata's to say
INV-RLD4 a proposal goes out once; one of which nobody knows is told so, and never as refused
INV-RLD6 where the lineage changes, and a log that is led holds what it voids, nobody is served until that is cut; and nobody ever who
         was not cut by the same lineage (INV-LSH4)
         1. The metadata have that this region takes over. 2. A follower cuts its logs at once. 3. The leader waits for the other regions
         before it cuts its own. 4. The follower would copy, and show HW of, what is void, and part below HW when the leader cuts.
INV-RLD8 a data leader asks to drop nobody whom it is told to keep, and takes others in beside that one (`LeadingParts.kept`)
INV-RLD7 what a connection brought that has ended since is refused
INV-RLD5 whoever waits until all is committed waits on where the term begins anew, for as long as the leader epoch goes on

In a region of one node nothing of this runs. Not here: what counts (`replication.leading`), what is sent (`replica_sending`), who elects.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster_commands import ChangeGroupInSync, ChangeInSync
from region_broker.controller.cluster_image import MAIN_GROUP, GroupNumber, Leadership
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX
from region_broker.log.failures import LogError, NotLeader
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.min_in_sync import Wishes
from region_broker.region.cluster.replica_logs import LogSet, drops_of, history_of
from region_broker.region.cluster.replica_messages import (
    CONNECTION_ENDED,
    LEADS_ANEW,
    NOT_LEADING,
    OTHER_LEADER_EPOCH,
    OTHER_LINEAGE,
    STARTS_MAX,
    UNKNOWN_FOLLOWER,
    AskedLog,
    CheckedReplicaLogs,
    CheckReplicaLogs,
    DurableReport,
    FoundLog,
    ReplicaFetch,
)
from region_broker.region.cluster.replica_sending import FetchSession, Gates, always
from region_broker.region.cluster.replica_term import LeaderTerm, TermParts
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import Handlers, NodeSession, Reply
from region_broker.replication.effects import ProposeInSync
from region_broker.replication.events import ProposalEnded, Ticked
from region_broker.replication.facts import LATEST
from region_broker.replication.leading import LeadingSettings
from region_broker.replication.pacing import Allowance, CatchUpPace, CatchUpRates
from region_broker.wire.cooperative_yield import CooperativeYield

TICK_MS: Final = 100
_NOBODY: Final[frozenset[Member]] = frozenset()
MIN_IN_SYNC: Final = "min.insync.replicas"


InSyncChange: TypeAlias = ChangeInSync | ChangeGroupInSync


def _none() -> int:
    return 0


def _acts_not() -> bool:
    return False


def _owes_nothing(_partition: Partition) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadingParts:
    """What leading needs of the node.

    `propose` has the metadata change the in-sync set, or raises CommandRefused, MetadataUnwritable (nobody knows); it asks once.
    `image`: the metadata as they are known here. `min_in_sync`: for topics that do not set it. `partitions`: those of `group`.
    """

    me: Member
    partitions: LogSet
    clock: Clock
    image: Callable[[], MetadataImage]
    propose: Callable[[InSyncChange], Awaitable[None]]
    group: GroupNumber = MAIN_GROUP
    min_in_sync: Callable[[], int] = lambda: 1
    lineage: Callable[[], int] = _none
    """A number that two nodes share whose metadata have the same lineage."""
    owes_cut: Callable[[Partition], bool] = _owes_nothing
    """Whether a log holds what that lineage voids."""
    acts: Callable[[], bool] = _acts_not
    """Whether the region takes writes here: followers serve readers only then (INV-RRD1)."""
    takes_writes: Callable[[], bool] = always
    """Whether the gate is open here: leaders of data groups are told (INV-RGR11)."""
    awaited: Callable[[], Member | None] = lambda: None
    """Whose lost connection is awaited for a while by who begins to lead now (INV-RPL13)."""
    kept: Callable[[], frozenset[Member]] = lambda: _NOBODY
    """Who is not to leave the in-sync set now, whatever is known of it (INV-RLD8)."""
    settings: LeadingSettings = field(default_factory=LeadingSettings)
    rates: CatchUpRates = field(default_factory=CatchUpRates)
    sent: Allowance = field(default_factory=Allowance)
    """What this node has sent to followers that are not in sync; shared by all of its groups (INV-RPA5)."""
    bound: WeakKeyDictionary[NodeSession, LeaderTerm] = field(default_factory=WeakKeyDictionary)
    """Which term a connection is of (INV-RLD1); shared by all groups that one door serves."""


class ReplicaLeading:
    """`serve_on` once; `begin`, `end`, and again; `run` owns its tasks."""

    def __init__(self, parts: LeadingParts) -> None:
        """Lead nothing yet."""
        self._parts = parts
        self._term: LeaderTerm | None = None
        self._begins_anew = False
        """Whether the term was ended by a cut: whoever needs it begins the next one, at the latest in the next turn of the loop."""
        self._lineage = 0
        self._uncut: list[Partition] = []
        self._wishes: Wishes | None = None
        """Of the last image that a term has taken in; a log that was opened since has looked at a later one."""
        self._settles = asyncio.Event()
        """Set when a term begins, or the last one is over."""
        self._proposals: deque[tuple[LeaderTerm, ProposeInSync]] = deque()
        self._asked = asyncio.Event()
        self._leads = asyncio.Event()

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer followers; once, before the peer port is bound."""
        handlers.register(CheckReplicaLogs, self.check)
        handlers.register(ReplicaFetch, self.fetch)
        handlers.register_notice(DurableReport, self.reported)

    # -- the role --------------------------------------------------------------------------------

    def begin(self, leadership: Leadership) -> None:
        """Lead all logs of the table under a leader epoch in which this process leads, and whose writes may begin now.

        The table's logs take HW and low watermark from this from now on (`Partition.commit_up_to`, `Commits.agree_on_start`). Again in
        one leader epoch where the region's role has changed: what the term before had proposed counts on (INV-RPL10).
        """
        former = self._term
        self.end()
        self._lineage = self._parts.lineage()
        if former is not None and former.leader_epoch == leadership.leader_epoch:
            self._lead(former.anew(leadership))
            return
        term_parts = TermParts(
            me=self._parts.me,
            clock=self._parts.clock,
            settings=replace(
                self._parts.settings,
                awaited=self._parts.awaited(),
                min_in_sync=self._parts.min_in_sync(),
            ),
            min_in_sync_of=self._min_in_sync_of,
            propose=self._on_proposal,
            was_cut=self._was_cut,
        )
        self._lead(LeaderTerm(term_parts, leadership))

    def _lead(self, term: LeaderTerm) -> None:
        self._term = term
        for partition in self._parts.partitions:
            partition.trimming.leader_keeps_from = None  # there is no other one (INV-RFN8)
        term.reconcile(self._parts.partitions)
        self.image_changed(self._parts.image())
        self._leads.set()
        self._settles.set()

    def end(self) -> None:
        """Lead no more: no HW moves. Who waits for one is told by whoever changes the role."""
        term, self._term = self._term, None
        self._begins_anew = False
        self._uncut.clear()
        self._leads.clear()
        self._settles.set()
        if term is not None:
            term.end()

    def _look_for_cuts(self) -> None:
        """End the term where the lineage has changed and something is void by it, until that is cut (INV-RLD6)."""
        term, lineage = self._term, self._parts.lineage()
        if term is None or lineage == self._lineage:
            return
        self._lineage = lineage
        self._uncut = [each for each in self._parts.partitions if self._parts.owes_cut(each)]
        if self._uncut and not term.core.is_deposed:
            term.end()
            self._begins_anew = True

    def _owes_cuts(self) -> bool:
        while self._uncut and not self._parts.owes_cut(self._uncut[-1]):
            self._uncut.pop()
        return bool(self._uncut)

    def _was_cut(self, term: LeaderTerm) -> None:
        """Begin anew once for all cuts of this turn: nothing is served, and no HW moves, in between (INV-RTM4)."""
        if term is self._term and not term.core.is_deposed:
            self._begins_anew = True
            asyncio.get_running_loop().call_soon(self._present)

    def _row(self, image: MetadataImage) -> Leadership | None:
        return image.leadership_in(self._parts.group)

    def _present(self) -> LeaderTerm | None:
        """Return the term that goes on, begun anew if a log was cut; one that is over where another node leads by now."""
        former, leadership = self._term, self._row(self._parts.image())
        if not self._begins_anew or self._owes_cuts():
            return former
        if former is not None and leadership is not None:
            self._begins_anew = False
            if (leadership.leader, leadership.leader_epoch) == (
                self._parts.me,
                former.leader_epoch,
            ):
                self._lead(former.anew(leadership))
        return self._term

    def image_changed(self, image: MetadataImage) -> None:
        """Take over what the metadata say: who leads, who is in sync, who is fenced, what topics ask for."""
        self._look_for_cuts()
        term = self._present()
        if term is None:
            return
        leadership = self._row(image)
        if leadership is not None:
            term.leadership_is(leadership)
        term.fenced_are(
            frozenset(node.member for node in image.nodes.values() if not node.is_eligible)
        )
        wishes = Wishes(image.topics, len(image.nodes), image.grown_to, self._parts.min_in_sync())
        former, self._wishes = self._wishes, wishes
        term.look_at_min_in_sync(wishes.changed_since(former, term.logs))

    def logs_changed(self) -> None:
        """Partitions were opened or dropped, or one has stopped: to be called after that, and in the same step if writes follow."""
        term = self._present()
        if term is not None:
            term.reconcile(self._parts.partitions)

    def gate_moved(self) -> None:
        """What `LeadingParts.takes_writes` returns may be another thing now: followers hear of it at once."""
        if self._term is not None:  # else it is told with the first answer of the next term
            self._term.gate_moved()

    async def until_committed(self) -> None:
        """Return once HW covers, in every log that runs, what was there when this node began to lead (R6).

        Raises NotLeader if it does not lead, or no more.
        """
        term = self._present()
        if term is None:
            raise NotLeader("this node does not lead the region's logs")
        while True:
            try:
                return await term.until_committed()
            except NotLeader:
                anew = self._present()
                while self._begins_anew:
                    self._settles.clear()
                    await self._settles.wait()
                    anew = self._present()
                if anew is None or anew is term or anew.leader_epoch != term.leader_epoch:
                    raise
                term = anew  # INV-RLD5

    @property
    def is_settled(self) -> bool:
        """Return whether `until_committed` would return at once."""
        term = self._present()
        return term is not None and term.is_settled

    def standings(self) -> dict[Member, dict[str, object]]:
        """Return how far each follower is, as JSON-able values, for people; nothing where this node does not lead."""
        term = self._present()
        if term is None or term.is_over:
            return {}
        return {
            member: {
                "connected": each.is_heard,
                "logs_behind": each.logs_behind,
                "records_behind": each.records_behind,
                "behind_ms": each.behind_ms,
                "logs_stopped": each.logs_stopped,
                "bytes_behind": term.bytes_behind(member),
                "sent_bytes_per_s": term.sent_bytes_per_s(member),
            }
            for member, each in term.core.standings(self._parts.clock.monotonic_ms()).items()
        }

    def logs_stopped(self) -> dict[Member, int]:
        """Return how many logs have stopped, or did not open, at each follower; nothing where this node does not lead."""
        term = self._present()
        if term is None or term.is_over:
            return {}
        found = term.core.standings(self._parts.clock.monotonic_ms())
        return {member: each.logs_stopped for member, each in found.items()}

    def serving(self) -> frozenset[Member]:
        """Return the followers that serve readers, as they have said last; none where this node does not lead."""
        term = self._present()
        return _NOBODY if term is None or term.is_over else term.serving

    def is_deleted_elsewhere(self, key: LogKey, offset: int) -> bool:
        """Return whether a follower may lack a record that this node has, as its log starts behind that (INV-HRD1)."""
        term = self._present()
        return term is not None and term.core.is_deleted_elsewhere(key, offset)

    def is_sure(self) -> bool:
        """Return whether this node leads, as far as can be known (INV-RTM5)."""
        term = self._present()
        return term is not None and term.is_sure()

    def is_short(self, partition: Partition) -> bool:
        """Return whether the in-sync set is smaller than the log's `min.insync.replicas`: acks=all is to be refused (R1)."""
        term = self._present()
        if term is None or partition.key not in term.logs:
            return False
        return not term.core.has_enough(partition.key)

    def counts_on(self, member: Member, key: LogKey) -> bool:
        """Return whether what a follower has of a log counts, or may yet: also where this node does not know (INV-CAN2)."""
        term = self._present()
        return term is None or term.is_over or term.core.counts_on(member, key)

    def _min_in_sync_of(self, partition: Partition) -> int:
        """Return what the topic asks for; no more than the nodes that there are, or HW would stand still for good.

        Nor more than have been in sync since the region had one node (INV-MH7): until the second has copied all, the first goes on alone.
        A node that was removed is none any more.
        """
        image, default = self._parts.image(), self._parts.min_in_sync()
        topic = image.topic_by_id(partition.topic_id)
        wanted = int(topic.configs.get(MIN_IN_SYNC, default)) if topic is not None else default
        most = max(len(image.nodes), default)
        return min(wanted, most, image.grown_to or most)

    def acknowledged_on(self) -> int:
        """Return on how many nodes each record is, at the least, that acks=all has answered: of the topics that there are.

        One, in a region that has had one node: what was answered then may have been cut off by that one alone (INV-MH7). A region that
        has grown at feature level 1 has no `grown_to`; that its node ran alone it knows by the starts that only such a node counts.
        """
        image, default = self._parts.image(), self._parts.min_in_sync()
        if image.grown_to or image.node_start_count:
            return 1
        topics = image.topics.values()
        return min([default, *(int(topic.configs.get(MIN_IN_SYNC, default)) for topic in topics)])

    # -- tasks -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Propose, and let the core know of the time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._asked.wait()
                self._asked.clear()
                while self._proposals:
                    tasks.create_task(self._propose(*self._proposals.popleft()))

    async def _tick(self) -> None:
        while True:
            await self._leads.wait()
            await self._parts.clock.sleep_ms(TICK_MS)
            term = self._present()
            if term is not None:
                term.tell(Ticked())

    def _on_proposal(self, term: LeaderTerm, proposal: ProposeInSync) -> None:
        self._proposals.append((term, proposal))
        self._asked.set()

    async def _propose(self, term: LeaderTerm, proposal: ProposeInSync) -> None:
        """Ask once, and tell what is known of it (INV-RLD4); what was carried out comes as metadata."""
        kept = self._parts.kept() & term.core.in_sync.members
        members = proposal.members | kept
        if kept and members == term.core.in_sync.members:  # INV-RLD8
            term.tell(ProposalEnded(proposal.number, is_refused=True))
            return
        command = self._command(proposal, members)
        try:
            await self._parts.propose(command)
        except CommandRefused:
            term.tell(ProposalEnded(proposal.number, is_refused=True))
        except MetadataUnwritable:
            term.tell(ProposalEnded(proposal.number, is_refused=False))

    def _command(self, proposal: ProposeInSync, members: frozenset[Member]) -> InSyncChange:
        me, group, in_sync = self._parts.me, self._parts.group, tuple(sorted(members))
        leader_epoch, expected = proposal.leader_epoch, proposal.expected_version
        if group == MAIN_GROUP:
            return ChangeInSync(me, leader_epoch, in_sync, expected)
        return ChangeGroupInSync(group, me, leader_epoch, in_sync, expected)

    # -- followers -------------------------------------------------------------------------------

    def _admit(self, session: NodeSession, leader_epoch: LeaderEpoch) -> LeaderTerm:
        """Return the leader epoch that goes on; raises `PeerRefused` (INV-RLD1)."""
        term = self._present()
        if term is None or term.is_over:
            raise PeerRefused(NOT_LEADING, f"node {self._parts.me} does not lead the region's logs")
        if leader_epoch != term.leader_epoch:
            raise PeerRefused(
                OTHER_LEADER_EPOCH,
                f"node {self._parts.me} leads under leader epoch {term.leader_epoch}, and is asked for {leader_epoch}",
            )
        if self._parts.image().node_of(session.member) is None or session.member == self._parts.me:
            raise PeerRefused(UNKNOWN_FOLLOWER, f"node {session.member} is not registered")
        if self._parts.bound.setdefault(session, term) is not term:
            raise PeerRefused(
                LEADS_ANEW, f"a log of node {self._parts.me} was cut: compare again, and copy on"
            )
        return term

    def _session(self, term: LeaderTerm, member: Member) -> FetchSession:
        parts = self._parts
        pace = CatchUpPace(parts.rates, parts.sent, lambda: member not in term.core.in_sync.members)
        gates = Gates(parts.acts, parts.takes_writes)
        return FetchSession(
            term.logs, term.copying, parts.partitions.cold_reads, parts.clock, gates, pace
        )

    async def check(
        self, session: NodeSession, message: CheckReplicaLogs, _attachment: memoryview
    ) -> CheckedReplicaLogs:
        """Let a follower in, and say where leader epochs end in logs that are led here. Raises `PeerRefused`."""
        term = self._admit(session, message.leader_epoch)
        if message.lineage != self._parts.lineage():
            raise PeerRefused(OTHER_LINEAGE, f"node {self._parts.me} has heard of other takeovers")
        term.follower(session, self._session)
        found: list[FoundLog] = []
        yielding = CooperativeYield()
        for asked in message.logs:
            await yielding.row()
            found += await self._found(term, asked, session.member)
        self._admit(session, message.leader_epoch)
        return CheckedReplicaLogs(logs=tuple(found))

    async def _found(self, term: LeaderTerm, asked: AskedLog, member: Member) -> list[FoundLog]:
        """Return where the leader epoch ends in a log that is led here; nothing for another one, or one that cannot be read there now."""
        partition = term.logs.get(asked.key)
        if partition is None:
            return []
        try:
            found = await self._parts.partitions.cold_reads.read(
                partial(_look_up, partition, asked)
            )
        except LogError:
            return []  # said and counted by the partition; the follower asks again
        if member in term.core.in_sync.members:
            return [found]  # it has all that is cleaned, and is to give nothing up (INV-RPF10)
        return [msgspec.structs.replace(found, drops=drops_of(partition))]

    async def fetch(
        self, session: NodeSession, message: ReplicaFetch, _attachment: memoryview
    ) -> Reply:
        """Send what a follower lacks, as soon as there is something. Raises `PeerRefused`."""
        term = self._admit(session, message.leader_epoch)
        following = term.follower(session, self._session)
        # 1. A fetch is read. 2. Its connection ends, which is told (INV-RLD7). 3. Only then its task begins.
        if not term.has(session):
            raise PeerRefused(
                CONNECTION_ENDED, f"the connection of node {session.member} has ended"
            )
        for topic_id, number in message.forgotten:
            following.forget(LogKey(topic_id, number))
        for place in message.positions:
            following.begin(place.key, place.offset)
        taken = message.taken_bytes_per_s_max
        following.pace.taken_bytes_per_s = (
            CATCH_UP_BYTES_PER_S_MAX if taken is None else max(1, taken)
        )
        term.report(session, message)
        term.takes_readers(session, takes=message.serves_readers)
        reply = await following.answer(message)
        self._admit(session, message.leader_epoch)
        return reply

    def reported(
        self, session: NodeSession, message: DurableReport, _attachment: memoryview
    ) -> None:
        """Take in how far a follower is durable; nothing of one that was not let in."""
        term = self._present()
        if term is not None and message.leader_epoch == term.leader_epoch and term.has(session):
            term.report(session, message)


def _look_up(partition: Partition, asked: AskedLog, *, wait: bool) -> FoundLog:
    history = history_of(partition)
    end = history.end_of(asked.leader_epoch)
    known_epoch = NO_LEADER_EPOCH if asked.leader_epoch == LATEST else end.leader_epoch
    starts = history.starts_after(known_epoch, partition.log.cleaning.holes_below)
    held_to = end.end_offset
    if end.leader_epoch < history.latest:
        held_to = partition.reader.end_before(end.end_offset, wait=wait)
    return FoundLog(
        asked.topic_id, asked.partition, asked.leader_epoch, end.leader_epoch, end.end_offset, history.log_start_offset,
        starts[-STARTS_MAX:], held_to,
    )  # fmt: skip
