"""This node follows the leader of its region's logs: it compares, cuts, copies, and says how far it is durable.

INV-RFN1 the core is told one thing after the other, and what it asks for is done before the next one is told (`replication`, 1)
INV-RFN2 while this follows, all logs here are in the follower's role: they take nothing but what the leader has, show nothing, and
         know of HW what a leader has said, never more than is durable here
INV-RFN3 what a connection brings counts while it is the newest one of this core
INV-RFN4 a log that does not take what the leader has stops, loudly, or waits; the others go on
INV-RFN6 the leader is told which logs do not run here (INV-RPF9), and of one that was put aside nothing that was said in the session before
INV-RFN5 where the region mirrors another one, that one's history counts: a log that parts from the leader's below HW leaves the
         session, is cut with its tail in quarantine, and is compared again. Where the region acts such a log stops (INV-RPF2)
INV-RFN8 a copy's bytes stay for as long as its leader keeps them, as that one has said under its leader epoch, and all before it has said so: whoever
         leads next must have what mirrors still need (INV-RH1). A leader of a version that does not tell holds nothing back
         1. A mirror is cut off. 2. An order deletes what it lacks: the leader keeps the bytes. 3. A follower hears of the order, and deletes
         them. 4. It is elected. 5. The mirror comes back, and can never be completed.
INV-RFN9 a follower whose disk has no room takes nothing, but follows the log starts of its leader, never back and never beyond its ends: retention
         frees room here by nothing else
         1. Three disks are full. 2. The leader's retention makes room there. 3. Both followers hear of it, and go on holding what was deleted.
         4. Nobody is in sync with the leader, so HW stands still, and no start comes to lie beyond their ends.
         It ends the session with the first answer, which has few logs, the same ones each time. Where the bytes of each begin at the leader it
         has heard before that, as the histories were compared
INV-RFN7 the core is told of the time, and readers are looked at, only while one of them waits for it: a group that copies what there is, and
         whose copies nobody reads, costs a node no wake-ups but those of its fetches
How far logs are durable is told once for all logs of a group commit, in the turn after it.
Not here: what is done when (`replication.following`), the syncs of a cut (`answered_cuts`), the connection (`replica_line`), who leads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, assert_never

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey, Member
from idempotency.record_batch import BatchError
from region_broker.limits import CATCH_UP_BYTES_PER_S_MAX
from region_broker.log.failures import LogError, PartitionFailed
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.answered_cuts import cut_one_by_one
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.replica_cuts import CutBelow, ReplicaCuts
from region_broker.region.cluster.replica_line import CannotBe, ReplicaLine
from region_broker.region.cluster.replica_logs import LogSet, local_log, noted_high_watermark
from region_broker.region.cluster.replica_messages import ReplicaPart
from region_broker.region.cluster.replica_readers import MayServe, ReplicaReaders, nobody_reads
from region_broker.replication.effects import (
    AppendSlices,
    CheckEpochs,
    Connect,
    CutLog,
    Disconnect,
    DivergedBelowHighWatermark,
    FollowerEffect,
    HighWatermark,
    LogStart,
    SendFetch,
    SendReport,
    StartAt,
)
from region_broker.replication.events import (
    Connected,
    ConnectionBroken,
    EpochsChecked,
    Fetched,
    FollowerEvent,
    FollowLeader,
    LeaderLog,
    LogAdded,
    LogRemoved,
    LogsDurable,
    LogsLacking,
    LogsStartAt,
    Slice,
    Ticked,
)
from region_broker.replication.facts import Drops
from region_broker.replication.following import FollowingCore, Stage

TICK_MS: Final = 50
_log: Final = logging.getLogger("tidemark.replication")


def _nothing() -> None:
    return None


def _no_lineage() -> int:
    return 0


def _no_limit() -> int:
    return CATCH_UP_BYTES_PER_S_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowingParts:
    """What following needs of the node. `line`: as for Raft's lines, with `address_of`; its clock counts here, too."""

    partitions: LogSet
    line: LineParts
    lineage: Callable[[], int] = _no_lineage
    """A number for the lineage that the logs were cut by before this follows (INV-LSH4)."""
    may_serve: MayServe = nobody_reads
    """Whether this node may serve readers as a follower of that leader (INV-RRD1)."""
    cut_below: Callable[[], CutBelow | None] = _nothing
    """How a log is cut below HW, where this region mirrors another one now; None where it acts (INV-RFN5)."""
    taken_bytes_per_s: Callable[[], int] = _no_limit
    """How much this node may be sent by one leader while it is not in sync (INV-RPA5)."""
    disputed: set[LogKey] = field(default_factory=set)
    """See `ReplicaFollowing.disputed`; shared by all groups of this node."""


