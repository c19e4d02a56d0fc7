"""ListOffsets (2), versions 1-11.  v2: isolation.  v4: leader epoch.  v7: max timestamp.  v8, v9, v11: tiers.

"latest" is what the reader may read up to: the last stable offset under read committed (C37), on a mirror what the last
tidemark reached shows; in one answer, of all partitions as of one moment.
A region that was just started tells no end before its role is known, and one that just returned as a mirror no last stable
offset before it knows which of its transactions are whole (INV-PT9): what it shows then is less than what it had shown, and
who resets to "latest" would read everything again (T16). Nor does either tell a beginning, which an order may have moved that
is lost (INV-PT10): who resets to "earliest" would leave records out (T14). Clients ask again, as in Kafka (KIP-207).
INV-LIO1 rows that look into a log count as LOOKUP_ROWS others: two of them are answered in one step
INV-LIO2 a request looks for LOOKUPS_S_MAX at most, its turns in the threads included, and no longer than its client is there: rows it did not come to are
         REQUEST_TIMED_OUT. Else lookups that nobody waits for any more kept those of others from their turns, and their node from its end
There are no tiers, so the local log is the whole log, and nothing lies in or on its way to another tier: -1.
"""

from contextlib import suppress
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import LeaderEpoch
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics
from region_broker.handlers.dispatch.partitions import (
    find_led,
    isolation_of,
    leader_epoch_error,
)
from region_broker.handlers.dispatch.patience import while_wanted
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import LOOKUPS_MAX, YIELD_ROWS
from region_broker.log.failures import CorruptRange, PartitionFailed
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.server import CloseConnection

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
LOOKUP_ROWS: Final = YIELD_ROWS // 2
"""How many rows of others a lookup by time costs: 2 ms, where it is told by the records of a batch."""
LOOKUPS_S_MAX: Final = 30
"""As long as a client waits for an answer, unless it is told otherwise (`request.timeout.ms`)."""
_OF_THE_START: Final = frozenset({EARLIEST, EARLIEST_LOCAL})
_OFFSET_NOT_AVAILABLE_SINCE: Final = 5
_SINCE_VERSION: Final = {
    MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


async def handle_list_offsets(ctx: RequestContext, request: Any) -> Fields:
    """Answer, per partition, the offset at a time or at an end."""
    if sum(len(topic.partitions) for topic in request.topics) > LOOKUPS_MAX:
        raise CloseConnection(f"a ListOffsets request names more than {LOOKUPS_MAX} partitions")
    isolation = isolation_of(int(getattr(request, "isolation_level", 0)))
    yielding = CooperativeYield()
    asked = await _asked(request, yielding)
    named = (str(topic.name) for topic in request.topics)
    denied = await denied_topics(ctx, Operation.DESCRIBE, named, yielding)
    found: dict[tuple[str, int], Partition | ErrorCode] = {}
    for (name, index), items in asked.items():
        await yielding.row()
        if name in denied:
            found[name, index] = TOPIC_DENIED
        elif len(items) > 1 or isolation is None:
            found[name, index] = ErrorCode.invalid_request
        else:
            found[name, index] = _found(ctx, name, items[0], isolation)
    # The ends of all partitions as of one moment: a mirror ends them at one whole cut.
    ends: dict[tuple[str, int], int] = {
        place: partition.sight.readable_end(isolation)
        for place, partition in found.items()
        if isolation is not None and not isinstance(partition, ErrorCode)
    }
    rows: dict[tuple[str, int], Fields] = {}
    asked_by = ctx.asked_by
    with suppress(TimeoutError):  # the rest of the rows tell (INV-LIO2)
        async with while_wanted(ctx, LOOKUPS_S_MAX):
            for place, items in asked.items():
                await yielding.row(_cost(items[0]))
                end = ends.get(place, -1)
                rows[place] = await _row(asked_by, found[place], items[0], isolation, end)
    topics: dict[str, list[Fields]] = {topic.name: [] for topic in request.topics}
    for place in asked:
        await yielding.row()
        late = {"partition_index": place[1], "error_code": ErrorCode.request_timed_out}
        topics[place[0]].append(rows.get(place, late))
    return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}


