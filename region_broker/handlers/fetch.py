"""Fetch (1), versions 4-18.  v5: log start.  v7: sessions.  v9: leader epoch.  v12: tags.  v13: topic ids.

v16: who leads now, beside FENCED_LEADER_EPOCH (KIP-951).
INV-H8  what was read before a wait is thrown away: data, offsets and the aborted list are one reading (C38,
        KAFKA-5376)
INV-H9  the first batch of the first partition that has one is returned whatever its size (C39, KIP-74)
INV-H10 in a session an answer is given only while no later request of it came: else its epoch is wrong (KIP-227)
INV-H11 a client that calls itself a replica gets nothing (CVE-2018-1288): links have their own port
INV-H17 while the memory budget is full nothing is read: the request waits for room, then is answered empty; else
        an answer takes half of what is left at most
On a mirror "the end" is what the last tidemark reached shows: `Partition.readable_end`.
Not here: waiting (`replication.purgatory`), what a session remembers (`replication.fetch_sessions`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.handlers.partitions import find_partition, isolation_of, leader_epoch_error
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.limits import FETCH_BYTES_MAX, FETCH_PARTITION_COUNT_MAX, FETCH_WAIT_MS_MAX
from region_broker.log.failures import CorruptRange, OffsetOutOfRange, PartitionFailed
from region_broker.replication.fetch_sessions import (
    FINAL_EPOCH,
    NO_SESSION,
    FetchSession,
    PartitionKey,
    SessionError,
    SessionRequest,
    Told,
    TopicKey,
    Wanted,
    next_epoch,
)
from region_broker.replication.partition import FetchSlice, Isolation, Partition
from region_broker.replication.purgatory import FetchTarget, wait_readable

_ERROR_OF: Final = {
    SessionError.NOT_FOUND: ErrorCode.fetch_session_id_not_found,
    SessionError.WRONG_EPOCH: ErrorCode.invalid_fetch_session_epoch,
    SessionError.TOPIC_IDS: ErrorCode.fetch_session_topic_id_error,
    SessionError.TOO_LARGE: ErrorCode.invalid_request,
}
assert set(_ERROR_OF) == set(SessionError)
_BY_ID: Final = 13
_NAMES_LEADERS: Final = 16


@dataclass(frozen=True, slots=True)
class _Reading:
    """One look at everything wanted: a row for each, bytes found, whether something went wrong."""

    rows: Sequence[tuple[Wanted, dict[str, Any]]]
    size_bytes: int
    failed: bool


async def handle_fetch(ctx: RequestContext, request: Any) -> Fields:
    """Return batches, at once or when `min_bytes` are there, at the latest after `max_wait`."""
    error = _request_error(request)
    isolation = isolation_of(int(request.isolation_level))
    if error is not None or isolation is None:
        return _refused(ctx, request, error or ErrorCode.invalid_request)
    sessions, now_ms = ctx.services.fetch_sessions, ctx.services.clock.monotonic_ms
    asked = _session_request(ctx, request)
    session = sessions.enter(asked, now_ms())
    if isinstance(session, SessionError):
        return _refused(ctx, request, _ERROR_OF[session])
    wanted = asked.wanted if session is None else list(session.wanted.values())
    reading = await _read_when_ready(ctx, request, wanted, isolation)
    told = {item.key: _told(row) for item, row in reading.rows}
    if session is None:
        session_id = sessions.begin(asked, told, now_ms())
        if session_id != NO_SESSION:
            _note_quiet(ctx, reading.rows, isolation)
        return _answer(ctx, session_id, reading.rows)
    if session.expected_epoch != next_epoch(asked.epoch):
        return {
            "error_code": ErrorCode.invalid_fetch_session_epoch,
            "session_id": session.session_id,
            "responses": [],
        }
    news = _news(session, reading.rows, told)
    _note_quiet(ctx, reading.rows, isolation)
    return _answer(ctx, session.session_id, news)


def _note_quiet(
    ctx: RequestContext, rows: Sequence[tuple[Wanted, dict[str, Any]]], isolation: Isolation
) -> None:
    """Note which partitions need not be looked at until they change (INV-FE6); no await since they were read."""
    for item, row in rows:
        if row["records"] or row["error_code"] != ErrorCode.none:
            continue
        partition = _find(ctx, item)
        if isinstance(partition, Partition) and not partition.readable_bytes(
            item.offset, isolation, 1
        ):
            item.note_quiet(partition, isolation)


def _news(
    session: FetchSession,
    rows: Sequence[tuple[Wanted, dict[str, Any]]],
    told: dict[PartitionKey, Told],
) -> list[tuple[Wanted, dict[str, Any]]]:
    return [(item, row) for item, row in rows if session.must_tell(item, told[item.key])]


def _request_error(request: Any) -> ErrorCode | None:
    replica_state = getattr(request, "replica_state", None)  # v15 moved the replica id
    replica_id = request.replica_id if replica_state is None else replica_state.replica_id
    if replica_id >= 0:
        return ErrorCode.invalid_request
    for topics in (request.topics, getattr(request, "forgotten_topics_data", ())):
        if sum(len(topic.partitions) for topic in topics) > FETCH_PARTITION_COUNT_MAX:
            return ErrorCode.invalid_request
    return None


def _session_request(ctx: RequestContext, request: Any) -> SessionRequest:
    wanted: dict[PartitionKey, Wanted] = {}
    for topic in request.topics:
        key = _key(ctx, topic)
        for item in topic.partitions:
            wanted[key, item.partition] = Wanted(
                key,
                item.partition,
                int(getattr(item, "current_leader_epoch", -1)),
                int(item.fetch_offset),
                int(item.partition_max_bytes),
            )
    return SessionRequest(
        session_id=int(getattr(request, "session_id", NO_SESSION)),
        epoch=int(getattr(request, "session_epoch", FINAL_EPOCH)),
        by_id=ctx.version >= _BY_ID,
        wanted=list(wanted.values()),
        forgotten=[
            (_key(ctx, topic), index)
            for topic in getattr(request, "forgotten_topics_data", ())
            for index in topic.partitions
        ],
    )


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
    return {"error_code": error, "session_id": NO_SESSION, "responses": rows}


def _key(ctx: RequestContext, topic: Any) -> TopicKey:
    key: TopicKey = topic.topic_id if ctx.version >= _BY_ID else topic.topic
    return key


def _topic_row(key: TopicKey, partitions: list[Fields]) -> Fields:
    # Only one of the two is in any version; the codec drops the other.
    name = key if isinstance(key, str) else ""
    topic_id = key if isinstance(key, UUID) else None
    return {"topic": name, "topic_id": topic_id, "partitions": partitions}


def _answer(
    ctx: RequestContext, session_id: int, rows: Iterable[tuple[Wanted, dict[str, Any]]]
) -> Fields:
    responses: list[tuple[TopicKey, list[Fields]]] = []
    fenced = False
    for item, row in rows:
        if not responses or responses[-1][0] != item.topic:
            responses.append((item.topic, []))
        if ctx.version >= _NAMES_LEADERS and row["error_code"] == ErrorCode.fenced_leader_epoch:
            fenced = True
            row["current_leader"] = _leader(ctx, item)
        responses[-1][1].append(row)
    region = ctx.services.region
    node = {"node_id": region.node_id, "host": region.kafka_host, "port": region.kafka_port}
    return {
        "error_code": ErrorCode.none,
        "session_id": session_id,
        "responses": [_topic_row(key, partitions) for key, partitions in responses],
        "node_endpoints": [node] if fenced else [],
    }


def _leader(ctx: RequestContext, item: Wanted) -> Fields:
    partition = find_partition(ctx.services, item.topic, item.index)
    leader_epoch = partition.leader_epoch if isinstance(partition, Partition) else -1
    return {"leader_id": ctx.services.region.node_id, "leader_epoch": leader_epoch}


def _told(row: dict[str, Any]) -> Told:
    return Told(
        high_watermark=row["high_watermark"],
        last_stable_offset=row.get("last_stable_offset", -1),
        log_start_offset=row.get("log_start_offset", -1),
        has_data=bool(row["records"]),
        failed=row["error_code"] != ErrorCode.none,
    )


def _max_bytes(request: Any) -> int:
    return min(max(0, int(request.max_bytes)), FETCH_BYTES_MAX)


async def _read_when_ready(
    ctx: RequestContext, request: Any, wanted: Sequence[Wanted], isolation: Isolation
) -> _Reading:
    max_wait_ms = min(round(request.max_wait.total_seconds() * 1000), FETCH_WAIT_MS_MAX)
    memory = ctx.services.memory
    if memory.full and not await memory.wait_room(ctx.services.clock, max_wait_ms):
        return _read(ctx, wanted, isolation, 0, first_batch_always=False)
    max_bytes = min(_max_bytes(request), memory.left_bytes // 2)
    reading = _read(ctx, wanted, isolation, max_bytes)
    if reading.size_bytes >= request.min_bytes or reading.failed or max_wait_ms <= 0:
        return reading
    targets = [
        FetchTarget(item.quiet_in, item.offset, isolation)
        for item in wanted
        if item.quiet_in is not None and item.is_quiet(isolation)
    ]
    quiet_count = len(targets)
    targets += _targets(ctx, (item for item in wanted if not item.is_quiet(isolation)), isolation)
    if targets:
        await wait_readable(
            targets,
            quiet_count=quiet_count,
            min_bytes=min(int(request.min_bytes), max_bytes),
            max_wait_ms=max_wait_ms,
            clock=ctx.services.clock,
        )
    else:
        await ctx.services.clock.sleep_ms(max_wait_ms)
    return _read(ctx, wanted, isolation, max_bytes, first_batch_always=not memory.full)


def _find(ctx: RequestContext, item: Wanted) -> Partition | ErrorCode:
    partition = find_partition(ctx.services, item.topic, item.index)
    if isinstance(partition, ErrorCode):
        return partition
    error = leader_epoch_error(partition, item.leader_epoch)
    return partition if error is None else error


def _targets(
    ctx: RequestContext, wanted: Iterable[Wanted], isolation: Isolation
) -> list[FetchTarget]:
    targets: list[FetchTarget] = []
    for item in wanted:
        partition = _find(ctx, item)
        if isinstance(partition, Partition):
            targets.append(FetchTarget(partition, item.offset, isolation))
    return targets


def _read(
    ctx: RequestContext,
    wanted: Iterable[Wanted],
    isolation: Isolation,
    left_bytes: int,
    *,
    first_batch_always: bool = True,
) -> _Reading:
    """Read every partition that is not quiet, in the order given, until the request's budget is used up."""
    size_bytes = 0
    failed = False
    rows: list[tuple[Wanted, dict[str, Any]]] = []
    for item in wanted:
        if item.is_quiet(isolation):
            continue
        row = _partition(ctx, item, isolation, (left_bytes, first_batch_always and size_bytes == 0))
        found_bytes = len(row["records"])
        size_bytes += found_bytes
        left_bytes -= found_bytes
        failed = failed or row["error_code"] != ErrorCode.none
        rows.append((item, row))
    return _Reading(rows, size_bytes, failed)


