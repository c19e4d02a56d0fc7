"""What one follower is sent: from where, how much at a time, and when.

INV-RSN1 an answer goes out as soon as a log has something that the follower was not sent, or its start moved: a turn of the loop before
         the group commit begins that syncs the same here (INV-CM7), so there is one for each. Where only HW moved, that goes with the
         next of these, or by itself after `HW_WAIT_MS`. A waiting fetch costs nothing: appends wake it, nobody polls
INV-RSN2 what leaves is what is written here, synced or not: a follower may be durable first, and HW counts this node, too (INV-RPL1)
INV-RSN3 logs take turns, and an answer has at most `ANSWER_BYTES_MAX` and its last log's share; it is read for no longer than
         `COLLECT_MS`
INV-RSN6 an answer has at most `LOGS_AT_ONCE` logs: the loop that puts it together, and the one that takes it in, go on in between. What is
         left goes with the next one
INV-RSN10 an answer has at most COPIED_BATCHES_MAX batches: the follower appends all of it in one step
INV-RSN7 an answer says that the region takes writes only if it did before its first log was looked at, and does behind the last one: what
         it has is shown to readers by that
INV-RSN8 a follower that is not in sync is answered when `replication.pacing` lets it, with as much as that says; where that is not within the
         time that it waits, it is told that there is nothing, so that it knows of this node
INV-RSN9 each answer says whether this node's gate is open; where that is not as it was said last, the next one goes out at once
INV-RSN4 what memory has not is read in by a thread (INV-CO1)
INV-RSN11 a log that could not be read is looked at again once something has changed of it, also while it was read: a range that was
         mended is sent, though nobody appends
INV-RSN5 a session knows logs that are led here, and no other: what else a follower names is not kept

Fetches of one session are answered in the order in which they came.
Not here: who may fetch, what a report means (`replica_leading`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from idempotency.identity import LogKey
from idempotency.ports import Clock
from idempotency.record_batch import Buffer
from region_broker.limits import COPIED_BATCHES_MAX, MIB
from region_broker.log import group_commit
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import LogError, OffsetOutOfRange
from region_broker.partitions.partition import Partition
from region_broker.region.cluster.replica_logs import drops_of
from region_broker.region.cluster.replica_messages import (
    OUT_OF_RANGE,
    ReplicaFetch,
    ReplicaFetched,
    ReplicaPart,
)
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import Reply
from region_broker.replication.pacing import CatchUpPace

LOG_BYTES_MAX: Final = 1 * MIB
ANSWER_BYTES_MAX: Final = 8 * MIB
WAIT_MS_MAX: Final = 2_000
COLLECT_MS: Final = 1_000
LOGS_AT_ONCE: Final = 200
"""A leader looks at a log for 20 us, a follower needs 40 us to take it in."""
GATHER_QUIET_TURNS: Final = group_commit.GATHER_QUIET_TURNS - 1
GATHER_TURNS_MAX: Final = group_commit.GATHER_TURNS_MAX - 1
HW_WAIT_MS: Final = 5
"""How much later than it might a follower's readers see what is committed, where nothing else is written."""
COUNTED_BYTES_MAX: Final = 64 * MIB
"""What lies behind an answer is counted up to here."""


def always() -> bool:
    """Return True: nobody closes a gate here."""
    return True


class Gates(NamedTuple):
    """What each answer says of this node, as `ReplicaFetched` has it."""

    acts: Callable[[], bool]
    takes_writes: Callable[[], bool] = always


class Copying:
    """Which sessions copy which log: whom an append wakes. Of one leader epoch."""

    def __init__(self) -> None:
        """Nobody copies."""
        self._sessions: dict[LogKey, tuple[FetchSession, ...]] = {}
        self._ends: dict[LogKey, Callable[[], None]] = {}

    def begin(self, partition: Partition, session: "FetchSession") -> None:
        """Wake `session` at what happens to a log from now on."""
        key = partition.key
        others = self._sessions.get(key, ())
        if session in others:
            return
        self._sessions[key] = (*others, session)
        if others:
            return
        partition.copies.tell_appends(partial(self.moved, key))
        unwatch = partition.watchers.add(partial(self._changed, partition))

        def end() -> None:
            partition.copies.tell_appends(None)
            unwatch()

        self._ends[key] = end

    def end(self, key: LogKey, session: "FetchSession") -> None:
        """Wake it no more."""
        left = tuple(other for other in self._sessions.get(key, ()) if other is not session)
        if left:
            self._sessions[key] = left
        elif self._sessions.pop(key, None):
            self._ends.pop(key)()

    def moved(self, key: LogKey) -> None:
        """A batch was written."""
        for session in self._sessions.get(key, ()):
            session.mark(key)

    def committed(self, key: LogKey) -> None:
        """HW moved."""
        for session in self._sessions.get(key, ()):
            session.mark_committed(key)

    def _changed(self, partition: Partition) -> None:
        for session in self._sessions.get(partition.key, ()):
            session.changed(partition)


