"""The batches of a Produce request: found, checked, verified, appended, in the order of their connection.

INV-H12 batches of one connection are appended in the order they arrived (C7): the first step of the handler
        appends, and a request that must first wait for the coordinator holds back those behind it
INV-H14 no transactional batch is appended unless its partition is in the producer's open transaction at that
        very step: TV1 was verified (KIP-890 part 1), TV2 is added first (part 2) and verified again (P4); a
        batch that waited holds a guard since before the coordinator was asked, and a marker ends it (INV-G1).
        Where leaders are spread, the coordinator may be at another node (`asking`)
INV-H16 transactional batches need acks=-1 (T8) and one producer id per request (C12)
INV-H17 what one step looks into of the records of all its batches is as little as it would be of one: a thread does the rest, again
        where the topic's rules have changed while the batch waited
INV-H18 a request holds what a thread has made of one of its batches at most, and not before its turn there (INV-RTH1): that is appended, and let
        go of, before the next one is made. 100 bytes may become a megabyte, and a request may have a hundred thousand batches
Not here: what is done when (`produce.pipeline`), waiting (`produce.wait`), error numbers (`produce.errors`).
"""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final

from kio.schema.errors import ErrorCode

from idempotency.identity import TopicPartition
from idempotency.record_batch import HEADER_BYTES
from idempotency.verification import VerificationGuard, Verifications
from region_broker.controller.metadata_image import INTERNAL_TOPICS
from region_broker.handlers.dispatch.led_apart import MAIN_GATE_SHUT
from region_broker.handlers.dispatch.partitions import find_led
from region_broker.handlers.dispatch.services import RequestContext, never_short
from region_broker.handlers.produce.asking import (
    NOTHING_SAID,
    TV2_SINCE,
    answered,
    base_sequence,
    is_led_still,
    is_open_already,
    is_shut,
    note_led,
)
from region_broker.handlers.produce.errors import ERROR_OF_VERDICT, verification_error
from region_broker.handlers.produce.permission import ATTRIBUTES_AT, NOTHING, Denied
from region_broker.handlers.produce.wait import Item
from region_broker.limits import PRODUCE_STEP_BYTES, SEALED_INLINE_BYTES_MAX
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.record_rules import RECOMPRESSED_INLINE_BYTES_MAX
from region_broker.wire.codec.fast_paths.produce import ProduceRequest
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.server import CloseConnection
from txn_coordinator.connection_order import Arrival
from txn_coordinator.verdicts import TxnVerdict

_ZSTD_SINCE: Final = 7
_ZSTD: Final = 4
_ACKS: Final = (-1, 0, 1)
_SEALED_COST: Final = PRODUCE_STEP_BYTES // SEALED_INLINE_BYTES_MAX

_PRODUCER: Final = struct.Struct(">qh")
_PRODUCER_AT: Final = 43


def items_of(request: ProduceRequest) -> Iterator[Item]:
    """Yield the batches of a request in its order."""
    for topic in request.topics:
        for index, data in topic.batches:
            item = Item(topic.key, index, b"" if data is None else data)
            if len(item.data) >= HEADER_BYTES:
                item.attributes = item.data[ATTRIBUTES_AT]
            yield item


def checked(
    ctx: RequestContext, request: ProduceRequest, items: Sequence[Item], denied: Denied = NOTHING
) -> list[Item]:
    """Refuse what is `denied`, and what needs no log and no coordinator to be refused; return the transactional ones left."""
    transactional: list[Item] = []
    full = ctx.services.partitions.room.refusal
    for item in items:
        if item.transactional:
            item.producer_id, item.producer_epoch = _PRODUCER.unpack_from(item.data, _PRODUCER_AT)
            transactional.append(item)
        error = None if denied is NOTHING else denied.error(item.topic)
        if error is not None:
            item.refuse(error)
        elif request.acks not in _ACKS:
            item.refuse(ErrorCode.invalid_required_acks, "acks must be -1, 0 or 1")
        elif item.transactional and request.acks != -1:
            item.refuse(ErrorCode.invalid_required_acks, "transactional batches need acks=-1 (all)")
        elif full is not None:
            _refuse_for_now(ctx, item, ErrorCode.kafka_storage_error, full)
        elif not item.data:
            item.refuse(ErrorCode.invalid_record, "there is no batch")
        elif item.attributes & 0x07 == _ZSTD and ctx.version < _ZSTD_SINCE:
            item.refuse(
                ErrorCode.unsupported_compression_type, "zstd needs Produce version 7 or later"
            )
        else:
            _find(ctx, item)
    return transactional


