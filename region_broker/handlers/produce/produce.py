"""Produce (0), versions 3-13.  v7: zstd.  v11: TRANSACTION_ABORTABLE.  v12: TV2.  v13: topic ids.

INV-H13 after a local append no error is answered that means "not written" (P18): REQUEST_TIMED_OUT only
A request that need not wait before it appends (`begin_produce`) has no task: its answer is made by the group commit
that reaches its last batch.
Not here: the batches (`produce.batches`), requests of very many (`produce.many`), waiting until what was appended is
durable (`produce.wait`), error numbers (`produce.errors`), bytes (`wire.codec.fast_paths.produce`).
"""

import asyncio
from typing import Final

from region_broker.handlers.dispatch.registry import Api, Fields, Finish, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.batches import (
    ORDER_KEY,
    add,
    admitted,
    append,
    check_silent,
    checked,
    guarded,
    heavy_of,
    items_of,
    missing_of,
    place,
    prepare,
    refuse_mixed,
    refuse_unverified,
)
from region_broker.handlers.produce.many import produce_many
from region_broker.handlers.produce.wait import ProduceWait, written
from region_broker.limits import YIELD_ROWS
from region_broker.wire.codec.fast_paths.produce import KEY, VERSIONS, ProduceRequest

_TOPIC_IDS_SINCE: Final = 13


async def handle_produce(ctx: RequestContext, request: ProduceRequest) -> Written | None:
    """Append each batch, wait until all are durable, return the answer; None with acks=0."""
    if _is_many(request):
        return await produce_many(ctx, request)
    items = list(items_of(request))
    transactional = refuse_mixed(items, checked(ctx, request, items))
    heavy = heavy_of(items)
    order = ctx.connection_state.get(ORDER_KEY)
    if order is None and not heavy and admitted(ctx, request, transactional):
        append(ctx, items)
    else:
        with guarded(ctx, transactional), place(ctx) as turn:
            await turn()
            for item in heavy:
                await prepare(item)
            if missing := missing_of(ctx, request, transactional):
                await add(ctx, request, missing)
            refuse_unverified(ctx, request, transactional)
            append(ctx, items)
    if request.acks == 0:
        check_silent(items)
        return None
    ended = asyncio.Event()
    ProduceWait(ctx, request, items, ended.set).begin()
    await ended.wait()
    return written(ctx, request, items)


def begin_produce(ctx: RequestContext, request: ProduceRequest, finish: Finish) -> bool:
    """Append each batch, and let the answer be made when all are durable; False if that needs a task."""
    items = list(items_of(request))
    if len(items) > YIELD_ROWS:
        return False
    transactional = refuse_mixed(items, checked(ctx, request, items))
    if ORDER_KEY in ctx.connection_state or heavy_of(items):
        return False
    if transactional and not admitted(ctx, request, transactional):
        return False
    append(ctx, items)
    if request.acks == 0:
        check_silent(items)
        finish(None)
    else:
        wait = ProduceWait(ctx, request, items, lambda: finish(written(ctx, request, items)))
        wait.begin()
    return True


def _is_many(request: ProduceRequest) -> bool:
    return sum(len(topic.batches) for topic in request.topics) > YIELD_ROWS


def error_answer(ctx: RequestContext, request: ProduceRequest, error_code: int) -> Fields:
    """Return the answer that gives every batch of a request the same error."""
    responses: list[Fields] = []
    by_id = ctx.version >= _TOPIC_IDS_SINCE
    for topic in request.topics:
        rows = [
            {"index": batch.partition, "error_code": error_code, "base_offset": -1}
            for batch in topic.batches
        ]
        responses.append({"topic_id" if by_id else "name": topic.key, "partition_responses": rows})
    return {"responses": responses}


API: Final = Api(
    KEY,
    "Produce",
    VERSIONS,
    handle_produce,
    forward=True,
    on_error=error_answer,
    begin=begin_produce,
)
