"""One Produce request from its batches to what is appended, in one of two runs: whole, or in pieces.

INV-HPM1 each batch is verified, appended and waited for in one step; between two steps the transaction may end, and what
         comes after is refused (INV-H14)
INV-HPM2 what a connection sent behind a request that waits is appended behind its last batch (INV-H12)
INV-HPM3 a request has PREPARED_S_MAX from its begin for the turns of its batches in the threads that look into them: the first one whose turn has not
         come by then, what would have been appended together with it, and all behind it, are refused for now, and its frame is let go of. Else
         a few frames of very small batches, each of them much work, would hold the whole memory budget for hours, with their clients long gone.
         What a thread has begun by then is appended
INV-HPM4 one step appends PRODUCE_STEP_BYTES of batches, or half as much again, or one batch; of topics that are sealed a quarter of it: a request of 95 batches of a
         megabyte took 60 ms of the loop, and 160 ms where it was sealed
A rule is written once, for any number of batches (`batches`, `wait`). A run only says what is done when: `whole` does all
in this very step, and gives up where anything must be waited for, or it is too much for one; `in_pieces` waits, and serves others after every
YIELD_ROWS batches, or PRODUCE_STEP_BYTES of them. What a request tells its coordinator and its logs is the same in both.
Partitions answer for themselves: one may have its batch before another is looked at, as in any Produce.
Not here: what is done with one batch (`batches`), waiting until it is durable and the answer (`wait`).
"""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.asking import Asking
from region_broker.handlers.produce.batches import (
    add,
    append,
    checked,
    guarded,
    items_of,
    judged,
    light_of,
    missing_of,
    next_part,
    place,
    refuse_late,
    refuse_mixed,
    step_bytes,
)
from region_broker.handlers.produce.permission import NOTHING, Denied
from region_broker.handlers.produce.wait import Item, OnEnd, ProduceWait, name_so_many
from region_broker.limits import PRODUCE_STEP_BYTES, RECORD_ERRORS_MAX, ROW_COST, YIELD_ROWS
from region_broker.wire.codec.fast_paths.produce import ProduceRequest
from region_broker.wire.cooperative_yield import CooperativeYield

PREPARED_S_MAX: Final = 30
"""As long as a producer waits for an answer, unless it is told otherwise (`request.timeout.ms`): then it sends the batch again."""


def is_many(request: ProduceRequest) -> bool:
    """Return whether a request has more batches, or topics that it brings none for, than are taken in one step; counts no further."""
    count = 0
    for topic in request.topics:
        count += len(topic.batches) or 1
        if count > YIELD_ROWS:
            return True
    return False


def whole(
    ctx: RequestContext, request: ProduceRequest, on_end: OnEnd, denied: Denied = NOTHING
) -> bool:
    """Append all in this very step; False where anything must be waited for, or many: nothing is appended then."""
    items = list(islice(items_of(request), YIELD_ROWS + 1))
    if len(items) > YIELD_ROWS:
        return False
    state = ctx.connection_state
    was_broken = state.produce_broken
    transactional = refuse_mixed(items, checked(ctx, request, items, denied))
    if (
        state.appending
        or light_of(items)[0] < len(items)
        or (len(items) > 1 and _step_bytes(items) > PRODUCE_STEP_BYTES)
        or (transactional and not judged(ctx, request, transactional, waited=False))
    ):
        state.produce_broken = was_broken  # nothing was done: `in_pieces` refuses it again
        return False
    wait = ProduceWait(ctx, request, items, on_end)
    append(ctx, request, items)
    if len(items) > 1:
        ctx.services.deadlines.turns.spend(ROW_COST * len(items))
    wait.expect(items)
    wait.all_expected()
    return True


async def in_pieces(
    ctx: RequestContext, request: ProduceRequest, on_end: OnEnd, denied: Denied = NOTHING
) -> None:
    """Append all in the order of the connection; others are served while it waits, and after each piece."""
    yielding = CooperativeYield(YIELD_ROWS)
    items: list[Item] = []
    transactional: list[Item] = []
    until_s = asyncio.get_running_loop().time() + PREPARED_S_MAX
    with place(ctx, items) as turn:
        coming = items_of(request)
        while piece := list(islice(coming, YIELD_ROWS)):
            items += piece
            ctx.services.deadlines.turns.spend(ROW_COST * len(piece))
            transactional += checked(ctx, request, piece, denied)
            await yielding.row(len(piece))
        transactional = refuse_mixed(items, transactional)
        with guarded(ctx, transactional):
            asking = Asking(ctx, request)
            asking.at_once(transactional)
            ctx.leave_large()  # it waits for what was sent before it, threads and copies, with what is not refused
            await turn()
            missing: list[Item] = []
            for part in _pieces(transactional):
                missing += missing_of(ctx, request, part)
                await yielding.row(len(part))
            if missing:
                await add(ctx, request, missing)
            await asking.settle(transactional)
            wait = ProduceWait(ctx, request, items, on_end)
            await _append_all(ctx, request, items, wait, until_s)
    wait.all_expected()


async def _append_all(
    ctx: RequestContext, request: ProduceRequest, items: Sequence[Item], wait: ProduceWait,
    until_s: float,
) -> None:  # fmt: skip
    yielding, names_left = CooperativeYield(YIELD_ROWS), RECORD_ERRORS_MAX
    for piece in _pieces(items):
        left, inline_bytes = piece, 0
        while left:
            try:
                part, inline_bytes = await next_part(ctx, left, inline_bytes, until_s)
            except TimeoutError:
                await refuse_late(ctx, items, yielding)
                return
            judged(ctx, request, [item for item in part if item.transactional], waited=True)
            append(ctx, request, part)
            part[-1].ahead = None  # INV-H18
            names_left = name_so_many(part, names_left)
            wait.expect(part)
            rows_of_bytes = _step_bytes(part) * 2 * YIELD_ROWS // PRODUCE_STEP_BYTES
            await yielding.row(max(len(part), rows_of_bytes))
            left = left[len(part) :]


def _step_bytes(items: Iterable[Item]) -> int:
    return sum(map(step_bytes, items))


def _pieces(items: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield items by YIELD_ROWS, or fewer where those would be more than PRODUCE_STEP_BYTES together."""
    start = count_bytes = 0
    for at, item in enumerate(items):
        item_bytes = step_bytes(item)
        if at - start == YIELD_ROWS or (
            at > start and count_bytes + item_bytes > PRODUCE_STEP_BYTES
        ):
            yield items[start:at]
            start, count_bytes = at, 0
        count_bytes += item_bytes
    if start < len(items):
        yield items[start:]
