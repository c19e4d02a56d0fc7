"""Produce (0), versions 3-13.  v7: zstd.  v11: TRANSACTION_ABORTABLE.  v12: TV2.  v13: topic ids.

INV-H12 batches of one connection are appended in the order they arrived (C7): the first step of the handler
        appends, and a request that must first wait for the coordinator holds back those behind it
INV-H13 after a local append no error is answered that means "not written" (P18): REQUEST_TIMED_OUT only
INV-H14 no transactional batch is appended unless its partition is in the producer's open transaction at that
        very step: TV1 was verified (KIP-890 part 1), TV2 is added first (part 2) and verified again (P4)
INV-H15 a success is answered below HW only, with acks=1 too: HW is the durable end of the log
INV-H16 transactional batches need acks=-1 (T8) and one producer id per request (C12)
"""

import asyncio
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from idempotency.identity import TopicPartition
from idempotency.record_batch import HEADER_BYTES
from region_broker.controller.metadata_image import INTERNAL_TOPICS
from region_broker.handlers.partitions import find_partition
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.log.failures import LogError
from region_broker.replication.admission import AppendOutcome, AppendVerdict
from region_broker.replication.partition import Partition
from region_broker.wire.server import CloseConnection
from txn_coordinator.connection_order import Arrival
from txn_coordinator.verdicts import TxnVerdict

_ABORTABLE_SINCE: Final = 11
_TV2_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_ZSTD_SINCE: Final = 7
_ZSTD: Final = 4
_ACKS: Final = (-1, 0, 1)
_ORDER_KEY: Final = "produce.order"

TopicKey: TypeAlias = str | UUID | None

ERROR_OF_VERDICT: Final = {
    AppendVerdict.APPENDED: ErrorCode.none,
    AppendVerdict.DUPLICATE: ErrorCode.none,
    AppendVerdict.OUT_OF_ORDER_SEQUENCE: ErrorCode.out_of_order_sequence_number,
    AppendVerdict.STALE_PRODUCER_EPOCH: ErrorCode.invalid_producer_epoch,
    AppendVerdict.INVALID_TXN_STATE: ErrorCode.invalid_txn_state,
    AppendVerdict.INVALID_PRODUCER_ID_MAPPING: ErrorCode.invalid_producer_id_mapping,
    AppendVerdict.UNKNOWN_PRODUCER: ErrorCode.unknown_producer_id,
    AppendVerdict.CORRUPT: ErrorCode.corrupt_message,
    AppendVerdict.INVALID_RECORD: ErrorCode.invalid_record,
    AppendVerdict.TOO_LARGE: ErrorCode.message_too_large,
    AppendVerdict.LARGER_THAN_SEGMENT: ErrorCode.record_list_too_large,
    AppendVerdict.INVALID_TIMESTAMP: ErrorCode.invalid_timestamp,
    AppendVerdict.NOT_LEADER: ErrorCode.not_leader_or_follower,
    AppendVerdict.STORAGE_FAILED: ErrorCode.kafka_storage_error,
    AppendVerdict.COORDINATOR_FENCED: ErrorCode.transaction_coordinator_fenced,
    AppendVerdict.MARKER_ALREADY_APPLIED: ErrorCode.invalid_record,
    AppendVerdict.UNSUPPORTED_MAGIC: ErrorCode.unsupported_for_message_format,
}
assert set(ERROR_OF_VERDICT) == set(AppendVerdict)

