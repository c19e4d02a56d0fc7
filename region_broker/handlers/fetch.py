"""Fetch (1), versions 4-18.  v5: log start.  v7: sessions.  v9: leader epoch.  v12: tags.  v13: topic ids.

INV-H8  what was read before a wait is thrown away: data, offsets and the aborted list are one reading (C38,
        KAFKA-5376)
INV-H9  the first batch of the first partition that has one is returned whatever its size (C39, KIP-74)
INV-H10 no sessions (KIP-227): the answer carries session id 0, which tells the client to go on without
INV-H11 a client that calls itself a replica gets nothing (CVE-2018-1288): links have their own port
On a mirror "the end" is what the last tidemark reached shows: `Partition.readable_end`.
Not here: waiting (`replication.purgatory`).
"""

from dataclasses import dataclass
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.handlers.partitions import find_partition, isolation_of, leader_epoch_error
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.limits import FETCH_BYTES_MAX, FETCH_PARTITION_COUNT_MAX, FETCH_WAIT_MS_MAX
from region_broker.log.failures import OffsetOutOfRange, PartitionFailed
from region_broker.replication.partition import FetchSlice, Isolation, Partition
from region_broker.replication.purgatory import FetchTarget, wait_readable

TopicKey: TypeAlias = str | UUID | None


@dataclass(frozen=True, slots=True)
class _Reading:
    """One look at everything asked for: rows per topic, bytes found, whether something went wrong."""

    responses: list[Fields]
    size_bytes: int
    failed: bool


async def handle_fetch(ctx: RequestContext, request: Any) -> Fields:
    """Return batches, at once or when `min_bytes` are there, at the latest after `max_wait`."""
    error = _request_error(request)
    isolation = isolation_of(int(request.isolation_level))
    if error is not None or isolation is None:
        return _refused(ctx, request, error or ErrorCode.invalid_request)
    reading = _read(ctx, request, isolation)
    max_wait_ms = min(round(request.max_wait.total_seconds() * 1000), FETCH_WAIT_MS_MAX)
    if reading.size_bytes < request.min_bytes and not reading.failed and max_wait_ms > 0:
        targets = _targets(ctx, request, isolation)
        if targets:
            await wait_readable(
                targets,
                min_bytes=min(int(request.min_bytes), _max_bytes(request)),
                max_wait_ms=max_wait_ms,
                clock=ctx.services.clock,
            )
        else:
            await ctx.services.clock.sleep_ms(max_wait_ms)
        reading = _read(ctx, request, isolation)
    return {"error_code": ErrorCode.none, "session_id": 0, "responses": reading.responses}


def _request_error(request: Any) -> ErrorCode | None:
    replica_state = getattr(request, "replica_state", None)  # v15 moved the replica id
    replica_id = request.replica_id if replica_state is None else replica_state.replica_id
    if replica_id >= 0:
        return ErrorCode.invalid_request
    if getattr(request, "session_id", 0) != 0:
        return ErrorCode.fetch_session_id_not_found
    if getattr(request, "session_epoch", -1) > 0:
        return ErrorCode.invalid_fetch_session_epoch
    if sum(len(topic.partitions) for topic in request.topics) > FETCH_PARTITION_COUNT_MAX:
        return ErrorCode.invalid_request
    return None


def _refused(ctx: RequestContext, request: Any, error: ErrorCode) -> Fields:
    """Return one error for all: at the top from v7 on, at each partition before."""
    rows: list[Fields] = []
    if ctx.version < 7:
        rows = [
            _topic_row(
                _key(ctx, topic), [_error_row(item.partition, error) for item in topic.partitions]
            )
            for topic in request.topics
        ]
    return {"error_code": error, "session_id": 0, "responses": rows}


def _key(ctx: RequestContext, topic: Any) -> TopicKey:
    key: TopicKey = topic.topic_id if ctx.version >= 13 else topic.topic
    return key


def _topic_row(key: TopicKey, partitions: list[Fields]) -> Fields:
    # Only one of the two is in any version; the codec drops the other.
    name = key if isinstance(key, str) else ""
    topic_id = key if isinstance(key, UUID) else None
    return {"topic": name, "topic_id": topic_id, "partitions": partitions}


def _max_bytes(request: Any) -> int:
    return min(max(0, int(request.max_bytes)), FETCH_BYTES_MAX)


def _find(ctx: RequestContext, key: TopicKey, item: Any) -> Partition | ErrorCode:
    partition = find_partition(ctx.services, key, item.partition)
    if isinstance(partition, ErrorCode):
        return partition
    error = leader_epoch_error(partition, int(getattr(item, "current_leader_epoch", -1)))
    return partition if error is None else error


def _targets(ctx: RequestContext, request: Any, isolation: Isolation) -> list[FetchTarget]:
    targets: list[FetchTarget] = []
    for topic in request.topics:
        key = _key(ctx, topic)
        for item in topic.partitions:
            partition = _find(ctx, key, item)
            if isinstance(partition, Partition):
                targets.append(FetchTarget(partition, int(item.fetch_offset), isolation))
    return targets


def _read(ctx: RequestContext, request: Any, isolation: Isolation) -> _Reading:
    """Read every partition, in the order asked for, until the request's budget is used up."""
    left_bytes = _max_bytes(request)
    size_bytes = 0
    failed = False
    responses: list[Fields] = []
    for topic in request.topics:
        key = _key(ctx, topic)
        rows: list[Fields] = []
        for item in topic.partitions:
            row = _partition(ctx, key, item, isolation, (left_bytes, size_bytes == 0))
            found_bytes = len(row.get("records") or b"")
            size_bytes += found_bytes
            left_bytes -= found_bytes
            failed = failed or row["error_code"] != ErrorCode.none
            rows.append(row)
        responses.append(_topic_row(key, rows))
    return _Reading(responses, size_bytes, failed)


def _partition(
    ctx: RequestContext, key: TopicKey, item: Any, isolation: Isolation, budget: tuple[int, bool]
) -> Fields:
    """Read one partition; `budget`: bytes left, and whether nothing was found yet."""
    partition = _find(ctx, key, item)
    if isinstance(partition, ErrorCode):
        return _error_row(item.partition, partition)
    left_bytes, first = budget
    max_bytes = min(left_bytes, max(0, int(item.partition_max_bytes)))
    try:
        # An exhausted budget still tells offsets: an empty reading at the end of what is readable.
        found = partition.fetch(
            int(item.fetch_offset), max(0, max_bytes), isolation, first_batch_always=first
        )
    except OffsetOutOfRange:
        return _error_row(item.partition, ErrorCode.offset_out_of_range)
    except PartitionFailed:
        return _error_row(item.partition, ErrorCode.kafka_storage_error)
    return _data_row(item.partition, found, isolation)


def _data_row(index: int, found: FetchSlice, isolation: Isolation) -> Fields:
    aborted: list[Fields] | None = None
    if isolation is Isolation.READ_COMMITTED:
        aborted = [
            {"producer_id": txn.producer_id, "first_offset": txn.first_offset}
            for txn in found.aborted
        ]
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "high_watermark": found.high_watermark,
        "last_stable_offset": found.last_stable_offset,
        "log_start_offset": found.log_start_offset,
        "aborted_transactions": aborted,
        "records": found.data,
    }


def _error_row(index: int, error: ErrorCode) -> Fields:
    return {
        "partition_index": index,
        "error_code": error,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": b"",
    }


API: Final = Api(1, "Fetch", range(4, 19), handle_fetch)
