"""What runs in which role: the one place that starts and stops links, cut leader, coordinators and groups.

INV-RR1  the gate (`acting`) is open only after everything that takes writes is loaded, and closes before
         anything of it stops: opening writes is the last step, closing them the first (T18)
INV-RR6  a mirror says that another region acts only while that one answers: after `SILENT_MS` it says since when it
         has not, and names the runbook
INV-RR7  a role begins, and ends by a fence, with one leader for all logs of the region: the election that began the term has ended a
         spread, and leaders are gathered before the region changes what it is
INV-RR8  leaders are spread only where no reader is waited for that may have read beyond the end of a log before a takeover: who leads a
         data group would tell it that its place is gone (T26)
INV-RR4  a change of topics or of a log's start begins only while the gate is open; the last tidemark before a takeover is
         taken, and a role ends, only when all that began have ended: none is acknowledged behind it (T18)
INV-RR9  what ends with a term is cancelled before the logs fail what waits for them: a cut leader would take the end of its term for a
         log that has stopped, and tell the operator to take over elsewhere
Link and cut leader never run at the same time: one node copies or publishes, not both. A sequence that is cancelled
half-way leaves the gate closed; the next one begins by standing still, so every sequence may be run again. Whoever
waits for the region that acted before hears of a new term as soon as it begins (`on_term`).

Handlers see this object as their `RegionView`. Tasks belong to `run`: an error of any service ends the node,
loudly.
Not here: when a role changes (`failover.driver`), what the services do.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from geo_replicator.lineage import LogKey, TidemarkPoint
from idempotency.fencing import FIRST_TERM_COUNTER, leader_counter_of
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch, TopicPartition
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.log.failures import LogError
from region_broker.region.ports import (
    CutLeaderSide,
    LinkSide,
    OrphanCandidate,
    RegionLog,
    RoleServices,
    RoundFailed,
    Term,
)
from region_broker.wire.cooperative_yield import CooperativeYield

SILENT_MS: Final = 5_000
"""A region that acts answers a waiting fetch every second."""

_log: Final = logging.getLogger("tidemark.role")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who this node is towards clients."""

    cluster_id: str
    region: str
    node_id: int
    kafka_host: str
    kafka_port: int