def _refuse_for_now(ctx: RequestContext, item: Item, error: ErrorCode, reason: str | None) -> None:
    """Refuse a batch that may be taken the next moment, and what an idempotent producer sent behind it (INV-HD4).

    1. The first of its batches is refused. 2. There is room again, or enough nodes are in sync. 3. The next one is judged: out of order, and
    librdkafka would take a new epoch and write again what it has no answer for.
    """
    item.refuse(error, reason)
    if len(item.data) >= HEADER_BYTES and _PRODUCER.unpack_from(item.data, _PRODUCER_AT)[0] >= 0:
        ctx.connection_state.produce_broken = True
        item.breaks = True


def refuse_mixed(items: Sequence[Item], transactional: Sequence[Item]) -> list[Item]:
    """Refuse all if the transactional ones name several producers; return those that are left (C12).

    Two epochs of one producer id are two producers: what the first one may do says nothing of the second.
    """
    producers = {(item.producer_id, item.producer_epoch) for item in transactional}
    if len(producers) > 1:
        for item in items:
            if item.open:
                item.refuse(
                    ErrorCode.invalid_producer_id_mapping,
                    "one transactional request carries batches of several producers: send one request for each",
                )
    return [item for item in transactional if item.open]


def _find(ctx: RequestContext, item: Item) -> None:
    found = find_led(ctx.services, item.topic, item.index)
    if found is ErrorCode.not_leader_or_follower:
        _refuse_for_now(ctx, item, found, None)
    elif isinstance(found, ErrorCode):
        item.refuse(found)
    elif found.tp.topic in INTERNAL_TOPICS:
        item.refuse(
            ErrorCode.invalid_topic_exception, f"{found.tp.topic} is written by the brokers only"
        )
    else:
        item.partition = found
        if ctx.services.leads_apart:
            note_led(ctx, item)


def light_of(items: Sequence[Item], inline_bytes: int = 0) -> tuple[int, int]:
    """Return how many batches from the first one on no thread need look at, and the bytes of records that a step looks at itself with them,
    of which there were `inline_bytes` before (INV-H17).
    """
    for count, item in enumerate(items):
        if item.partition is None or not item.open:
            continue
        work_bytes = item.partition.writer.work_bytes(item.data)
        if inline_bytes + work_bytes > RECOMPRESSED_INLINE_BYTES_MAX:
            return count, inline_bytes
        inline_bytes += work_bytes
    return len(items), inline_bytes


def step_bytes(item: Item) -> int:
    """Return for how many of PRODUCE_STEP_BYTES a batch counts in the step that appends it: sealing goes at a quarter of that speed (INV-HPM4)."""
    if item.partition is None or not item.open:
        return 0
    return len(item.data) * (_SEALED_COST if item.partition.writer.seals else 1)


# --- who may append ------------------------------------------------------------------------------


@contextmanager
def guarded(ctx: RequestContext, transactional: Iterable[Item]) -> Iterator[None]:
    """Hand a guard to each batch that waits before it is appended, before the coordinator is asked (C5, P4).

    1. A batch waits: for its turn, a thread or the coordinator. 2. Its transaction is aborted, and the marker written.
    3. The same producer's next transaction takes the partition. 4. Verified now, the batch would be taken into it.
    """
    tv2 = ctx.version >= TV2_SINCE
    waiting: list[tuple[Verifications, VerificationGuard]] = []
    try:
        for item in transactional:
            if item.open:
                assert item.partition is not None
                attempts = item.partition.state.verifications
                item.guard = attempts.begin(
                    item.producer_id, item.producer_epoch, base_sequence(item), tv2=tv2
                )
                waiting.append((attempts, item.guard))
        yield
    finally:
        for attempts, guard in waiting:
            attempts.leave(guard)


