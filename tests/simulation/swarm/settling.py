"""The operator of a life: heals and starts everything, and gives the word where one is asked for.

Not here: which word, and when all is well (`chaos.judges.operator`).
"""

import asyncio
from typing import Final

from chaos.judges.contacts import NEVER
from chaos.judges.operator import UNCHANGED_S, Views, picture, settled, without_counts, word_for
from tests.simulation.swarm.stage import Stage

ASK_S: Final = 0.25


async def settle(stage: Stage) -> bool:
    """Return whether one region acts and all others mirror it, in time.

    Whose disk had failed is started anew; bits that had flipped are given back.
    """
    stage.heal_all()
    await _end_damaged(stage)
    deadline_s = stage.now_s() + stage.settle_s
    seen, since_s, settled_s = "", stage.now_s(), NEVER
    while stage.now_s() < deadline_s and not stage.is_over:
        for name in stage.names:
            await stage.start(name)
        views = {name: view for name in stage.names if (view := stage.view(name)) is not None}
        if len(views) < len(stage.names) or not settled(views):
            settled_s = NEVER
        elif stage.now_s() - min(settled_s, stage.now_s()) >= stage.stays_s:
            return True
        else:
            settled_s = min(settled_s, stage.now_s())
        if (now := without_counts(picture(views))) != seen:
            seen, since_s = now, stage.now_s()
        elif stage.now_s() - since_s > UNCHANGED_S and not any(v["acting"] for v in views.values()):
            await _give_a_word(stage, views)
            seen = ""
        stage.check_ends()
        await asyncio.sleep(ASK_S)
    if not stage.is_over:
        stage.blame(f"not one primary and its mirrors within {stage.settle_s:.0f} s: {seen}")
    return False


async def _end_damaged(stage: Stage) -> None:
    for name in stage.names:
        if stage.flips.at(name):
            await stage.mend_bits(name)
        elif name in stage.disk_failed:
            await stage.kill(name)


async def _give_a_word(stage: Stage, views: Views) -> None:
    stage.tell(f"  nobody acts: {picture(views)}")
    order = word_for(views, stage.chance)
    if order is None:
        return
    stage.tell(f"  the operator's word: {order.kind} at {order.target}")
    if refused := await stage.order(order.kind, order.target):
        stage.tell(f"  not done: {refused[:200]}")
