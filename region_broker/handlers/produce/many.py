"""A Produce request of many batches: YIELD_ROWS of them in a step, and others are served in between.

INV-HPM1 each batch is verified, appended and waited for in one step; between two steps the transaction may end, and what
         comes after is refused (INV-H14)
INV-HPM2 what a connection sent behind such a request is appended behind its last batch (INV-H12)
Partitions answer for themselves: one may have its batch before another is looked at, as in any Produce.
Not here: what is done with one batch (`produce.batches`), waiting (`produce.wait`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice

from region_broker.handlers.dispatch.registry import Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.batches import (
    add,
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
from region_broker.handlers.produce.wait import Item, ProduceWait, written_pieces
from region_broker.limits import YIELD_ROWS
from region_broker.wire.codec.fast_paths.produce import ProduceRequest
from region_broker.wire.codec.pieces import Pieces, run_yielding


async def produce_many(ctx: RequestContext, request: ProduceRequest) -> Written | None:
    """Append each batch, wait until all are durable, return the answer; None with acks=0."""
    ended = asyncio.Event()
    with place(ctx) as turn:
        items, transactional, heavy = await run_yielding(_looked_at(ctx, request))
        with guarded(ctx, transactional):
            await turn()
            for item in heavy:
                await prepare(item)
            if missing := await run_yielding(_missing(ctx, request, transactional)):
                await add(ctx, request, missing)
            wait = ProduceWait(ctx, request, items, ended.set)
            await run_yielding(_appended(ctx, request, items, wait))
    if request.acks == 0:
        check_silent(items)
        return None
    wait.all_expected()
    await ended.wait()
    return await run_yielding(written_pieces(ctx, request, items))


def _looked_at(
    ctx: RequestContext, request: ProduceRequest
) -> Pieces[tuple[list[Item], list[Item], list[Item]]]:
    """Return all batches, the transactional ones that are not refused, and those for a thread."""
    items: list[Item] = []
    transactional: list[Item] = []
    heavy: list[Item] = []
    coming = items_of(request)
    while piece := list(islice(coming, YIELD_ROWS)):
        items += piece
        transactional += checked(ctx, request, piece)
        heavy += heavy_of(piece)
        yield
    return items, refuse_mixed(items, transactional), heavy


def _missing(
    ctx: RequestContext, request: ProduceRequest, transactional: Sequence[Item]
) -> Pieces[list[Item]]:
    missing: list[Item] = []
    for piece in _by_turns(transactional):
        missing += missing_of(ctx, request, piece)
        yield
    return missing


def _appended(
    ctx: RequestContext, request: ProduceRequest, items: Sequence[Item], wait: ProduceWait
) -> Pieces[None]:
    for piece in _by_turns(items):
        refuse_unverified(ctx, request, [item for item in piece if item.transactional])
        append(ctx, piece)
        if request.acks != 0:
            wait.expect(piece)
        yield


def _by_turns(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    return (items[start : start + YIELD_ROWS] for start in range(0, len(items), YIELD_ROWS))
