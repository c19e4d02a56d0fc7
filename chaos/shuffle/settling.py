"""The operator at the end of a sequence: heals and starts everything, and gives the word where one is asked for.

Not here: which word, and when all is well (`chaos.judges.operator`).
"""

import time
from typing import Final

from chaos.judges.operator import UNCHANGED_S, Views, picture, settled, without_counts, word_for
from chaos.shuffle.stage import Stage

SETTLE_S: Final = 75.0
_ASK_S: Final = 0.25


def settle(stage: Stage) -> bool:
    """Return whether one region acts and all others mirror it, in time."""
    stage.heal_all()
    for name in stage.names:
        stage.start(name)
    deadline_s = time.monotonic() + SETTLE_S
    seen, since_s = "", time.monotonic()
    while time.monotonic() < deadline_s:
        views = {name: view for name in stage.names if (view := stage.view(name)) is not None}
        if len(views) == len(stage.names) and settled(views):
            return True
        if (now := without_counts(picture(views))) != seen:
            seen, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > UNCHANGED_S and not any(
            v["acting"] for v in views.values()
        ):
            _give_a_word(stage, views)
            seen = ""
        stage.check_ends()
        for name in stage.names:
            stage.start(name)
        time.sleep(_ASK_S)
    stage.blame(f"not one primary and its mirrors within {SETTLE_S:.0f} s: {seen}")
    return False


def _give_a_word(stage: Stage, views: Views) -> None:
    stage.tell(f"  nobody acts: {picture(views)}")
    order = word_for(views, stage.chance)
    if order is None:
        return
    stage.tell(f"  the operator's word: {order.kind} at {order.target}")
    refused = stage.order(order.kind, order.target)
    if refused:
        stage.tell(f"  not done: {refused[:300]}")