def _partition(
    ctx: RequestContext, item: Wanted, isolation: Isolation, budget: tuple[int, bool]
) -> dict[str, Any]:
    """Read one partition; `budget`: bytes left, and whether nothing was found yet."""
    partition = _find(ctx, item)
    if isinstance(partition, ErrorCode):
        return _error_row(item.index, partition)
    left_bytes, first = budget
    max_bytes = min(left_bytes, max(0, item.max_bytes))
    try:
        # An exhausted budget still tells offsets: an empty reading at the end of what is readable.
        found = partition.fetch(item.offset, max(0, max_bytes), isolation, first_batch_always=first)
    except OffsetOutOfRange:
        return _error_row(item.index, ErrorCode.offset_out_of_range)
    except CorruptRange:
        return _error_row(item.index, ErrorCode.corrupt_message)
    except PartitionFailed:
        return _error_row(item.index, ErrorCode.kafka_storage_error)
    return _data_row(item.index, found, isolation)


def _data_row(index: int, found: FetchSlice, isolation: Isolation) -> dict[str, Any]:
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


def _error_row(index: int, error: ErrorCode) -> dict[str, Any]:
    return {
        "partition_index": index,
        "error_code": error,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": b"",
    }


API: Final = Api(1, "Fetch", range(4, 19), handle_fetch)