class FetchSession:
    """One follower's fetch positions: every log goes on where the last answer ended."""

    def __init__(
        self,
        logs: Mapping[LogKey, Partition],
        copying: Copying,
        cold_reads: ColdReads,
        clock: Clock,
        gates: Gates,
        pace: CatchUpPace,
    ) -> None:
        """Send what `logs` has, by and by; nothing is asked for yet."""
        self.pace: Final = pace
        self._reported = asyncio.Event()
        self.positions: dict[LogKey, int] = {}
        self._logs = logs
        self._copying = copying
        self._cold_reads = cold_reads
        self._clock = clock
        self._acts, self._takes_writes = gates
        self._told_takes_writes: bool | None = None
        """What was said last of that."""
        self._told: dict[LogKey, tuple[int, int, int]] = {}
        """HW, where the log starts, and where its bytes begin, as the follower was told last."""
        self._moved: dict[LogKey, None] = {}
        self._refused: set[LogKey] = set()
        """The logs that could not be read when they were looked at last, or are being read."""
        self._wakes = asyncio.Event()
        self._turn = asyncio.Lock()
        self._closed = False
        self._marks = 0
        self._hw_timer: asyncio.TimerHandle | None = None

    # -- what is asked for -----------------------------------------------------------------------

    def begin(self, key: LogKey, position: int) -> None:
        """Send a log from `position` on (INV-RSN5)."""
        partition = self._logs.get(key)
        if partition is None or self._closed:
            return
        self.positions[key] = position
        self._told.pop(key, None)
        self._copying.begin(partition, self)
        self.mark(key)

    def forget(self, key: LogKey) -> None:
        """Send nothing of a log any more."""
        self.positions.pop(key, None)
        self._told.pop(key, None)
        self._moved.pop(key, None)
        self._refused.discard(key)
        self.pace.forget(key)
        self._reported.set()
        self._copying.end(key, self)

    def mark(self, key: LogKey) -> None:
        """Look at a log in the next answer, which goes out now (INV-RSN1)."""
        self._moved[key] = None
        self._marks += 1
        self._wakes.set()

    def mark_committed(self, key: LogKey) -> None:
        """Look at a log in the next answer, which goes out soon (INV-RSN1)."""
        self._moved[key] = None
        if self._hw_timer is None and not self._wakes.is_set():
            loop = asyncio.get_running_loop()
            self._hw_timer = loop.call_later(HW_WAIT_MS / 1000, self._hw_is_due)

    def _hw_is_due(self) -> None:
        self._hw_timer = None
        if self._moved:
            self._wakes.set()

    def gate_moved(self) -> None:
        """Answer now where the gate is not as it was said last (INV-RSN9)."""
        self._wakes.set()

    def changed(self, partition: Partition) -> None:
        """Look at a log whose start has moved, or whose first bytes have gone, or that could not be read (INV-RSN11); called at other changes, too."""
        key = partition.key
        told = self._told.get(key)
        has_moved = told is not None and told[1:] != _starts(partition)
        if has_moved or key in self._refused:
            self._refused.discard(key)
            self.mark(key)

    def close(self) -> None:
        """End: fetches that wait are answered."""
        self._closed = True
        if self._hw_timer is not None:
            self._hw_timer.cancel()
        for key in list(self.positions):
            self.forget(key)
        self._wakes.set()
        self._reported.set()

    def durable(self, ends: Mapping[LogKey, int]) -> None:
        """The follower has said how far logs are durable there."""
        self.pace.durable(ends)
        self._reported.set()

    # -- answers ---------------------------------------------------------------------------------

    async def answer(self, request: ReplicaFetch) -> Reply:
        """Answer in turn; wait for news at most as long as asked. Raises `PeerRefused`."""
        async with self._turn:
            until_ms = self._clock.monotonic_ms() + min(request.wait_ms_max, WAIT_MS_MAX)
            while True:
                await self._wait(until_ms - self._clock.monotonic_ms())
                if not await self._its_turn(until_ms):
                    return Reply(self._fetched(()))
                begun_ms = self._clock.monotonic_ms()
                await self._gather()
                reply = await self._collect(request)
                if reply is not None:
                    self._note(reply, begun_ms)
                    return reply
                is_told = self._told_takes_writes == self._takes_writes()
                if self._closed or not is_told or self._clock.monotonic_ms() >= until_ms:
                    return Reply(self._fetched(()))

    def _fetched(self, parts: tuple[ReplicaPart, ...], *, acted: bool = True) -> ReplicaFetched:
        self._told_takes_writes = takes_writes = self._takes_writes()
        return ReplicaFetched(parts=parts, acts=acted and self._acts(), takes_writes=takes_writes)

    async def _wait(self, wait_ms: int) -> None:
        if self._closed or self._wakes.is_set() or wait_ms <= 0:
            return
        # No task of its own: each would cost turns, and what is written is to leave before a group commit holds the loop up.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_ms / 1000):
                await self._wakes.wait()

    async def _its_turn(self, until_ms: int) -> bool:
        """Wait until an answer may go; return False where it may not by then (INV-RSN8)."""
        while self.pace.applies() and not self._closed:
            now_ms = self._clock.monotonic_ms()
            wait_ms = self.pace.wait_ms(now_ms)
            if wait_ms == 0:
                break
            if now_ms >= until_ms:
                return False
            self._reported.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_ms, until_ms - now_ms) / 1000):
                    await self._reported.wait()
        return True

    def _note(self, reply: Reply, begun_ms: int) -> None:
        """Tell the pace of an answer to who is not in sync."""
        if not self.pace.applies():
            return
        fetched, now_ms = reply.message, self._clock.monotonic_ms()
        assert isinstance(fetched, ReplicaFetched)
        filled = [part for part in fetched.parts if part.data_bytes]
        self.pace.sent(
            {part.key: part.end_offset for part in filled}, sum(part.data_bytes for part in filled), took_ms=now_ms - begun_ms,
            now_ms=now_ms, total_bytes=self._total_bytes,
        )  # fmt: skip

    def _total_bytes(self) -> int:
        found = (self._logs.get(key) for key in self.positions)
        return sum(partition.log.size_bytes for partition in found if partition is not None)

    async def _gather(self) -> None:
        """Let those append whose requests are here already, as the group commit does (INV-RSN1)."""
        quiet_turns = 0
        for _ in range(GATHER_TURNS_MAX):
            before = self._marks
            await asyncio.sleep(0)
            quiet_turns = 0 if self._marks != before else quiet_turns + 1
            if quiet_turns == GATHER_QUIET_TURNS:
                return

    async def _collect(self, request: ReplicaFetch) -> Reply | None:
        self._wakes.clear()
        parts: list[ReplicaPart] = []
        data: list[Buffer] = []
        room, batches_left = min(request.bytes_max, ANSWER_BYTES_MAX), COPIED_BATCHES_MAX
        if self.pace.applies():
            room = min(room, self.pace.answer_bytes)
        waiting, self._moved = self._moved, {}
        left, unfinished = list[LogKey](), list[LogKey]()
        begun_ms, acted = self._clock.monotonic_ms(), self._acts()
        for key in waiting:
            is_full = room <= 0 or batches_left <= 0 or len(parts) == LOGS_AT_ONCE
            if is_full or self._clock.monotonic_ms() > begun_ms + COLLECT_MS:
                left.append(key)
                continue
            reading = partial(self._take, key, min(room, LOG_BYTES_MAX), batches_left)
            taken = await self._cold_reads.read(reading)
            if taken is None:
                continue
            part, part_data, batch_count = taken
            parts.append(part)
            batches_left -= batch_count
            if part_data:
                data.append(part_data)
                room -= len(part_data)
                if part.end_offset < part.log_end_offset:
                    unfinished.append(key)
        moved_meanwhile, self._moved = self._moved, {}
        for key in (*left, *moved_meanwhile, *unfinished):
            self.mark(key)
        if not parts:
            return None
        return Reply(self._fetched(tuple(parts), acted=acted), data)

    def _take(
        self, key: LogKey, bytes_max: int, batches_max: int, *, wait: bool
    ) -> tuple[ReplicaPart, Buffer, int] | None:
        position, partition = self.positions.get(key), self._logs.get(key)
        if position is None or partition is None:
            return None
        marks = partition.high_watermark, *_starts(partition)
        if position == partition.log_end_offset and self._told.get(key) == marks:
            return None
        # Before a thread reads for it: what it fails on may be mended before that is known here.
        self._refused.add(key)
        try:
            data, end_offset, _, batch_count = partition.reader.read_replica(
                position, bytes_max, wait=wait, batches_max=batches_max
            )
            unsent_bytes = 0
            if end_offset < partition.log_end_offset:
                unsent_bytes = partition.reader.bytes_up_to_end(
                    end_offset, COUNTED_BYTES_MAX, wait=wait
                )
        except OffsetOutOfRange as error:
            # The follower compares all its logs anew, in its next session.
            raise PeerRefused(OUT_OF_RANGE, f"{key.encode()}: {error}") from error
        except LogError:
            return None  # said and counted by the partition; the other logs go on
        self._refused.discard(key)
        self.positions[key] = end_offset
        self._told[key] = marks
        part = ReplicaPart(
            key.topic_id, key.partition, position, end_offset, len(data), *marks[:2], partition.log.cleaning.holes_below,
            partition.log_end_offset, unsent_bytes, marks[2], drops_of(partition) if self.pace.applies() else None,
        )  # fmt: skip
        return part, data, batch_count


def _starts(partition: Partition) -> tuple[int, int]:
    """Return where a log starts for readers, and where its bytes begin."""
    return partition.log_start_offset, partition.kept_from