def _verify(ctx: RequestContext, request: ProduceRequest, item: Item) -> TxnVerdict:
    assert item.partition is not None
    arrival = None
    if ctx.version < TV2_SINCE:
        arrival = Arrival(ctx.sender, base_sequence(item))
    return ctx.services.txn.verify(
        request.transactional_id, item.producer_id, item.producer_epoch, item.partition.tp, arrival
    )


def missing_of(
    ctx: RequestContext, request: ProduceRequest, transactional: Iterable[Item]
) -> list[Item]:
    """Return the batches whose partitions must first be added to the transaction (TV2)."""
    if not adds(ctx, request):
        return []
    return [
        item
        for item in transactional
        if item.open and item.led_under is None and _verify(ctx, request, item) is not TxnVerdict.OK
    ]


def judged(
    ctx: RequestContext, request: ProduceRequest, transactional: Iterable[Item], *, waited: bool
) -> bool:
    """Refuse what is in no open transaction, or in another one than it was sent in; nothing is awaited from here to
    the append (P4). False where partitions must first be added (TV2), which was done for what `waited`.
    """
    may_add = not waited and adds(ctx, request)
    for item in transactional:
        if item.error:
            continue
        if item.led_under is None:
            verdict = _verify(ctx, request, item)
        elif waited or is_open_already(ctx, request.transactional_id, item):
            verdict = answered(item)
        else:
            return False
        if verdict is not TxnVerdict.OK:
            if may_add:
                return False
            error = verification_error(verdict, ctx.version)
            if item.led_under is not None and verdict in NOTHING_SAID:
                _refuse_for_now(
                    ctx,
                    item,
                    error,
                    "the coordinator, at another node, did not answer: send it again",
                )  # INV-HPA4
            else:
                item.refuse(error)
        elif waited and _is_late(item):
            # A live client sends it again, and is verified anew; of a late request nobody hears the answer.
            item.refuse(
                ErrorCode.not_enough_replicas,
                "the producer's transaction ended in this partition while the batch waited: send it again",
            )
    return True


def adds(ctx: RequestContext, request: ProduceRequest) -> bool:
    """Return whether partitions are added to the transaction by the request (TV2)."""
    return ctx.version >= TV2_SINCE and request.transactional_id is not None


def _is_late(item: Item) -> bool:
    assert item.partition is not None
    assert item.guard is not None, "INV-H14: what waited is judged against its guard"
    return not item.partition.state.verifications.is_current(item.guard)


async def add(ctx: RequestContext, request: ProduceRequest, missing: Sequence[Item]) -> None:
    """Add the partitions of these batches to the transaction, or refuse them."""
    assert request.transactional_id is not None
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


def _tp(item: Item) -> TopicPartition:
    assert item.partition is not None
    return item.partition.tp


@contextmanager
def place(ctx: RequestContext, items: Sequence[Item]) -> Iterator[Callable[[], Awaitable[None]]]:
    """Take the next place of the connection for `items`, and let the one behind go after; what it yields waits until every earlier
    request has appended. Batches are looked at, and guarded, before that wait (P4). It raises `CloseConnection` where one of those was
    refused for now: what came behind it is not executed, though it had begun by then (INV-HD4).
    """
    appending = ctx.connection_state.appending
    mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    before = appending[-1] if appending else None
    appending.append(mine)

    async def turn() -> None:
        if before is not None:
            if not before.done():
                await asyncio.wait((before,))
            if before.result():
                raise CloseConnection("a produce request ahead of this one was refused: reconnect")

    broke = True
    try:
        yield turn
        broke = any(item.breaks for item in items)
    finally:
        mine.set_result(broke)
        appending.remove(mine)