# C28: coordinator errors that pass become NOT_ENOUGH_REPLICAS, which every client retries without
# refreshing its metadata.
_ERROR_OF_VERIFICATION: Final = {
    TxnVerdict.OK: ErrorCode.none,
    TxnVerdict.LOADING: ErrorCode.not_enough_replicas,
    TxnVerdict.NOT_COORDINATOR: ErrorCode.not_enough_replicas,
    TxnVerdict.UNAVAILABLE: ErrorCode.not_enough_replicas,
    TxnVerdict.CONCURRENT: ErrorCode.not_enough_replicas,
    TxnVerdict.FENCED: ErrorCode.invalid_producer_epoch,  # C29, and C6: not PRODUCER_FENCED on Produce
    TxnVerdict.STALE_CONNECTION: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNPROVEN_CONNECTION: ErrorCode.not_enough_replicas,
    TxnVerdict.FENCED_BY_TAKEOVER: ErrorCode.invalid_producer_epoch,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: ErrorCode.invalid_producer_id_mapping,
    TxnVerdict.INVALID_STATE: ErrorCode.invalid_txn_state,
    TxnVerdict.INVALID_TIMEOUT: ErrorCode.invalid_txn_state,
    TxnVerdict.INVALID_REQUEST: ErrorCode.invalid_request,
    TxnVerdict.NOT_IN_TRANSACTION: ErrorCode.invalid_txn_state,
    TxnVerdict.WRONG_DOMAIN: ErrorCode.invalid_topic_exception,
}
assert set(_ERROR_OF_VERIFICATION) == set(TxnVerdict)


def verification_error(verdict: TxnVerdict, version: int) -> ErrorCode:
    """Return the error of Produce `version` for a verification verdict (C27-C29, T22)."""
    if version >= _ABORTABLE_SINCE and verdict in (
        TxnVerdict.NOT_IN_TRANSACTION,
        TxnVerdict.FENCED_BY_TAKEOVER,
    ):
        return ErrorCode.transaction_abortable
    if version >= _TV2_SINCE and verdict is TxnVerdict.CONCURRENT:
        return ErrorCode.concurrent_transactions
    return _ERROR_OF_VERIFICATION[verdict]


@dataclass(slots=True)
class _Item:
    """One batch of the request, on its way: what it is, where it goes, what became of it."""

    topic: TopicKey
    index: int
    data: bytes
    attributes: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    partition: Partition | None = None
    error: ErrorCode = ErrorCode.none
    text: str | None = None
    outcome: AppendOutcome | None = None
    is_prepared: bool = False

    @property
    def transactional(self) -> bool:
        """Return whether the batch says that it belongs to a transaction."""
        return self.attributes & 0x10 != 0

    def refuse(self, error: ErrorCode, text: str | None = None) -> None:
        """Answer this batch with an error; it is not appended."""
        assert self.outcome is None, "an appended batch is never refused (P18)"
        self.error = error
        self.text = text

    @property
    def open(self) -> bool:
        """Return whether the batch may still be appended."""
        return self.error is ErrorCode.none


@dataclass(slots=True)
class _Order:
    """The requests of one connection that have not appended yet, oldest first (INV-H12)."""

    waiting: list[asyncio.Future[None]] = field(default_factory=list)


async def handle_produce(ctx: RequestContext, request: Any) -> Fields | None:
    """Append each batch, wait until all are durable, answer; None with acks=0."""
    items = _items(ctx, request)
    _validate(ctx, request, items)
    transactional = [item for item in items if item.open and item.transactional]
    heavy = [
        item for item in items if item.partition is not None and item.partition.is_heavy(item.data)
    ]
    order = ctx.connection_state.get(_ORDER_KEY)
    if order is None and not heavy and _admitted(ctx, request, transactional):
        _append(ctx, items)
    else:
        async with _turn(ctx):
            for item in heavy:
                await _prepare(item)
            await _admit(ctx, request, transactional)
            _append(ctx, items)
    if request.acks == 0:
        failed = next((item for item in items if not item.open), None)
        if failed is not None:
            # Nothing can be answered: the closed connection tells the producer (as Kafka does).
            raise CloseConnection(f"a batch sent with acks=0 was refused: {failed.error.name}")
        return None
    await _wait_committed(items, request.timeout.total_seconds())
    return {"responses": _rows(ctx, request, items)}


# --- what was sent -------------------------------------------------------------------------------

_ATTRIBUTES: Final = struct.Struct(">h")
_PRODUCER: Final = struct.Struct(">qh")
_ATTRIBUTES_AT: Final = 21
_PRODUCER_AT: Final = 43
_SEQUENCE: Final = struct.Struct(">i")
_SEQUENCE_AT: Final = 53


