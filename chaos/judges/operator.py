"""What an operator reads off the regions' views, and which word it gives where nobody acts: for processes and simulations.

A word is given only where nobody acts although all run and talk: what mends itself is left alone. A dispute is ended
either way, by chance: failover to who has shown more, or the loss accepted by name. Else the region with the greatest
tidemark is told to take over.

Not here: giving it, waiting (`chaos.shuffle.settling`, and that of the simulation).
"""

import re
from collections.abc import Mapping
from random import Random
from typing import Any, Final, NamedTuple

UNCHANGED_S: Final = 4.0
"""How long nothing changes before a word is given."""
_COUNTS: Final = re.compile(r"\d+ m?s\b")
_WITHOUT_HISTORY: Final = "unborn"
_DISPUTED: Final = "disputed"

View = Mapping[str, Any]
Views = Mapping[str, View]
"""What `GET /v1/region` says, by region: those that answer."""
Stand = tuple[int, int]
"""Region epoch and number of a tidemark."""


class Order(NamedTuple):
    """A word of the operator: what, and who is to act."""

    kind: str
    target: str


def stand_of(view: View) -> Stand:
    """Return the tidemark that a region has reached, or published last."""
    mark = view["tidemark"]
    return mark["region_epoch"], mark["number"]


def settled(views: Views) -> bool:
    """Return whether, of all regions' views, one acts and the others mirror it."""
    acting = [view for view in views.values() if view["acting"]]
    return (
        len(acting) == 1
        and sorted(view["role"] for view in views.values())
        == ["acting", *["mirror"] * (len(views) - 1)]
        and len({view["region_epoch"] for view in views.values()}) == 1
    )


def picture(views: Views) -> str:
    """Return how the regions stand, in a line."""
    return "; ".join(
        f"{name}: {v['phase']}, epoch {v['region_epoch']}, {v['reason_not_acting'] or 'acts'}"
        for name, v in sorted(views.items())
    )


def without_counts(text: str) -> str:
    """Return a picture without the seconds that its reasons count: that these grow is no change."""
    return _COUNTS.sub("", text)


def word_for(views: Views, chance: Random) -> Order | None:
    """Return the word where nobody acts; None where all regions are without history."""
    disputed = [name for name, view in views.items() if view["phase"] == _DISPUTED]
    others = [
        name
        for name, view in views.items()
        if name not in disputed and view["phase"] != _WITHOUT_HISTORY
    ]
    if disputed and (not others or chance.random() < 0.5):
        return Order("accept-loss", disputed[0])
    if others:
        return Order("failover", max(others, key=lambda name: stand_of(views[name])))
    return None
