"""One Fetch's partitions: looked at, waited for, read.

INV-H9  the first batch of the first partition that has one is returned whatever its size (C39, KIP-74)
INV-FRD2 a reading looks at all its partitions before anything is read in for it, and what was read in is read with the
        rest, again: what is told stays one reading
INV-FRD3 a reading gives out READ_BATCHES_MAX batches at most, over all its partitions: then its bytes are used up (INV-PT14)
INV-FRD4 so they are once it names READ_ABORTED_MAX aborted transactions: one batch may lie in very many, in each partition anew. What is given out of a
         partition is given out with all of them, or not at all, as a reader hides what they name (C38)
INV-FRD5 a reading gives way after FETCH_STEP_BYTES, and takes FETCH_PARTITION_BYTES_MAX of one partition (but INV-H9): what one reader asks for holds nobody else up
INV-FRD6 what it has found counts in the memory budget from where it gives way, and it goes on by what is left then: readings that go on beside each
         other hold no more than the budget together, beside one step of one of them
INV-FRD7 what has waited is read in the turns of who asks (`ports.turn_budget`), and what a reading looks at and gives out counts in them: one append, or one moment,
         that ends the waits of thousands has few of them read before others are served
A wait ends once; the reading is made in a later turn of the loop, never within the change that ended it.
Not here: who may ask and what a session is told (`fetch`), who tells of changes (`partitions.purgatory`).
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from idempotency.pieces import Pieces
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may_read_topic
from region_broker.handlers.dispatch.nodes import Places
from region_broker.handlers.dispatch.partitions import find_led, leader_epoch_error
from region_broker.handlers.dispatch.services import Services
from region_broker.limits import (
    ABORTED_ENTRY_BYTES,
    ELEMENTS_AT_ONCE_MAX,
    FETCH_BYTES_MAX,
    FETCH_PARTITION_BYTES_MAX,
    FETCH_STEP_BYTES,
    READ_ABORTED_MAX,
    READ_BATCHES_MAX,
    RECORD_BYTES_A_COST,
    REQUEST_COST_MIN,
    ROW_COST,
    YIELD_ROWS,
)
from region_broker.log.failures import (
    ColdRange,
    CorruptRange,
    OffsetOutOfRange,
    PartitionFailed,
    SealedRecords,
)
from region_broker.log.segment_list import FIRST_LOOKS_MAX
from region_broker.partitions.fetch_sessions import FetchSession, Wanted
from region_broker.partitions.opening_sealed import Taken
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.purgatory import ReadableWait
from region_broker.security.identity import Identity, host_of
from region_broker.wire.codec.fast_paths.fetch import NO_REPLICA, FetchedRow
from region_broker.wire.memory_budget import Share

LOOKS_MAX: Final = 10 * FIRST_LOOKS_MAX
"""Into how many segments of all its partitions a reading looks before it has read in what it lacks (INV-SGL1): some 60 ms."""
LOGS_A_TRY: Final = LOOKS_MAX // FIRST_LOOKS_MAX
"""Of so many logs one try reads in what a look at each of them lacks: a reading of more has as many more tries before it waits (INV-CO2)."""
_LEADER_MAY_READ: Final = (ErrorCode.corrupt_message, ErrorCode.topic_authorization_failed)
"""What keeps one node from giving out what another one may (INV-HRD4)."""


class Read(NamedTuple):
    """What was found in one partition."""

    item: Wanted
    row: FetchedRow


class Reading:
    """Looks at what is wanted, waits, and reads it; in a session, that is what is not quiet there, in bounded parts."""

    __slots__ = (
        "_aborted_left", "_batches_left", "_bytes_max", "_bytes_min", "_gives_records", "_identity", "_isolation", "_judges", "_met_at", "_named", "_nearer", "_on_over", "_peer", "_rack",
        "_services", "_session", "_share", "_tries", "_wait", "wait_ms_max",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - the rest by keyword
        self,
        services: Services,
        wanted: Sequence[Wanted] | FetchSession,
        isolation: Isolation,
        *,
        bytes_min: int,
        bytes_max: int,
        wait_ms_max: int,
        identity: Identity,
        peer: str = "",
        rack: str = "",
        met_at: Places | None = None,
    ) -> None:
        """Call `begin` next, then `read`; `identity`: who reads, from the address `peer`; `met_at`: see `ConnectionState`."""
        self._identity = identity
        self._peer = peer
        self._judges = True
        self._services = services
        self._session = wanted if isinstance(wanted, FetchSession) else None
        self._named = () if isinstance(wanted, FetchSession) else wanted
        self._isolation = isolation
        self._bytes_min = bytes_min
        self._bytes_max = min(max(0, bytes_max), FETCH_BYTES_MAX)
        self.wait_ms_max = wait_ms_max
        self._batches_left = READ_BATCHES_MAX
        self._aborted_left = READ_ABORTED_MAX
        self._wait: ReadableWait | None = None
        self._on_over: Callable[[], None] | None = None
        self._tries = 0
        self._rack = rack
        self._met_at = met_at
        self._gives_records = True
        self._nearer: Sequence[int] = ()
        self._share = Share()

    def tell_only(self) -> None:
        """Read no records, and wait for none: tell offsets at once, as to a reader that is beyond its quota."""
        self._gives_records = False
        self._bytes_max = 0

    def _wanted(self) -> Sequence[Wanted]:
        if self._session is None:
            return self._named
        return tuple(islice(self._session.dirty.values(), ELEMENTS_AT_ONCE_MAX))

    def begin(self, on_over: Callable[[], None]) -> Pieces[None]:
        """Call `on_over` once there is enough, something is to be told, or the time is over; perhaps at once."""
        self._judges = self._services.authorizer.in_force
        enough_bytes = min(self._bytes_min, self._left_bytes())
        if enough_bytes <= 0 or self.wait_ms_max <= 0:
            on_over()
            return
        self._nearer = self._services.nearer_nodes(self._rack, self._met_at)
        self._on_over = on_over
        self._wait = ReadableWait(enough_bytes, self._enough)
        if self._session is not None:
            self._session.wait(self._dirty, self._enough)
        for done, item in enumerate(self._wanted(), 1):
            if not self._look_at(item):
                self._over()
                return
            if done % YIELD_ROWS == 0:
                yield
                if not self._waits:
                    return
        self._services.deadlines.add(self, self.wait_ms_max / 1000)

    @property
    def _waits(self) -> bool:
        return self._on_over is not None

    def _look_at(self, item: Wanted) -> bool:
        """Look at one partition; return whether there is still reason to wait."""
        assert self._wait is not None
        partition = self._found(item)
        if isinstance(partition, ErrorCode) or self._nearer_node(partition, item) != NO_REPLICA:
            return False
        self._wait.look_at(partition, item.offset, self._isolation)
        return not self._wait.has_enough

    def _dirty(self, item: Wanted) -> None:
        """Look at what is quiet no more; called within the change."""
        if self._wait is not None and not (self._look_at(item) and item.shows_as_before):
            self._enough()

    @property
    def asked_by(self) -> str:
        """Return who counts as one where those who read take turns."""
        return self._identity.counted_as(host_of(self._peer))

    def _enough(self) -> None:
        """See `ReadableWait`: within a change of a partition, so the reading is left for later (INV-FRD7)."""
        self._services.deadlines.turns.later(self.asked_by, self._over)

    def expire(self) -> None:
        """See `Expiring`: with many others perhaps."""
        self._enough()

    def _over(self) -> None:
        on_over = self._on_over
        if on_over is not None:
            self.end()
            self._services.deadlines.turns.spend(REQUEST_COST_MIN)
            on_over()

    def end(self) -> None:
        """Wait no more, and call nobody."""
        self._on_over = None
        if self._wait is not None:
            self._wait.end()
            self._wait = None
            self._services.deadlines.drop(self)
            if self._session is not None:
                self._session.wait_no_more(self._enough)

    def _left_bytes(self) -> int:
        return min(self._bytes_max, self._services.memory.left_bytes // 2)

    def read(self) -> Pieces[list[Read] | ColdRange]:
        """Read in the order wanted, until the request's bytes are used up.

        Returns what is not in memory, if anything is not (INV-FRD2): have it read in, and read again. It is no raised
        error: the frames that one keeps alive hold what was found, in a cycle, until the collector comes.
        """
        partitions = self._services.partitions
        wanted = self._wanted()
        wait = partitions.cold_reads.may_wait(self._tries // (1 + len(wanted) // LOGS_A_TRY))
        taken: list[Taken] = []
        partitions.opened_aside.begin_step(taken)
        self._nearer = self._services.nearer_nodes(self._rack, self._met_at)
        left_bytes = self._left_bytes()
        self._batches_left, self._aborted_left = READ_BATCHES_MAX, READ_ABORTED_MAX
        self._judges = self._services.authorizer.in_force  # it may be since it waits
        first = self._gives_records and self._services.memory.left_bytes > 0
        found: list[Read] = []
        lacking: list[ColdRange] = []
        looks_left = LOOKS_MAX
        held_bytes = step_bytes = 0
        for seen, item in enumerate(wanted, 1):
            if (
                seen % YIELD_ROWS == 0 or step_bytes >= FETCH_STEP_BYTES
            ):  # the same when it reads again (INV-OPS4)
                partitions.opened_aside.end_step()
                self._spend(YIELD_ROWS, step_bytes)
                held_bytes, step_bytes = held_bytes + step_bytes, 0
                self._services.memory.hold(self._share, held_bytes)
                yield
                left_bytes = min(left_bytes, self._left_bytes())
                partitions.opened_aside.begin_step(taken)
            try:
                row = self._row(item, left_bytes, first=first, wait=wait)
            except ColdRange as cold:
                lacking += (cold.with_traceback(None), *cold.others)
                looks_left -= len(cold.others) if cold.is_a_try else FIRST_LOOKS_MAX
                if looks_left <= 0:
                    break  # what the others lack is read in behind that
                left_bytes -= cold.size_bytes
                first = False
                continue
            found.append(Read(item, row))
            if row.records:
                row_bytes = len(row.records) + ABORTED_ENTRY_BYTES * len(row.aborted or ())
                left_bytes -= row_bytes
                step_bytes += row_bytes
                first = False
        partitions.opened_aside.end_step()
        self._spend(len(found) % YIELD_ROWS, step_bytes)
        if lacking:
            partitions.opened_aside.give_back(taken)
            return self._lacks(lacking)
        self._services.memory.hold(self._share, held_bytes + step_bytes)  # until it is written
        return found

    def _lacks(self, lacking: Sequence[ColdRange]) -> ColdRange:
        self._tries += any(each.is_a_try for each in lacking)
        lacking[0].others = tuple(lacking[1:])
        return lacking[0]

    def _spend(self, rows: int, read_bytes: int) -> None:
        """Count what a step has looked at and read for that turn of the loop (INV-FRD7)."""
        turns = self._services.deadlines.turns
        turns.spend(ROW_COST * rows + read_bytes // RECORD_BYTES_A_COST)

    def let_go(self) -> None:
        """Hold nothing more of what was found: it is answered, or dropped."""
        self._services.memory.hold(self._share, 0)

    def holds(self, read: Read) -> Partition | None:
        """Return the partition if what was read of it is all there is to be told; None if there is more or an error."""
        item, row = read
        if row.records or row.error_code or row.preferred != NO_REPLICA:
            return None
        partition = self._found(item)
        if isinstance(partition, ErrorCode):
            return None
        told = (row.high_watermark, row.last_stable_offset, row.log_start_offset)
        ends = (
            partition.sight.visible_end,
            partition.sight.last_stable_offset,
            partition.log_start_offset,
        )
        if told != ends or partition.reader.readable_bytes(item.offset, self._isolation, 1):
            return None
        return partition

    def _found(self, item: Wanted) -> Partition | ErrorCode:
        """Return the partition that is wanted, if who reads may: what was allowed when a session began need not be now (INV-HAZ2)."""
        if self._judges and not may_read_topic(self._services, self._identity, item.topic):
            return TOPIC_DENIED
        return find(self._services, item)

    def _row(self, item: Wanted, left_bytes: int, *, first: bool, wait: bool) -> FetchedRow:
        """Read one partition; `first`: nothing was found yet."""
        partition = self._found(item)
        if isinstance(partition, ErrorCode):
            return FetchedRow(item.index, int(partition))
        if not partition.sight.is_known:
            # INV-PT9, INV-PT10: an empty answer would say that the reader is at the end. It has waited as long as it wanted.
            return FetchedRow(item.index, int(ErrorCode.not_leader_or_follower))
        if partition.sight.is_copy_shown:
            return self._row_of_copy(partition, item, left_bytes, first=first, wait=wait)
        if (nearer := self._nearer_node(partition, item)) != NO_REPLICA:
            return self._sent_away(partition, item, nearer)
        return self._row_of(partition, item, left_bytes, first=first, wait=wait)

    def _nearer_node(self, partition: Partition, item: Wanted) -> int:
        """Return which node the reader of a partition is to ask instead (INV-HRD1); those of one rack share the partitions."""
        nearer = self._nearer
        if not nearer or not partition.is_leader:
            return NO_REPLICA
        if not partition.log_start_offset <= item.offset <= partition.high_watermark:
            return NO_REPLICA
        readers = self._services.readers
        if readers is None or not readers.have(partition.key, item.offset):
            return NO_REPLICA
        return nearer[item.index % len(nearer)]

    def _sent_away(self, partition: Partition, item: Wanted, node_id: int) -> FetchedRow:
        assert self._services.readers is not None
        self._services.readers.counts.sent_away += 1
        sight = partition.sight
        return FetchedRow(
            item.index, 0, sight.visible_end, sight.last_stable_offset, sight.log_start_offset, preferred=node_id
        )  # fmt: skip

    def _row_of_copy(
        self, partition: Partition, item: Wanted, left_bytes: int, *, first: bool, wait: bool
    ) -> FetchedRow:
        """Read a follower's copy, which is behind the leader's log (INV-HRD3)."""
        if item.offset < partition.log_start_offset:
            return FetchedRow(item.index, int(ErrorCode.not_leader_or_follower))
        if item.offset > partition.high_watermark:
            return FetchedRow(item.index, int(ErrorCode.offset_not_available))
        row = self._row_of(partition, item, left_bytes, first=first, wait=wait)
        readers = self._services.readers
        assert readers is not None, "a copy is shown in a region of several nodes"
        readers.counts.copy_bytes += len(row.records)
        if row.error_code not in _LEADER_MAY_READ:
            return row
        readers.stop_serving(partition.key, item.offset, str(partition.tp))
        return FetchedRow(item.index, int(ErrorCode.not_leader_or_follower))

    def _row_of(
        self, partition: Partition, item: Wanted, left_bytes: int, *, first: bool, wait: bool
    ) -> FetchedRow:
        # Bytes that are used up still tell offsets: an empty reading at the end of what is readable.
        is_full = self._batches_left <= 0 or self._aborted_left <= 0
        bytes_max = (
            0 if is_full else max(0, min(left_bytes, item.max_bytes, FETCH_PARTITION_BYTES_MAX))
        )
        try:
            found = partition.reader.fetch(
                item.offset, bytes_max, self._isolation, first_batch_always=first, wait=wait,
                batches_max=max(1, self._batches_left),
            )  # fmt: skip
        except OffsetOutOfRange:
            sure = self._services.is_sure(partition)  # INV-HRD5
            error = ErrorCode.offset_out_of_range if sure else ErrorCode.not_leader_or_follower
            return FetchedRow(item.index, int(error))
        except CorruptRange:
            return FetchedRow(item.index, int(ErrorCode.corrupt_message))
        except SealedRecords:
            # INV-OPS1. No client goes on by itself after this one, and every client says it to its application.
            return FetchedRow(item.index, int(ErrorCode.topic_authorization_failed))
        except PartitionFailed:
            return FetchedRow(item.index, int(ErrorCode.kafka_storage_error))
        self._batches_left -= found.batch_count
        aborted = None
        if self._isolation is Isolation.READ_COMMITTED:
            aborted = [(txn.producer_id, txn.first_offset) for txn in found.aborted]
            self._aborted_left -= len(aborted)
        return FetchedRow(
            item.index, 0, found.high_watermark, found.last_stable_offset, found.log_start_offset,
            aborted, found.data, diverging=found.diverging,
        )  # fmt: skip


def find(services: Services, item: Wanted) -> Partition | ErrorCode:
    """Return the partition that a reader wants, or the error that says why not."""
    partition = find_led(services, item.topic, item.index)
    if isinstance(partition, ErrorCode):
        return partition
    return leader_epoch_error(partition, item.leader_epoch) or partition
