"""One leader epoch of this node: the core of the leader, the logs that it leads, and the followers that came in.

INV-RTM1 the core is told one thing after the other, and what it asks for is done before the next one is told (`replication`, 1)
INV-RTM2 once this is over no HW moves, and no low watermark, whoever still reports
INV-RTM3 only a log that runs is led: one that stops, or is dropped, is closed for the core, and does not come back
INV-RTM4 where a log that is led is cut, whatever the reason, or its start goes back (T14), this ends in that step, and another one goes
         on under the same leader epoch (`anew`): followers compare their logs again before they copy on, and what they had reported
         counts no more; what was agreed on of the other logs' starts stays (INV-RPL11)
         1. A follower has a log up to 100. 2. The leader cuts it to 80, and appends up to 120. 3. The follower asks for what follows
         100, and gets it: its log differs for good.

INV-RTM5 whoever leads is sure to do so only while it has heard another member in sync lately that follows it still, or there is none: whom
         the metadata name in its place is one of them, and follows it no more. That its term began anew (INV-RTM4) makes nobody sure
         1. A leader is cut off, or its process stands still. 2. Another one is elected, and acknowledges records. 3. A client asks the
         former one again, which has not heard of that: an offset beyond its end is no reason to begin anew, and a sequence
         behind a gap is no fault of its producer.
INV-RTM6 of whom a log waits for with what is dropped of it (INV-CLN7) a connection that ends takes nothing away for `COMES_BACK_MS`: else
         one that ends now and then, beside a log that is cleaned all the time, would have it copied from its start again and again

What is durable is told once for all logs of a group commit, in the turn after it.
Not here: messages (`replica_leading`), bytes (`replica_sending`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, assert_never

from idempotency.identity import LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster_image import Leadership
from region_broker.log.failures import NotLeader
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.replica_logs import noted_high_watermark
from region_broker.region.cluster.replica_messages import (
    DurableReport,
    ReplicaFetch,
    lacking_of,
    offsets_of,
    starts_of,
)
from region_broker.region.cluster.replica_sending import Copying, FetchSession
from region_broker.region.peers.sessions import NodeSession
from region_broker.replication.effects import (
    Deposed,
    Enough,
    HighWatermark,
    LeaderEffect,
    LowWatermark,
    NotEnough,
    ProposeInSync,
    WentBack,
)
from region_broker.replication.events import (
    FollowerConnected,
    FollowerLost,
    FollowerReport,
    InSyncChanged,
    LeaderEpochSeen,
    LeaderEvent,
    LogClosed,
    LogOpened,
    LogsDurable,
    LogsStopped,
    LogStartMoved,
    MembersFenced,
    MinInSyncChanged,
)
from region_broker.replication.facts import InSync
from region_broker.replication.leading import LeadingCore, LeadingSettings

SURE_MS: Final = 750
"""An idle follower is heard every 500 ms (`FETCH_WAIT_MS`); nobody is elected sooner than a session's time-out after the last sign of life."""
COMES_BACK_MS: Final = 60_000
"""A follower connects again within 2 s (`BACKOFF_MS_MAX`), once both hear that the connection has ended."""

