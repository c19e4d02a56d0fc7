"""The operator at the end of a sequence: heals and starts everything, and gives the word where one is asked for.

A word is given only where nobody acts although all run and talk: what mends itself is left alone. A dispute is ended
either way, by chance: failover to who has shown more, or the loss accepted by name.

Else the region with the greatest tidemark is told to take over.
"""

import re
import time
from collections.abc import Mapping
from typing import Any, Final

from chaos.shuffle.stage import Stage

SETTLE_S: Final = 75.0
UNCHANGED_S: Final = 4.0
_ASK_S: Final = 0.25
_COUNTS: Final = re.compile(r"\d+ m?s\b")
_WITHOUT_HISTORY: Final = "unborn"
_DISPUTED: Final = "disputed"

Views = Mapping[str, Mapping[str, Any]]


def settle(stage: Stage) -> bool:
    """Return whether one region acts and all others mirror it, in time."""
    stage.heal_all()
    for name in stage.names:
        stage.start(name)
    deadline_s = time.monotonic() + SETTLE_S
    picture, since_s = "", time.monotonic()
    while time.monotonic() < deadline_s:
        views = {name: view for name in stage.names if (view := stage.view(name)) is not None}
        if len(views) == len(stage.names) and settled(views):
            return True
        # A reason may count seconds: that is no change.
        if (now := _COUNTS.sub("", _picture(views))) != picture:
            picture, since_s = now, time.monotonic()
        elif time.monotonic() - since_s > UNCHANGED_S and not any(
            v["acting"] for v in views.values()
        ):
            _give_a_word(stage, views)
            picture = ""
        stage.check_ends()
        for name in stage.names:
            stage.start(name)
        time.sleep(_ASK_S)
    stage.blame(f"not one primary and its mirrors within {SETTLE_S:.0f} s: {picture}")
    return False


def settled(views: Views) -> bool:
    """Return whether, of all regions' views, one acts and the others mirror it."""
    acting = [view for view in views.values() if view["acting"]]
    return (
        len(acting) == 1
        and sorted(view["role"] for view in views.values())
        == ["acting", *["mirror"] * (len(views) - 1)]
        and len({view["region_epoch"] for view in views.values()}) == 1
    )


def _picture(views: Views) -> str:
    return "; ".join(
        f"{name}: {v['phase']}, epoch {v['region_epoch']}, {v['reason_not_acting'] or 'acts'}"
        for name, v in sorted(views.items())
    )


def _give_a_word(stage: Stage, views: Views) -> None:
    stage.tell(f"  nobody acts: {_picture(views)}")
    disputed = [name for name, view in views.items() if view["phase"] == _DISPUTED]
    others = [
        name
        for name, view in views.items()
        if name not in disputed and view["phase"] != _WITHOUT_HISTORY
    ]
    if disputed and (not others or stage.chance.random() < 0.5):
        kind, target = "accept-loss", disputed[0]
    elif others:
        kind = "failover"
        target = max(others, key=lambda name: _stand(views[name]))
    else:
        return
    stage.tell(f"  the operator's word: {kind} at {target}")
    refused = stage.order(kind, target)
    if refused:
        stage.tell(f"  not done: {refused[:300]}")


def _stand(view: Mapping[str, Any]) -> tuple[int, int]:
    mark = view["tidemark"]
    return mark["region_epoch"], mark["number"]