def _items(ctx: RequestContext, request: Any) -> list[_Item]:
    items: list[_Item] = []
    for topic in request.topic_data:
        key: TopicKey = topic.topic_id if ctx.version >= _TOPIC_IDS_SINCE else topic.name
        for part in topic.partition_data:
            item = _Item(key, int(part.index), part.records or b"")
            if len(item.data) >= HEADER_BYTES:
                (item.attributes,) = _ATTRIBUTES.unpack_from(item.data, _ATTRIBUTES_AT)
                item.producer_id, item.producer_epoch = _PRODUCER.unpack_from(
                    item.data, _PRODUCER_AT
                )
            items.append(item)
    return items


def _validate(ctx: RequestContext, request: Any, items: Sequence[_Item]) -> None:
    """Refuse what needs no log and no coordinator to be refused."""
    for item in items:
        if request.acks not in _ACKS:
            item.refuse(ErrorCode.invalid_required_acks, "acks must be -1, 0 or 1")
        elif item.transactional and request.acks != -1:
            item.refuse(ErrorCode.invalid_required_acks, "transactional batches need acks=-1 (all)")
        elif not item.data:
            item.refuse(ErrorCode.invalid_record, "there is no batch")
        elif item.attributes & 0x07 == _ZSTD and ctx.version < _ZSTD_SINCE:
            item.refuse(
                ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or later"
            )
        else:
            _find(ctx, item)
    producers = {(item.producer_id, item.producer_epoch) for item in items if item.transactional}
    if len({producer_id for producer_id, _ in producers}) > 1:
        for item in items:
            if item.open:
                item.refuse(
                    ErrorCode.invalid_producer_id_mapping,
                    "one transactional request carries batches of several producer ids",
                )


def _find(ctx: RequestContext, item: _Item) -> None:
    found = find_partition(ctx.services, item.topic, item.index)
    if isinstance(found, ErrorCode):
        item.refuse(found)
    elif found.tp.topic in INTERNAL_TOPICS:
        item.refuse(
            ErrorCode.invalid_topic_exception, f"{found.tp.topic} is written by the brokers only"
        )
    else:
        item.partition = found


# --- who may append ------------------------------------------------------------------------------


def _verify(ctx: RequestContext, request: Any, item: _Item) -> TxnVerdict:
    assert item.partition is not None
    arrival = None
    if ctx.version < _TV2_SINCE:
        (base_sequence,) = _SEQUENCE.unpack_from(item.data, _SEQUENCE_AT)
        arrival = Arrival(ctx.sender, base_sequence)
    return ctx.services.txn.verify(
        request.transactional_id, item.producer_id, item.producer_epoch, item.partition.tp, arrival
    )


def _admitted(ctx: RequestContext, request: Any, transactional: Sequence[_Item]) -> bool:
    """Verify without waiting; return False when partitions must first be added (TV2)."""
    for item in transactional:
        verdict = _verify(ctx, request, item)
        if verdict is TxnVerdict.OK:
            continue
        if ctx.version >= _TV2_SINCE and request.transactional_id is not None:
            return False
        item.refuse(verification_error(verdict, ctx.version))
    return True


async def _admit(ctx: RequestContext, request: Any, transactional: Sequence[_Item]) -> None:
    """Add the partitions to the transaction (TV2), then verify; no await follows (P4)."""
    if ctx.version >= _TV2_SINCE and request.transactional_id is not None:
        missing = [
            item
            for item in transactional
            if item.open and _verify(ctx, request, item) is not TxnVerdict.OK
        ]
        if missing:
            verdict = await ctx.services.txn.add_partitions(
                request.transactional_id,
                missing[0].producer_id,
                missing[0].producer_epoch,
                [_tp(item) for item in missing],
                implicit=True,
            )
            if verdict is not TxnVerdict.OK:
                for item in missing:
                    item.refuse(verification_error(verdict, ctx.version))
    for item in transactional:
        if item.open:
            verdict = _verify(ctx, request, item)
            if verdict is not TxnVerdict.OK:
                item.refuse(verification_error(verdict, ctx.version))


def _tp(item: _Item) -> TopicPartition:
    assert item.partition is not None
    return item.partition.tp


