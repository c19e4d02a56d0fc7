"""The operator of a life: heals and starts everything, and gives the word where one is asked for.

A word is given only where nobody acts although all run and talk: what mends itself is left alone. A dispute is ended
either way, by chance: failover to who has shown more, or the loss accepted by name.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Final

from chaos.shuffle.settling import settled
from tests.simulation.swarm.stage import NEVER, Stage, stand_of

UNCHANGED_S: Final = 4.0
ASK_S: Final = 0.25
_COUNTS: Final = re.compile(r"\d+ m?s\b")

Views = Mapping[str, Mapping[str, Any]]


async def settle(stage: Stage) -> bool:
    """Return whether one region acts and all others mirror it, in time. Whose disk had failed is started anew."""
    stage.heal_all()
    for name in stage.names:
        if name in stage.disk_failed:
            await stage.kill(name)
    deadline_s = stage.now_s() + stage.settle_s
    picture, since_s, settled_s = "", stage.now_s(), NEVER
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
        # A reason may count seconds: that is no change.
        if (now := _COUNTS.sub("", _picture(views))) != picture:
            picture, since_s = now, stage.now_s()
        elif stage.now_s() - since_s > UNCHANGED_S and not any(v["acting"] for v in views.values()):
            await _give_a_word(stage, views)
            picture = ""
        stage.check_ends()
        await asyncio.sleep(ASK_S)
    if not stage.is_over:
        stage.blame(f"not one primary and its mirrors within {stage.settle_s:.0f} s: {picture}")
    return False


def _picture(views: Views) -> str:
    return "; ".join(
        f"{name}: {v['phase']}, epoch {v['region_epoch']}, {v['reason_not_acting'] or 'acts'}"
        for name, v in sorted(views.items())
    )


async def _give_a_word(stage: Stage, views: Views) -> None:
    stage.tell(f"  nobody acts: {_picture(views)}")
    disputed = [name for name, view in views.items() if view["phase"] == "disputed"]
    others = [n for n, v in views.items() if n not in disputed and v["phase"] != "unborn"]
    if disputed and (not others or stage.chance.random() < 0.5):
        kind, target = "accept-loss", disputed[0]
    elif others:
        kind, target = "failover", max(others, key=lambda name: stand_of(views[name]))
    else:
        return
    stage.tell(f"  the operator's word: {kind} at {target}")
    if refused := await stage.order(kind, target):
        stage.tell(f"  not done: {refused[:200]}")