async def next_part(
    ctx: RequestContext, items: Sequence[Item], inline_bytes: int, until_s: float
) -> tuple[Sequence[Item], int]:
    """Return the first batches that one step appends, and the bytes that it looks at itself as `light_of` does. Where any of `items` needs a
    thread, the first one that does is ready, and the last of them (INV-H18): nothing is awaited from here to its append. Raises `TimeoutError`
    where its turn there has not come until `until_s` of the event loop (INV-HPM3).
    """
    ready: Item | None = None
    while True:
        count, looked_at = light_of(items, inline_bytes)
        heavy = items[count] if count < len(items) else None
        if ready is not None and ready is not heavy:
            ready.ahead = None  # rules have changed meanwhile: another one is first
        if heavy is None or _is_prepared(heavy):
            return items[: count + 1], looked_at
        await prepare(ctx, heavy, until_s)
        ready = heavy


async def prepare(ctx: RequestContext, item: Item, until_s: float) -> None:
    """Let a thread do what takes long with a batch (codec, keys), in the order of the connection; raises `TimeoutError` as `next_part` does."""
    assert item.partition is not None
    left_s = until_s - asyncio.get_running_loop().time()
    if left_s <= 0:
        raise TimeoutError("the time of its request is over")
    work = partial(item.partition.writer.prepared, item.data)
    threads = ctx.services.partitions.record_threads
    item.ahead = await threads.run(ctx.asked_by, work, turn_within_s=left_s)


async def refuse_late(
    ctx: RequestContext, items: Iterable[Item], yielding: CooperativeYield
) -> None:
    """Refuse what the request did not come to in its time (INV-HPM3); what it has appended is waited for."""
    text = "its turn in the threads that look into batches did not come in time: send it again"
    for item in items:
        if item.open and item.outcome is None:
            _refuse_for_now(ctx, item, ErrorCode.request_timed_out, text)
        await yielding.row()


def _is_prepared(item: Item) -> bool:
    assert item.partition is not None
    return item.partition.writer.is_prepared(item.ahead)


def append(ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]) -> None:
    """Append what is not refused; with acks=all nothing while too few nodes are in sync (R1)."""
    is_short = ctx.services.is_short if request.acks == -1 else never_short
    tv2 = ctx.version >= TV2_SINCE
    for item in items:
        if not item.open:
            continue
        assert item.partition is not None
        if item.led_under is not None and not is_led_still(ctx, item):
            text = "another node leads this partition by now, or will"
            _refuse_for_now(ctx, item, ErrorCode.not_leader_or_follower, text)  # INV-HLA3
            continue
        if item.led_under is not None and is_shut(ctx):
            _refuse_for_now(ctx, item, ErrorCode.not_leader_or_follower, MAIN_GATE_SHUT)
            continue
        if is_short(item.partition):
            text = "fewer nodes are in sync than the topic's min.insync.replicas"
            _refuse_for_now(ctx, item, ErrorCode.not_enough_replicas, text)
            continue
        outcome = item.partition.writer.append(item.data, tv2=tv2, ahead=item.ahead)
        if outcome.verdict is AppendVerdict.APPENDED or outcome.verdict is AppendVerdict.DUPLICATE:
            item.outcome = outcome
        elif outcome.verdict is AppendVerdict.OUT_OF_ORDER_SEQUENCE and not ctx.services.is_sure(
            item.partition
        ):
            text = "another node may lead by now: this one has heard none of those in sync"
            _refuse_for_now(ctx, item, ErrorCode.not_leader_or_follower, text)  # INV-HRD5
        elif outcome.verdict is AppendVerdict.NOT_LEADER:  # it may lead again before the next one
            _refuse_for_now(ctx, item, ErrorCode.not_leader_or_follower, outcome.detail)
        else:
            item.refuse(
                ERROR_OF_VERDICT[outcome.verdict], outcome.detail or None, outcome.bad_records
            )