_log: Final = logging.getLogger("tidemark.replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class TermParts:
    """What a leader epoch needs. `propose` is given what the metadata are to take over, and `ended` is told what became of it."""

    me: Member
    clock: Clock
    settings: LeadingSettings
    min_in_sync_of: Callable[[Partition], int]
    propose: Callable[["LeaderTerm", ProposeInSync], None]
    was_cut: Callable[["LeaderTerm"], None]
    """Told once, in the step in which a log was cut, when this has ended (INV-RTM4)."""


def in_sync_of(leadership: Leadership) -> InSync:
    """Return the in-sync set as the core has it."""
    return InSync(frozenset(leadership.in_sync), leadership.version)


class LeaderTerm:
    """See the module's head. `end` it before another one begins."""

    def __init__(
        self, parts: TermParts, leadership: Leadership, core: LeadingCore | None = None
    ) -> None:
        """Lead under the leader epoch of `leadership`; logs follow by `reconcile`. `core`: what goes on in it (`anew`)."""
        self.leader_epoch: Final[LeaderEpoch] = leadership.leader_epoch
        self.logs: dict[LogKey, Partition] = {}
        self.copying = Copying()
        self._parts = parts
        self._goes_on = core is not None
        self.core = core or LeadingCore(
            parts.me,
            leadership.leader_epoch,
            in_sync_of(leadership),
            settings=parts.settings,
            now_ms=parts.clock.monotonic_ms(),
        )
        self._events: deque[LeaderEvent] = deque()
        self._is_stepping = False
        self._is_over = False
        self._min_in_sync: dict[LogKey, int] = {}
        self._followers: dict[NodeSession, FetchSession] = {}
        self._left: dict[Member, tuple[int, dict[LogKey, int]]] = {}
        """When the last connection of each follower ended, and up to where it had been sent what."""
        self._heard_ms: dict[Member, int | None] = {}
        """When each follower was heard last; None for one that has left since."""
        self._begun_ms = parts.clock.monotonic_ms()
        self._serving: dict[NodeSession, Member] = {}
        self.serving: frozenset[Member] = frozenset()
        """The followers that have said last that they serve readers (INV-RPR1); another object where that has changed."""
        self._moved: dict[LogKey, Partition] = {}
        self._unsettled: set[LogKey] = set()
        """The logs of which this leader does not know yet all that was committed before (R6)."""
        self._settled = asyncio.Event()
        self._stopped: frozenset[LogKey] = frozenset()

    def anew(self, leadership: Leadership) -> "LeaderTerm":
        """Return what leads on in this leader epoch, in place of this one, which has ended (INV-RTM4)."""
        assert leadership.leader_epoch == self.leader_epoch, (leadership, self.leader_epoch)
        core = self.core.anew(in_sync_of(leadership), self._parts.clock.monotonic_ms())
        term = LeaderTerm(self._parts, leadership, core)
        term._stopped, term._left = self._stopped, self._left
        term._heard_ms, term._begun_ms = self._heard_ms, self._begun_ms
        return term

    # -- the core --------------------------------------------------------------------------------

    def tell(self, event: LeaderEvent) -> None:
        """Tell the core, at once or when it has its turn (INV-RTM1); nothing once this is over."""
        if self._is_over:
            return
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                for effect in self.core.step(event, self._parts.clock.monotonic_ms()):
                    self._perform(effect)
        finally:
            self._is_stepping = False

    def _perform(self, effect: LeaderEffect) -> None:
        match effect:
            case HighWatermark(key, offset):
                self._show(key, offset)
            case LowWatermark(key, offset):
                if not self._is_over and key in self.logs:
                    self.logs[key].commits.agree_on_start(offset)
            case ProposeInSync():
                self._parts.propose(self, effect)
            case NotEnough(min_in_sync):
                _log.warning("%d nodes are in sync, fewer than min.insync.replicas=%d: acks=all is refused",
                             len(self.core.in_sync.members), min_in_sync)  # fmt: skip
            case Enough(min_in_sync):
                _log.info("min.insync.replicas=%d is reached again", min_in_sync)
            case WentBack(member, keys):
                _log.error(
                    "node %s has less of %d logs than it said under this leader epoch (%s first), and is not in sync until it has all of them."
                    " Where its own log says that it starts these again, it copies them whole; else its folder is an older copy, or its"
                    " disk lied: empty its folder",
                    member, len(keys), keys[0].encode(),
                )  # fmt: skip
            case Deposed(leader_epoch):
                _log.warning(
                    "leader epoch %d is over: %d has begun", self.leader_epoch, leader_epoch
                )
            case _:
                assert_never(effect)

    def _show(self, key: LogKey, offset: int) -> None:
        partition = self.logs.get(key)
        if partition is None or self._is_over:
            return  # INV-RTM2
        partition.commit_up_to(offset)
        self.copying.committed(key)
        if key in self._unsettled and self.core.knows_latest(key):
            self._settle(key)

    def gate_moved(self) -> None:
        """Followers are to hear of it (INV-RSN9)."""
        for session in self._followers.values():
            session.gate_moved()

    # -- logs ------------------------------------------------------------------------------------

    def reconcile(self, partitions: Iterable[Partition]) -> None:
        """Lead what runs of `partitions`, and nothing else (INV-RTM3)."""
        if self.is_over:
            return
        found, stopped = dict[LogKey, Partition](), set[LogKey]()
        for partition in partitions:
            if partition.failed is None:
                found[partition.key] = partition
            else:
                stopped.add(partition.key)
        self._stop(frozenset(stopped))
        for key, partition in list(self.logs.items()):
            if found.get(key) is not partition:
                self._close(key)
        opening = [partition for key, partition in found.items() if key not in self.logs]
        # All of them before the first is told: who waits for the last one is not to be told behind the first.
        self._unsettled.update(partition.key for partition in opening)
        for partition in opening:
            self._open(partition)
        self._look_whether_settled()

    def _open(self, partition: Partition) -> None:
        key = partition.key
        if self._is_over:
            return
        self.logs[key] = partition
        self._min_in_sync[key] = self._parts.min_in_sync_of(partition)
        partition.copies.tell_durable(partial(self._on_durable, partition))
        partition.copies.tell_cut(self._on_cut)
        partition.copies.on_order = partial(self._on_order, partition)
        partition.copies.copied_to = partial(self._copied_to, key)
        agreed_start = partition.commits.agreed_start if self._goes_on else 0
        partition.commits.agree_on_start(agreed_start)
        known = noted_high_watermark(partition)
        self.tell(
            LogOpened(
                key, partition.commits.durable_end, partition.log_end_offset, known, self._min_in_sync[key], partition.log_start_offset,
                agreed_start,
            )
        )  # fmt: skip
        if key in self.logs and not self.core.is_deposed:
            partition.commit_up_to(self.core.high_watermark(key))
            if self.core.knows_latest(key):
                self._settle(key)

    def _close(self, key: LogKey) -> None:
        partition = self.logs.pop(key)
        partition.copies.tell_durable(None)
        partition.copies.tell_cut(None)
        self._moved.pop(key, None)
        del self._min_in_sync[key]
        for session in self._followers.values():
            session.forget(key)
        self._settle(key)
        self.tell(LogClosed(key))

    def _stop(self, keys: frozenset[LogKey]) -> None:
        """Tell which logs have stopped, before they are closed: a follower may have all of the others (INV-RPL9)."""
        if keys != self._stopped:
            self._stopped = keys
            self.tell(LogsStopped(keys))

    def _on_durable(self, partition: Partition) -> None:
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._tell_durable)
        self._moved[partition.key] = partition

    def _on_order(self, partition: Partition) -> None:
        self.tell(LogStartMoved(partition.key, partition.log_start_offset))

    def _copied_to(self, key: LogKey) -> int | None:
        """Return up to where all have a log who copy it, or did a moment ago (INV-RTM6); None where nobody does."""
        since_ms = self._parts.clock.monotonic_ms() - COMES_BACK_MS
        found = {
            member: positions[key]
            for member, (left_ms, positions) in self._left.items()
            if left_ms >= since_ms and key in positions
        }
        for session, following in self._followers.items():
            if key in following.positions:
                found[session.member] = following.positions[key]
        return min(found.values(), default=None)

    def _leave(self, member: Member, following: FetchSession) -> None:
        now_ms = self._parts.clock.monotonic_ms()
        for other, (left_ms, _) in list(self._left.items()):
            if left_ms < now_ms - COMES_BACK_MS:
                del self._left[other]
        if following.positions:
            # A short session knows of a part of the logs only.
            _, before = self._left.get(member, (0, {}))
            known = {**before, **following.positions}
            self._left[member] = now_ms, {key: at for key, at in known.items() if key in self.logs}
        following.close()

    def _tell_durable(self) -> None:
        moved, self._moved = self._moved, {}
        if self._is_over:
            return
        stopped = [key for key, partition in moved.items() if partition.failed is not None]
        self._stop(self._stopped.union(stopped))
        for key in stopped:
            del moved[key]
            self._close(key)
        if moved:
            self.tell(LogsDurable({key: log.commits.durable_end for key, log in moved.items()}))

    def _on_cut(self) -> None:
        self.end()
        self._parts.was_cut(self)

    def look_at_min_in_sync(self, keys: Iterable[LogKey]) -> None:
        """Look at what the topics of these logs ask for now, of those that are led."""
        for key in keys:
            partition = self.logs.get(key)
            if partition is None:
                continue
            wanted = self._parts.min_in_sync_of(partition)
            if wanted != self._min_in_sync[key]:
                self._min_in_sync[key] = wanted
                self.tell(MinInSyncChanged(key, wanted))

    # -- what the metadata say -------------------------------------------------------------------

    def leadership_is(self, leadership: Leadership) -> None:
        """Take over who leads, and who is in sync."""
        if leadership.leader_epoch > self.leader_epoch:
            self.tell(LeaderEpochSeen(leadership.leader_epoch))
        elif leadership.leader_epoch == self.leader_epoch and leadership.leader == self._parts.me:
            self.tell(InSyncChanged(leadership.leader_epoch, in_sync_of(leadership)))

    def fenced_are(self, members: frozenset[Member]) -> None:
        """Take over whom the metadata have fenced."""
        self.tell(MembersFenced(members))

    # -- followers -------------------------------------------------------------------------------

    def follower(
        self, session: NodeSession, make: Callable[["LeaderTerm", Member], FetchSession]
    ) -> FetchSession:
        """Return what is sent on a connection; its first message begins that."""
        found = self._followers.get(session)
        if found is None:
            found = self._followers[session] = make(self, session.member)
            self.tell(FollowerConnected(session.member, session.session_id, self.leader_epoch))
            session.on_close(lambda: self._lost(session))
        return found

    def has(self, session: NodeSession) -> bool:
        """Return whether a connection follows under this leader epoch."""
        return session in self._followers

    def report(self, session: NodeSession, message: ReplicaFetch | DurableReport) -> None:
        """Take in how far a follower is durable, where its logs start, and which have stopped there."""
        self._heard_ms[session.member] = self._parts.clock.monotonic_ms()
        lacking, durable_ends = lacking_of(message), offsets_of(message.durable_ends)
        self._followers[session].durable(durable_ends)
        if lacking:
            _log.error(
                "%d logs of node %s have stopped, or did not open (%s first): it is not in sync until it has copied them again",
                len(lacking), session.member, min(key.encode() for key in lacking),
            )  # fmt: skip
        self.tell(
            FollowerReport(
                session.member, session.session_id, self.leader_epoch,
                durable_ends, starts_of(message), lacking,
            )
        )  # fmt: skip

    def is_sure(self) -> bool:
        """Return whether no other leader can have been elected but in this moment (INV-RTM5)."""
        since_ms = self._parts.clock.monotonic_ms() - SURE_MS
        others = self.core.in_sync.members - {self._parts.me}
        heard = [self._heard_ms.get(other, self._begun_ms) for other in others]
        return not others or any(at_ms is not None and at_ms >= since_ms for at_ms in heard)

    def takes_readers(self, session: NodeSession, *, takes: bool) -> None:
        """Note whether consumers may be sent to the follower of a connection."""
        if takes == (session in self._serving):
            return
        if takes:
            self._serving[session] = session.member
        else:
            del self._serving[session]
        self.serving = frozenset(self._serving.values())

    def bytes_behind(self, member: Member) -> int:
        """Return about how much a follower lacks: of each log the part that its records are of all of them."""
        found = 0.0
        for key, records in self.core.lacked_by(member).items():
            log = self.logs.get(key)
            if log is not None:
                there = max(1, log.log_end_offset - log.log_start_offset)
                found += log.log.size_bytes * min(1.0, records / there)
        return int(found)

    def sent_bytes_per_s(self, member: Member) -> int | None:
        """Return how fast a follower is sent what it lacks; None of one that is in sync, or has been followed for a moment only."""
        paces = [each.pace for session, each in self._followers.items() if session.member == member]
        rates = [pace.sent_bytes_per_s for pace in paces if pace.applies()]
        known = [rate for rate in rates if rate is not None]
        return int(sum(known)) if known else None

    def _lost(self, session: NodeSession) -> None:
        self.takes_readers(session, takes=False)
        following = self._followers.pop(session, None)
        if following is not None:
            self._leave(session.member, following)
            if all(other.member != session.member for other in self._followers):
                self._heard_ms[session.member] = None
            self.tell(FollowerLost(session.member, session.session_id))

    # -- the end ---------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Return whether this leader epoch is over, as far as is known here."""
        return self._is_over or self.core.is_deposed

    async def until_committed(self) -> None:
        """Return once HW covers, in all logs that run, what older leader epochs left; raises NotLeader if this ends before."""
        await self._settled.wait()
        if self.is_over:
            raise NotLeader(f"this node leads no more under leader epoch {self.leader_epoch}")

    @property
    def is_settled(self) -> bool:
        """Return whether HW covers what older leader epochs left, and this goes on."""
        return self._settled.is_set() and not self.is_over

    def _settle(self, key: LogKey) -> None:
        self._unsettled.discard(key)
        self._look_whether_settled()

    def _look_whether_settled(self) -> None:
        if not self._unsettled:
            self._settled.set()

    def end(self) -> None:
        """Lead no more: nothing moves, and followers that wait are sent away (INV-RTM2)."""
        self._is_over = True
        self._settled.set()
        for session, following in list(self._followers.items()):
            self._leave(session.member, following)
        self._followers.clear()
        for partition in self.logs.values():
            partition.copies.tell_durable(None)
            partition.copies.tell_cut(None)
        self.logs.clear()
        self._moved.clear()
