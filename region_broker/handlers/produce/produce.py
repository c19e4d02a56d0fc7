"""Produce (0), versions 3-13.  v7: zstd.  v11: TRANSACTION_ABORTABLE.  v12: TV2.  v13: topic ids.

INV-H13 after a local append no error is answered that means "not written" (P18): REQUEST_TIMED_OUT only
INV-H15 a client that has gone while its batches were on their way to the disk is told nothing, and hinders nobody
A request that need not wait before it appends (`begin_produce`) has no task: its answer is made by the group commit
that reaches its last batch.
Not here: the way of a request (`produce.pipeline`), waiting until what was appended is durable and the answer
(`produce.wait`), error numbers (`produce.errors`), bytes (`wire.codec.fast_paths.produce`).
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Final

from region_broker.handlers.dispatch.partitions import nodes_told
from region_broker.handlers.dispatch.registry import Api, Fields, Finish, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.permission import denied_of, is_allowed_whole
from region_broker.handlers.produce.pipeline import in_pieces, is_many, whole
from region_broker.handlers.produce.wait import Item, written, written_pieces
from region_broker.wire.codec.fast_paths.produce import (
    KEY,
    VERSIONS,
    ProduceRequest,
    SentBatch,
    TopicKey,
)
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding, run_yielding

_NAMES_LEADERS_SINCE: Final = 10
_TOPIC_IDS_SINCE: Final = 13


async def handle_produce(ctx: RequestContext, request: ProduceRequest) -> Written | None:
    """Append each batch, wait until all are durable, return the answer; None with acks=0."""
    ended: asyncio.Future[Sequence[Item]] = asyncio.get_running_loop().create_future()
    many = is_many(request)
    denied = denied_of(ctx, request)

    def end(items: Sequence[Item]) -> None:
        if not ended.done():  # or the connection broke, and its requests were cancelled (INV-H15)
            ended.set_result(items)

    if many or not whole(ctx, request, end, denied):
        await in_pieces(ctx, request, end, denied)
    if request.acks == 0:
        return None
    items = await ended
    if many:
        return await run_yielding(written_pieces(ctx, request, items))
    return written(ctx, request, items)


def begin_produce(ctx: RequestContext, request: ProduceRequest, finish: Finish) -> bool:
    """Append each batch, and let the answer be made when all are durable; False if that needs a task."""
    if not is_allowed_whole(ctx, request):
        return False
    if not whole(ctx, request, lambda items: finish(written(ctx, request, items))):
        return False
    if request.acks == 0:
        finish(None)
    return True


def error_answer(ctx: RequestContext, request: ProduceRequest, error_code: int) -> Fields:
    """Return the answer that gives every batch of a request the same error."""
    topics = [
        _topic(ctx, topic.key, [_error_row(error_code, batch) for batch in topic.batches])
        for topic in request.topics
    ]
    return {"responses": topics}


async def not_here(ctx: RequestContext, request: ProduceRequest, error_code: int) -> Fields:
    """Return the same, and who leads (KIP-951)."""
    yielding, endpoints = CooperativeYield(), dict[int, Fields]()
    row_of = partial(_error_row, error_code)
    named = (topic.key for topic in request.topics)
    nodes_of = (
        await nodes_told(ctx, named, yielding) if ctx.version >= _NAMES_LEADERS_SINCE else None
    )

    def led(topic: TopicKey, batch: SentBatch) -> Fields:
        assert nodes_of is not None
        nodes = nodes_of(topic, batch.partition)
        endpoints.update((each["node_id"], each) for each in nodes.endpoints)
        return {**row_of(batch), "current_leader": nodes.current_leader}

    topics: list[Fields] = []
    for topic in request.topics:
        await yielding.row()
        make = row_of if nodes_of is None else partial(led, topic.key)
        topics.append(_topic(ctx, topic.key, await each_yielding(topic.batches, make, yielding)))
    return {"responses": topics, "node_endpoints": list(endpoints.values())}


def _topic(ctx: RequestContext, topic: TopicKey, rows: Sequence[Fields]) -> Fields:
    named_by = "topic_id" if ctx.version >= _TOPIC_IDS_SINCE else "name"
    return {named_by: topic, "partition_responses": rows}


def _error_row(error_code: int, batch: SentBatch) -> Fields:
    return {"index": batch.partition, "error_code": error_code, "base_offset": -1}


API: Final = Api(
    KEY,
    "Produce",
    VERSIONS,
    handle_produce,
    forward=True,
    on_error=error_answer,
    begin=begin_produce,
    not_here=not_here,
)