@dataclass(slots=True)
class Behind:
    """What one log lacks of the leader's, as that one said last."""

    leaders_end: int
    unsent_bytes: int


class ReplicaFollowing:
    """`follow`, `stop`, and again; `run` owns its tasks."""

    def __init__(self, parts: FollowingParts) -> None:
        """Follow nobody, and leave the logs' roles to others."""
        self._parts = parts
        self._core = FollowingCore()
        self._leader: Member | None = None
        self._leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self._is_on = False
        self._events: deque[FollowerEvent] = deque()
        self._is_stepping = False
        self._logs: dict[LogKey, Partition] = {}
        self._moved: dict[LogKey, Partition] = {}
        self._started: dict[LogKey, int] = {}
        """Where the logs start now that a step of the core has moved."""
        self._behind: dict[LogKey, Behind] = {}
        self.readers = ReplicaReaders(parts.may_serve)
        self._lacking: frozenset[LogKey] = frozenset()
        self.shut_under: LeaderEpoch | None = None
        """Under which leader epoch the last word of a leader was that its gate is shut; None where it was another one (INV-RGR11)."""
        self.disputed: Final[set[LogKey]] = parts.disputed
        """The logs that have stopped because they part from a leader's below HW: evidence, which nothing by itself puts aside."""
        self._cuts = ReplicaCuts(parts.line.clock, self.logs_changed)
        self._line: ReplicaLine | None = None
        self._lines: deque[ReplicaLine] = deque()
        self._begins = asyncio.Event()
        self._tasks: dict[ReplicaLine, asyncio.Task[None]] = {}
        self._answer: dict[LogKey, tuple[ReplicaPart, memoryview]] = {}
        self._last_reason = ""
        self._ticks = asyncio.Event()
        """Set while the time has to be told of (INV-RFN7)."""

    # -- the role --------------------------------------------------------------------------------

    def follow(self, leader: Member | None, leader_epoch: LeaderEpoch) -> None:
        """Copy from `leader` under its leader epoch; from nobody for None. All logs of the table are followers from now on.

        An older leader epoch than the one that was followed changes nothing.
        """
        if leader_epoch < self._leader_epoch:
            return
        if leader_epoch > self._leader_epoch or not self._is_on:
            self._cuts.stop()
            self._leader, self._leader_epoch = leader, leader_epoch
            for partition in self._logs.values():
                partition.trimming.leader_keeps_from = 0  # a later leader may keep more
        self._is_on = True
        self.logs_changed()
        self._tell(FollowLeader(leader_epoch, leader))
        if self.readers.wants_looks:
            self._ticks.set()

    def stop(self) -> None:
        """Copy no more, and let the logs go: this node leads them from now on, follows another one, or ends. Their roles are as they were.

        What the leader kept stays, until another one is followed, or this node leads: who it is to be may not be known for long (INV-RFN8).
        """
        self._is_on = False
        self._ticks.clear()
        self._cuts.stop()
        self._end_line()
        for partition in self._logs.values():
            partition.copies.tell_durable(None)
        self._logs.clear()
        self._moved.clear()
        self._started.clear()
        self._behind.clear()
        self._events.clear()
        self._lacking = frozenset()
        self._core = FollowingCore()

    def logs_changed(self) -> None:
        """Partitions were opened or dropped: to be called after that, in the same step, as a partition opens in no role."""
        if not self._is_on:
            return
        found = {
            partition.key: partition
            for partition in self._parts.partitions
            if partition.failed is None and partition.key not in self._cuts
        }
        for key, partition in list(self._logs.items()):
            if found.get(key) is not partition:
                self._remove(key)
        for key, partition in found.items():
            if key not in self._logs:
                self._take_on(partition)
        self._look_for_stopped()

    def _look_for_stopped(self) -> None:
        """Have the leader know which logs do not run (INV-RFN6)."""
        lacking = frozenset(p.key for p in self._parts.partitions if p.failed is not None)
        if lacking != self._lacking:
            self._lacking = lacking
            self._tell(LogsLacking(lacking))

    def compare_anew(self, reason: str) -> None:
        """Begin another session: what was said in this one of a log that was put aside is void (INV-RFN6)."""
        if self._line is not None:
            self._break(reason)

    def _take_on(self, partition: Partition) -> None:
        """Put a log into the follower's role (INV-RFN2)."""
        known = noted_high_watermark(partition)
        partition.become_mirror()
        partition.rewind_cut(0, is_end=False)
        partition.commit_up_to(known)
        partition.trimming.leader_keeps_from = 0
        self._logs[partition.key] = partition
        partition.copies.tell_durable(partial(self._on_durable, partition))
        self._tell(LogAdded(partition.key, local_log(partition)))

    def _remove(self, key: LogKey) -> None:
        partition = self._logs.pop(key)
        self.readers.gone(partition)
        _let_go(partition)
        self._moved.pop(key, None)
        self._behind.pop(key, None)
        self._tell(LogRemoved(key))

    def _on_durable(self, partition: Partition) -> None:
        if not self._moved:
            asyncio.get_running_loop().call_soon(self._tell_durable)
        self._moved[partition.key] = partition

    def _tell_durable(self) -> None:
        moved, self._moved = self._moved, {}
        stopped = [key for key, partition in moved.items() if partition.failed is not None]
        for key in stopped:
            del moved[key]
            if key in self._logs:
                self._remove(key)
        if stopped:
            self._look_for_stopped()
        if moved:
            self._tell(LogsDurable({key: log.commits.durable_end for key, log in moved.items()}))

    # -- the core --------------------------------------------------------------------------------

    def _tell(self, event: FollowerEvent) -> None:
        """Tell the core, at once or when it has its turn (INV-RFN1)."""
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._events:
                event = self._events.popleft()
                for effect in self._core.step(event, self._parts.line.clock.monotonic_ms()):
                    self._perform(effect)
                if self._started:
                    self._events.append(LogsStartAt(self._started))
                    self._started = {}
        finally:
            self._is_stepping = False
        if self._is_on and self._core.waits_for_time:
            self._ticks.set()

    def _perform(self, effect: FollowerEffect) -> None:
        match effect:
            case Connect() | Disconnect() | CheckEpochs() | SendFetch() | SendReport():
                self._perform_on_line(effect)
            case AppendSlices(slices):
                for part in slices:
                    self._append(part)
            case HighWatermark(key, offset):
                if key in self._logs:
                    self._logs[key].commit_up_to(offset)
            case CutLog() | StartAt() | LogStart() | DivergedBelowHighWatermark():
                self._perform_on_log(effect)
            case _:
                assert_never(effect)

    # -- logs ------------------------------------------------------------------------------------

    def _append(self, part: Slice) -> None:
        """Write what the leader sent of a log; what it does not take ends the session, as the core counts it as written."""
        partition = self._logs.get(part.key)
        if partition is None:
            return
        sent, data = self._answer[part.key]
        writer = partition.writer
        writer.cleaned_at_primary = max(writer.cleaned_at_primary, sent.cleaned_below)
        dropped_below = sent.cleaned_below if sent.drops is None else sent.drops[0]
        writer.dropped_at_primary = max(writer.dropped_at_primary, dropped_below)
        try:
            end_offset = writer.append_mirrored(data)
        except PartitionFailed:
            self._give_up(part.key)
        except (LogError, BatchError) as error:
            self._break(f"{partition.tp} does not take what the leader sent: {error}")
        else:
            if end_offset != part.end_offset:
                self._break(
                    f"{partition.tp} ends at {end_offset}, the leader spoke of {part.end_offset}"
                )

    def _perform_on_log(
        self, effect: CutLog | StartAt | LogStart | DivergedBelowHighWatermark
    ) -> None:
        partition = self._logs.get(effect.key)
        if partition is None:
            return
        try:
            match effect:
                case CutLog(_, to_offset):
                    _cut(partition, to_offset)
                case StartAt(_, offset):
                    _log.warning(
                        "%s starts again at %d, as the leader's does", partition.tp, offset
                    )
                    partition.start_at(offset)
                    partition.commit_up_to(offset)
                case LogStart(_, offset):
                    self._start_as_the_leader(partition, offset)
                case DivergedBelowHighWatermark(_, meets_at, high_watermark):
                    self._diverged(partition, meets_at, high_watermark)
                case _:
                    assert_never(effect)
        except LogError as error:
            if not isinstance(effect, LogStart):
                partition.stop(f"it cannot be cut as the leader's log was: {error}")
            else:
                _log.warning("%s keeps what the leader has deleted: %s", partition.tp, error)
        if partition.failed is not None:
            self._give_up(effect.key)
        elif isinstance(effect, StartAt):
            self._started[effect.key] = partition.log_start_offset

    def _start_as_the_leader(self, partition: Partition, offset: int) -> None:
        """Delete what the leader has deleted, or void what it has not (T14), and tell the core when that is durable; raises LogError."""
        if offset < partition.log_start_offset:
            partition.retention.take_back_start(offset)
        session = None if self._line is None else self._line.session
        partition.retention.forget_below(offset, partial(self._start_kept, partition, session))

    def _start_kept(self, partition: Partition, session: object) -> None:
        """Have the core told, of all logs of a turn at once: of what was said in this session (INV-RPF8)."""
        if self._line is None or self._line.session != session or not self._is_on:
            return
        if self._logs.get(partition.key) is not partition:
            return
        if not self._started and not self._is_stepping:
            asyncio.get_running_loop().call_soon(self._tell_started)
        self._started[partition.key] = partition.log_start_offset

    def _tell_started(self) -> None:
        started, self._started = self._started, {}
        if started:
            self._tell(LogsStartAt(started))

    def _diverged(self, partition: Partition, meets_at: int, high_watermark: int) -> None:
        cut = self._parts.cut_below()
        if cut is None:
            self.disputed.add(partition.key)
            partition.stop(
                f"it parts from the leader's log at {meets_at}, and what lies below {high_watermark} was committed"
                " here: a disk has lied, or somebody led who was not in sync. Nothing was cut; keep the folder, and let"
                " this node join again with an empty one"
            )
            return
        _log.warning("%s is cut from %d to %d, below HW %d: the region that acts has another history from there on",
                     partition.tp, partition.log_end_offset, meets_at, high_watermark)  # fmt: skip
        self._remove(partition.key)
        self._cuts.begin(partition, meets_at, cut)

    def _give_up(self, key: LogKey) -> None:
        if key in self._logs:
            self._remove(key)
        self._look_for_stopped()

    # -- the connection --------------------------------------------------------------------------

    def _perform_on_line(
        self, effect: Connect | Disconnect | CheckEpochs | SendFetch | SendReport
    ) -> None:
        line = self._line
        match effect:
            case Connect(session, leader, leader_epoch):
                self._end_line()
                self._line = ReplicaLine(
                    session, leader, leader_epoch, self._parts.line, self, self._parts.lineage()
                )
                self._lines.append(self._line)
                self._begins.set()
            case Disconnect():
                self._end_line()
            case CheckEpochs():
                if line is not None and line.is_let_in:
                    line.check(effect)
            case SendFetch():
                if line is not None and line.is_let_in:
                    line.fetch(effect)
            case SendReport():
                if line is not None and line.is_let_in:
                    line.report(effect)
            case _:
                assert_never(effect)

    def _end_line(self) -> None:
        self.readers.end()
        line, self._line = self._line, None
        if line is not None and line in self._tasks:
            self._tasks[line].cancel()

    def _break(self, reason: str) -> None:
        """End the session: what lies between is compared anew, in the next one."""
        line = self._line
        self._say(reason)
        if line is not None:
            self._end_line()
            self._tell(ConnectionBroken(line.session))

    def _say(self, reason: str) -> None:
        if reason != self._last_reason:
            self._last_reason = reason
            _log.warning("replication from node %s was interrupted: %r", self._leader, reason[:300])

    def let_in(self, line: ReplicaLine) -> None:
        """See `Driver`."""
        if line is self._line:
            assert self._leader is not None, "a line leads to somebody"
            self._last_reason = ""
            self.readers.begin(self._leader, self._leader_epoch)
            for partition in self._logs.values():
                # An order may have deleted more than was known to be committed: the core counts on that, and says no more of it.
                partition.commit_up_to(noted_high_watermark(partition))
            logs = {key: local_log(partition) for key, partition in self._logs.items()}
            self._tell(Connected(line.session, logs))

    async def checked(self, line: ReplicaLine, found: Mapping[LogKey, LeaderLog | None]) -> None:
        """See `Driver`."""
        cuts = self._core.cuts_by(found)
        anew = [key for key in self._core.anew_by(found) if key not in cuts]
        later = {*cuts, *anew}
        self._compared(line, {key: found[key] for key in found if key not in later})
        for key in anew:  # each with its syncs in a turn of its own (INV-ANC1)
            self._compared(line, {key: found[key]})
            await asyncio.sleep(0)

        def cut(partition: Partition, offset: int) -> None:
            key, answer = partition.key, found[partition.key]
            if line is not self._line or self._logs.get(key) is not partition or answer is None:
                return
            starts_anew = offset < answer.log_start_offset  # all of it goes, by the core's word
            if not starts_anew and self._core.cuts_by({key: answer}).get(key) == offset:
                _cut(partition, offset)

        await cut_one_by_one(
            [(self._logs[key], offset) for key, offset in cuts.items() if key in self._logs],
            cut,
            lambda partition: self._compared(line, {partition.key: found[partition.key]}),
            self._stopped,
        )

    def _compared(self, line: ReplicaLine, found: Mapping[LogKey, LeaderLog | None]) -> None:
        if line is not self._line:
            return
        for key, answer in found.items():
            if answer is not None and key in self._logs:
                self._logs[key].writer.leader_starts = answer.starts
        self._tell(EpochsChecked(line.session, found))
        if not self.has_room:
            begins = {key: each.log_start_offset for key, each in found.items() if each is not None}
            self._note_starts({key: (start, start) for key, start in begins.items()})

    def _stopped(self, partition: Partition) -> None:
        if self._logs.get(partition.key) is partition:
            self._give_up(partition.key)

    def fetched(
        self, line: ReplicaLine, parts: list[tuple[ReplicaPart, memoryview]], *, acts: bool,
        takes_writes: bool,
    ) -> None:  # fmt: skip
        """See `Driver`; raises `CannotBe` while the disk has no room."""
        if line is not self._line:
            return
        self.shut_under = None if takes_writes else self._leader_epoch
        self.readers.heard(self._parts.line.clock.monotonic_ms(), acts=acts)
        full = self._parts.partitions.room.refusal
        if full is not None:
            starts = {p.key: (min(p.log_start_offset, p.position), p.kept_from) for p, _ in parts}
            self._note_starts(starts)  # so that room may be made: it takes nothing
            raise CannotBe(full)
        self._answer = {part.key: (part, data) for part, data in parts}
        slices = []
        for part, _ in parts:
            self._behind[part.key] = Behind(part.log_end_offset, part.unsent_bytes)
            # A log here never starts beyond its end.
            start = min(part.log_start_offset, part.end_offset)
            slices.append(
                Slice(
                    part.key,
                    part.position,
                    part.end_offset,
                    part.high_watermark,
                    start,
                    part.data_bytes,
                    None if part.drops is None else Drops(*part.drops),
                )
            )
        self._tell(Fetched(line.session, tuple(slices)))
        self._answer = {}
        if line is self._line:
            for partition in self._note_kept((part.key, part.kept_from) for part, _ in parts):
                self.readers.named(partition)

    def _note_starts(self, told: Mapping[LogKey, tuple[int, int | None]]) -> None:
        """Delete what the leader has deleted of the logs that are copied from it, as `told`: where each starts, and is kept from (INV-RFN9).

        Nothing is voided, and nothing is told: the session ends, and the next one counts on what it finds, as behind a restart. Where
        there is room by the first answer, that one names the start of each log again.
        """
        for partition in self._note_kept((key, kept_from) for key, (_, kept_from) in told.items()):
            start, _ = told[partition.key]
            partition.retention.forget_below(min(start, partition.log_end_offset))

    def _note_kept(self, told: Iterable[tuple[LogKey, int | None]]) -> list[Partition]:
        """Note from where on the leader has the bytes of the logs that are copied from it; return those (INV-RFN8)."""
        copied = [
            (self._logs[key], kept_from)
            for key, kept_from in told
            if self._core.stage(key) is Stage.COPIED and key in self._logs
        ]
        for partition, kept_from in copied:
            partition.trimming.leader_keeps_from = kept_from
        return [partition for partition, _ in copied]

    # -- tasks -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Connect when that is due, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            tasks.create_task(self._cuts.run())
            while True:
                await self._begins.wait()
                self._begins.clear()
                while self._lines:
                    line = self._lines.popleft()
                    if line is self._line:
                        task = self._tasks[line] = tasks.create_task(self._keep(line))
                        task.add_done_callback(partial(self._ended, line))

    def copies(self, key: LogKey, leader_epoch: LeaderEpoch) -> bool:
        """Return whether a log was compared with that of who leads under `leader_epoch`, and is copied from there now."""
        known = self._core.leader_epoch == leader_epoch
        return known and self._core.stage(key) is Stage.COPIED

    @property
    def serves_readers(self) -> bool:
        """See `Driver`."""
        return self.readers.is_open and self.readers.named_count >= len(self._logs)

    @property
    def has_room(self) -> bool:
        """See `Driver`."""
        return self._parts.partitions.room.refusal is None

    @property
    def taken_bytes_per_s(self) -> int:
        """See `Driver`."""
        return self._parts.taken_bytes_per_s()

    def image_changed(self) -> None:
        """The metadata have changed: whoever is in sync, or leads, or acts may be another one now (INV-RRD2)."""
        self.readers.look(self._parts.line.clock.monotonic_ms())

    def _ended(self, line: ReplicaLine, _task: asyncio.Task[None]) -> None:
        del self._tasks[line]

    async def _keep(self, line: ReplicaLine) -> None:
        reason = await line.run()
        if line is self._line:
            self._line = None
            self.readers.end()
            self._say(reason)
            self._tell(ConnectionBroken(line.session))

    async def _tick(self) -> None:
        while True:
            await self._ticks.wait()
            await self._parts.line.clock.sleep_ms(TICK_MS)
            if not self._is_on:
                continue
            self._tell(Ticked())
            self.readers.look(self._parts.line.clock.monotonic_ms())
            if not (self._core.waits_for_time or self.readers.wants_looks):
                self._ticks.clear()

    # -- for people ------------------------------------------------------------------------------

    @property
    def is_connected(self) -> bool:
        """Return whether the leader has let this in."""
        return self._line is not None and self._line.is_let_in

    def state(self) -> dict[str, object]:
        """Return whom this follows and what it lacks, as JSON-able values; None where the leader was not heard yet."""
        connected = self.is_connected
        behind, records, size_bytes = 0, 0, 0
        for key, partition in self._logs.items():
            known = self._behind.get(key)
            if self._core.stage(key) is not Stage.COPIED:
                behind += 1
            elif known is not None and known.leaders_end > partition.log_end_offset:
                behind += 1
                records += known.leaders_end - partition.log_end_offset
                size_bytes += known.unsent_bytes
        return {
            "leader": None if self._leader is None else str(self._leader),
            "leader_epoch": self._leader_epoch,
            "connected": connected,
            "logs": len(self._logs),
            "logs_behind": behind,
            "records_behind": records if connected else None,
            "bytes_behind": size_bytes if connected else None,
            "last_error": self._last_reason,
        }


def _cut(partition: Partition, offset: int) -> None:
    """Cut a log, if that was not done before the core was told (INV-ANC1); raises LogError."""
    if offset < partition.log_end_offset:
        _log.warning("%s is cut from %d to %d: the leader has another history from there on",
                     partition.tp, partition.log_end_offset, offset)  # fmt: skip
        partition.truncate_to(offset, settles=False)


def _let_go(partition: Partition) -> None:
    """Hold nothing of a log that is no copy of this any more."""
    partition.copies.tell_durable(None)
    partition.trimming.leader_keeps_from = None