class RegionRole:
    """The role of one region, and the services that follow it. `run` must be running."""

    def __init__(
        self, identity: NodeIdentity, services: RoleServices, region_epoch: RegionEpoch
    ) -> None:
        """Begin standing still under `region_epoch`."""
        self._identity = identity
        self._services = services
        self._region_epoch = region_epoch
        self._gate_open = False
        self.awaits_readers = False
        """Whether readers beyond the end of a log wait, as they may have read on before a takeover (INV-RR8)."""
        self._reason = "this region is starting; it goes on by itself"
        self._changes = 0
        self._unchanged = asyncio.Event()
        self._term: Term | None = None
        self._cut_leader: CutLeaderSide | None = None
        self._link_runs = False
        self._link: LinkSide | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._running: list[asyncio.Task[None]] = []
        self._ready_to_run = asyncio.Event()
        self.on_term: Callable[[Term], None] = _nobody_waits
        self.on_gate: Callable[[], None] = _nobody_is_told
        """Told when the gate was opened or closed (INV-RGR11)."""

    @property
    def acting(self) -> bool:
        """Return whether this region takes writes now."""
        return self._gate_open

    @property
    def region_epoch(self) -> RegionEpoch:
        """Return the region epoch of the current term."""
        return self._region_epoch

    @property
    def reason_not_acting(self) -> str:
        """Return why this region takes no writes; empty while it does."""
        return "" if self._gate_open else (self.silence or self._reason)

    @property
    def silence(self) -> str:
        """Return since when the region that this one mirrors has not answered; empty while it answers (INV-RR6)."""
        link, term = self._link, self._term
        if link is None or term is None or link.silent_ms() < SILENT_MS:
            return ""
        return (
            f"region {term.primary_region} acted when last heard, {link.silent_ms() // 1000} s ago; this one mirrors it and"
            " goes on by itself when it acts again. If it is lost: docs/runbooks/region_failover.md"
        )

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster."""
        return self._identity.cluster_id

    @property
    def node_id(self) -> int:
        """Return the id of this node."""
        return self._identity.node_id

    @property
    def kafka_host(self) -> str:
        """Return the host that clients are told."""
        return self._identity.kafka_host

    @property
    def kafka_port(self) -> int:
        """Return the port that clients are told."""
        return self._identity.kafka_port

    @property
    def region(self) -> str:
        """Return the region's name."""
        return self._identity.region

    @property
    def serving(self) -> Term | None:
        """Return the term that this region acts or mirrors in, None while it stands still."""
        return self._term

    @property
    def leader_epoch(self) -> LeaderEpoch:
        """Return the leader epoch that this node writes with in its term, -1 where it does not act."""
        return (
            self._term.leader_epoch
            if self._term is not None and not self._link_runs
            else NO_LEADER_EPOCH
        )

    @property
    def mirrors(self) -> bool:
        """Return whether the link runs."""
        return self._link_runs

    def logs(self, *, failed_only: bool = False) -> list[RegionLog]:
        """Return the partitions of this node, or those of them that have stopped, in a stable order."""
        logs = self._services.logs()
        return sorted(
            (log for log in logs if log.failed is not None) if failed_only else logs, key=_order
        )

    async def run(self) -> None:
        """Own the tasks of all services until cancelled; raises what one of them raised."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                self._ready_to_run.set()
                await asyncio.Event().wait()
        finally:
            self.close_gate("this region is stopping")
            self._tasks = None
            self._ready_to_run.clear()

    def open_gate(self) -> None:
        """Take writes: the last step (INV-RR1). Nothing is opened where another node of the region was heard to lead meanwhile.

        1. The last ledger is loaded. 2. The metadata name another node: the gate is closed, whoever loads is to be cancelled.
        3. It goes on first, in the same turn of the loop, and would open (INV-LSH1).
        """
        assert self._term is not None, "nothing is loaded"
        assert self._cut_leader is not None, "a mirror takes no writes"
        if self._services.leads(self._term):
            self._move_gate(is_open=True)

    def close_gate(self, reason: str) -> None:
        """Refuse writes from this moment on, with `reason`."""
        self._link = None
        self._reason = reason
        self._move_gate(is_open=False)

    def _move_gate(self, *, is_open: bool) -> None:
        moves = self._gate_open != is_open
        self._gate_open = is_open
        if moves:
            self.on_gate()

    @contextmanager
    def change(self) -> Iterator[None]:
        """Be counted as a change under way (INV-RR4); raises `CommandRefused` where the gate is closed.

        1. CreateTopics passes the gate. 2. The gate closes, the last tidemark is published. 3. The topic is created and
        answered. 4. The candidate cuts at that tidemark: the topic would be gone.
        """
        if not self._gate_open:
            raise CommandRefused(NOT_ACTING, f"nothing is changed here now: {self._reason}")
        self._changes += 1
        try:
            yield
        finally:
            self._changes -= 1
            if self._changes == 0:
                self._unchanged.set()

    async def _settle_changes(self) -> None:
        while self._changes > 0:
            self._unchanged.clear()
            await self._unchanged.wait()

    async def stand_still(self, reason: str) -> None:
        """Refuse writes, then stop whatever runs. Doing it twice changes nothing."""
        self.close_gate(reason)
        await self._ready_to_run.wait()
        await self._resign()
        await self._settle_changes()
        await self._end_term(self._cancel_tasks())

    async def _resign(self) -> None:
        if self._cut_leader is not None:
            await self._services.transactions.resign()
            await self._services.groups.resign()

    async def _end_term(self, ending: Collection[asyncio.Task[None]]) -> None:
        if ending:
            await asyncio.wait(ending)
        self._cut_leader = None
        self._link_runs = False
        self._term = None

    async def fence(self, reason: str) -> None:
        """Stand still, and fail the acks of writes under way: their outcome is unknown (T24, T31).

        Readers go on seeing what they saw, and where it ends: nothing is cut yet. HW of a log that leads is an end that stays true, as all
        that an older leader of the region had committed was committed anew before this one had a role (INV-LSH3), so nothing is doubted
        here, as it is where a node follows another one (`follow`). What does not lead shows what it showed.
        """
        assert self._services.is_gathered(), "INV-RR7"
        await self.stand_still(reason)
        for log in self.logs():
            if log.is_leader:
                # Who is told of the change reads within it: a mirror that has shown nothing ends where it begins (INV-PT9).
                shown = log.high_watermark
                log.show_up_to(shown, shown)
                log.become_mirror()

    async def follow(self, reason: str) -> None:
        """Take no writes, and only what the node brings that leads this region; what is under way has an unknown outcome (P18).

        A change that is under way is not waited for: the quorum may not settle it for long, and nobody cuts at a last tidemark here.
        """
        self.close_gate(reason)
        await self._ready_to_run.wait()
        await self._resign()
        ending = self._cancel_tasks()  # INV-RR9
        # Before anything is waited for: nothing of it is committed here any more. Nor does anybody know where a log ends for
        # readers: of a mirror that has shown nothing they would be told that it ends where it begins (INV-PT9).
        for log in self.logs():
            log.rewind_cut(0, is_end=False)
            log.become_mirror()
        await self._end_term(ending)

    async def act(
        self,
        term: Term,
        *,
        adopts: bool,
        base: Mapping[LogKey, int],
        reason: str,
        drained: RegionEpoch | None = None,
    ) -> None:
        """Load everything that takes writes, in order, with the gate still closed (T21).

        `adopts`: this is the first time after a takeover. `base` holds the positions of the cut that
        this term began at: below them an idempotent producer may leave one gap (T22). `drained`: the region
        epoch that a planned switch ended; its transactional producers go on.
        """
        assert self._services.is_gathered(), "INV-RR7"
        await self.stand_still(reason)
        self._region_epoch = term.region_epoch
        self.on_term(term)
        self.awaits_readers = bool(base)
        await self._services.settle_logs()
        logs, yielding = self.logs(), CooperativeYield()
        for log in logs:
            await yielding.row()
            log.become_leader(term.leader_epoch)
            below = base.get(LogKey(log.topic_id, log.tp.partition))
            log.readers_ahead = below is not None
            if below is not None:
                log.state.allow_gap_once(below)
        await self._services.settle_commits(term)
        # From here on coordinators may be half loaded: stand_still must make them resign.
        is_first = leader_counter_of(term.leader_epoch) == FIRST_TERM_COUNTER
        self._cut_leader = await self._services.open_cut_leader(term, adopts and is_first)
        self._spawn(self._services.groups.run(), "groups")
        self._spawn(self._services.transactions.run(), "transactions")
        await self._load_coordinators(term, logs, base, adopts=adopts, drained=drained)
        self._spawn(self._cut_leader.run(), "cut-leader")
        if adopts:
            try:
                await self._cut_leader.first_tidemark()
            except RoundFailed as error:  # transactions go on (T12)
                _log.error("what was adopted is under no tidemark yet: %s", error)
        # 1. All logs lead. 2. Meanwhile a topic is there that a former leader of the region made. 3. It would never take writes.
        for log in self.logs():
            log.become_leader(term.leader_epoch)
        self._term = term

    def readers_are_back(self) -> None:
        """Answer readers beyond the end of a log as everywhere: whoever is in a group has rejoined by now (T26)."""
        self.awaits_readers = False
        for log in self.logs():
            log.readers_ahead = False

    async def _load_coordinators(
        self,
        term: Term,
        logs: list[RegionLog],
        base: Mapping[LogKey, int],
        *,
        adopts: bool,
        drained: RegionEpoch | None,
    ) -> None:
        # Groups first: a marker for __consumer_offsets is answered once its offsets are applied (C35).
        await self._services.groups.load(term)
        if not adopts:
            await self._services.transactions.load(term)
            return
        await self._services.transactions.adopt(term, await orphan_candidates(logs), drained)
        await self._services.groups.clamp(log_ends(logs, base))

    async def mirror(self, term: Term) -> None:
        """Follow the primary region of `term`."""
        assert self._services.is_gathered(), "INV-RR7"
        await self.stand_still(f"region {term.primary_region} acts; this one mirrors it")
        self._region_epoch = term.region_epoch
        self.on_term(term)
        for log in self.logs():
            log.become_mirror()
        await self._services.settle_commits(term)
        self._link_runs = True
        self._term = term
        self._link = self._services.open_link(term)
        self._spawn(self._link.run(), "link")

    async def final_round(self) -> TidemarkPoint:
        """Wait until all that was begun is durable, then publish it; raises `RoundFailed`, also where the term ends meanwhile.

        1. A candidate asks for a promise. 2. The last records wait for followers. 3. This node is deposed, and its term ends: what waits in a
        peer's question is not cancelled with it.
        """
        cut_leader = self._cut_leader
        if cut_leader is None:
            raise RoundFailed("this region publishes no tidemarks now")
        if (
            not self._services.is_gathered()
        ):  # it came meanwhile; nothing is recorded before it is gathered (INV-GTH1)
            raise RoundFailed("the leaders of this region are spread")
        await self._settle_changes()
        try:
            for log in self.logs():
                if (
                    log.failed is None
                ):  # else nothing more of it becomes durable: that was said to who waited
                    await log.wait_committed(log.log_end_offset)
        except LogError as error:
            raise RoundFailed(f"not everything that was appended is durable: {error}") from error
        if self._cut_leader is not cut_leader:
            raise RoundFailed("this node leads its region no more: ask again")
        return await cut_leader.final_round()

    def _spawn(self, work: Coroutine[object, None, None], name: str) -> None:
        try:
            assert self._tasks is not None, "run is not running"
            self._running.append(self._tasks.create_task(work, name=name))
        except BaseException:  # the node ends: nobody runs it any more
            work.close()
            raise

    def _cancel_tasks(self) -> list[asyncio.Task[None]]:
        """Cancel whatever runs; who calls waits for its end."""
        ending, self._running = self._running, []
        for task in reversed(ending):
            task.cancel()
        return ending


def _order(log: RegionLog) -> tuple[int, int]:
    return log.topic_id.int, log.tp.partition  # a UUID compares in Python, a number does not


def _nobody_is_told() -> None:
    """One node leads all logs."""


def _nobody_waits(_term: Term) -> None:
    """Nothing is forwarded here."""


async def orphan_candidates(logs: Iterable[RegionLog]) -> list[OrphanCandidate]:
    """Return every transaction that a partition knows as open, in log order (T21); others are served between logs.

    None begins or ends meanwhile: the gate is closed, and nobody decides before this is known (INV-TA4).
    """
    candidates: list[OrphanCandidate] = []
    yielding = CooperativeYield()
    for log in logs:
        found = log.state.open_transactions()
        candidates += [(log.tp, txn) for txn in found]
        await yielding.row(1 + len(found))
    return candidates


def log_ends(logs: list[RegionLog], base: Mapping[LogKey, int]) -> dict[TopicPartition, int]:
    """Return where each log ends that was cut to `base`.

    One that has stopped is cut there before it serves again (INV-LS4); it is not empty, whatever it tells now (T26).
    """
    ends = {}
    for log in logs:
        end = log.log_end_offset
        if log.failed is not None:
            end = base.get(LogKey(log.topic_id, log.tp.partition), -1)
        if end >= 0:
            ends[log.tp] = end
    return ends