@asynccontextmanager
async def _turn(ctx: RequestContext) -> AsyncIterator[None]:
    """Wait until every earlier request of the connection has appended; let the next one go after."""
    order: _Order = ctx.connection_state.setdefault(_ORDER_KEY, _Order())
    mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    before = order.waiting[-1] if order.waiting else None
    order.waiting.append(mine)
    try:
        if before is not None and not before.done():
            await asyncio.wait((before,))
        yield
    finally:
        mine.set_result(None)
        order.waiting.remove(mine)
        if not order.waiting:
            ctx.connection_state.pop(_ORDER_KEY, None)


async def _prepare(item: _Item) -> None:
    """Let a thread do what takes long with a batch (codec, keys), in the order of the connection."""
    assert item.partition is not None
    changed = await asyncio.to_thread(item.partition.prepared, item.data)
    if isinstance(changed, AppendOutcome):
        item.refuse(ERROR_OF_VERDICT[changed.verdict], changed.detail)
    else:
        item.data = bytes(changed)
        item.is_prepared = True


# --- append, wait, answer ------------------------------------------------------------------------


def _append(ctx: RequestContext, items: Sequence[_Item]) -> None:
    tv2 = ctx.version >= _TV2_SINCE
    for item in items:
        if not item.open:
            continue
        assert item.partition is not None
        outcome = item.partition.append(
            item.data, tv2=tv2 and item.transactional, is_prepared=item.is_prepared
        )
        error = ERROR_OF_VERDICT[outcome.verdict]
        if error is ErrorCode.none:
            item.outcome = outcome
        else:
            item.refuse(error, outcome.detail or None)


async def _wait_committed(items: Sequence[_Item], timeout_s: float) -> None:
    """Wait until everything appended is below HW; what is not in time is REQUEST_TIMED_OUT (P18)."""
    waiting = [item for item in items if item.outcome is not None and not _committed(item)]
    if not waiting:
        return
    try:
        async with asyncio.timeout(timeout_s):
            for item in waiting:
                await _wait_one(item)
    except TimeoutError:
        for item in waiting:
            if item.open and not _committed(item):
                _unknown(item, f"not durable within {timeout_s} s; it may still become so")


async def _wait_one(item: _Item) -> None:
    assert item.partition is not None
    assert item.outcome is not None
    try:
        await item.partition.wait_committed(item.outcome.next_offset)
    except LogError as error:
        _unknown(item, str(error))


def _committed(item: _Item) -> bool:
    assert item.partition is not None
    assert item.outcome is not None
    return item.partition.high_watermark >= item.outcome.next_offset


def _unknown(item: _Item, text: str) -> None:
    """The batch was appended, its fate is unknown: the one error that says so."""
    item.error = ErrorCode.request_timed_out
    item.text = text


def _rows(ctx: RequestContext, request: Any, items: Sequence[_Item]) -> list[Fields]:
    remaining = iter(items)
    rows: list[Fields] = []
    for topic in request.topic_data:
        partitions = [_row(next(remaining)) for _ in topic.partition_data]
        if ctx.version >= _TOPIC_IDS_SINCE:
            rows.append({"topic_id": topic.topic_id, "partition_responses": partitions})
        else:
            rows.append({"name": topic.name, "partition_responses": partitions})
    return rows


def _row(item: _Item) -> Fields:
    outcome = item.outcome
    if outcome is None or not item.open:
        return {
            "index": item.index, "error_code": item.error, "base_offset": -1,
            "error_message": item.text,
        }  # fmt: skip
    assert item.partition is not None
    return {
        "index": item.index,
        "error_code": ErrorCode.none,
        "base_offset": outcome.base_offset,
        "log_append_time": outcome.log_append_time_ms,
        "log_start_offset": item.partition.log_start_offset,
    }


def error_answer(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    """Return the answer that gives every batch the same error."""
    items = _items(ctx, request)
    for item in items:
        item.refuse(ErrorCode(error_code))
    return {"responses": _rows(ctx, request, items)}


API: Final = Api(0, "Produce", range(3, 14), handle_produce, forward=True, on_error=error_answer)