async def _asked(request: Any, yielding: CooperativeYield) -> dict[tuple[str, int], list[Any]]:
    """Return what is asked of each partition; one asked for twice is answered once, INVALID_REQUEST, as in Kafka."""
    asked: dict[tuple[str, int], list[Any]] = {}
    for topic in request.topics:
        for item in topic.partitions:
            await yielding.row()
            asked.setdefault((topic.name, int(item.partition_index)), []).append(item)
    return asked


def _found(
    ctx: RequestContext, topic: str, item: Any, isolation: Isolation
) -> Partition | ErrorCode:
    partition = find_led(ctx.services, topic, item.partition_index)
    if isinstance(partition, ErrorCode):
        return partition
    error = leader_epoch_error(partition, LeaderEpoch(getattr(item, "current_leader_epoch", -1)))
    if error is not None:
        return error
    if not _served(ctx.version, int(item.timestamp)):
        return ErrorCode.unsupported_version
    sight, of_start = partition.sight, int(item.timestamp) in _OF_THE_START
    if not (sight.is_known if of_start else sight.knows_end(isolation)):
        new = ctx.version >= _OFFSET_NOT_AVAILABLE_SINCE
        return ErrorCode.offset_not_available if new else ErrorCode.leader_not_available
    return partition


async def _row(
    asked_by: str,
    partition: Partition | ErrorCode,
    item: Any,
    isolation: Isolation | None,
    end_offset: int,
) -> Fields:
    index = item.partition_index
    if isinstance(partition, ErrorCode):
        return {"partition_index": index, "error_code": partition}
    assert isolation is not None, "a partition is found for a known isolation only"
    try:
        offset, timestamp_ms, leader_epoch = await _position(
            asked_by, partition, int(item.timestamp), isolation, end_offset
        )
    except CorruptRange:
        return {"partition_index": index, "error_code": ErrorCode.corrupt_message}
    except PartitionFailed:
        return {"partition_index": index, "error_code": ErrorCode.kafka_storage_error}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _cost(item: Any) -> int:
    return LOOKUP_ROWS if int(item.timestamp) >= 0 or item.timestamp == MAX_TIMESTAMP else 1


def _served(version: int, timestamp: int) -> bool:
    return timestamp >= EARLIEST or version >= _SINCE_VERSION.get(timestamp, version + 1)


async def _position(
    asked_by: str, partition: Partition, timestamp: int, isolation: Isolation, end_offset: int
) -> tuple[int, int, int]:
    """Return (offset, timestamp in ms, leader epoch); -1 for what there is none of."""
    if timestamp == LATEST:
        return end_offset, -1, partition.sight.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return (
            partition.log_start_offset,
            -1,
            partition.log.epochs.epoch_at(partition.log_start_offset),
        )
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    lookup = partition.reader.lookup(isolation, asked_by)
    found = await (lookup.latest() if timestamp == MAX_TIMESTAMP else lookup.first(timestamp))
    return (-1, -1, -1) if found is None else found


async def _not_here(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    yielding = CooperativeYield()
    topics: dict[str, dict[int, Fields]] = {}
    for topic in request.topics:
        await yielding.row()
        rows = topics.setdefault(topic.name, {})
        for item in topic.partitions:
            await yielding.row()
            index = int(item.partition_index)
            rows[index] = {"partition_index": index, "error_code": error_code}
    return {
        "topics": [
            {"name": name, "partitions": list(rows.values())} for name, rows in topics.items()
        ]
    }


API: Final = Api(2, "ListOffsets", range(1, 12), handle_list_offsets, not_here=_not_here)
