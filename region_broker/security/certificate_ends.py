"""When certificates, CAs and CRLs end, and what is to be said of it: one judgement for the log, the metric, `doctor` and `--check`.

INV-CTE1  what ends within 30 days is warned of before it ends, each day once; what has ended is told as an error
INV-CTE2  what does not count yet is told as an error, too: to those whose clock says so it is as bad as one that has ended
INV-CTE3  one thing in a file hides nothing of another one: beside an old CA that has ended the end of its successor is warned of
Pure. Not here: the files (`tls_files`), who says it (`tls`, the command line).
"""

from collections.abc import Iterable
from enum import Enum
from typing import Final, Literal

import msgspec

DAY_MS: Final = 24 * 60 * 60 * 1000
WARN_BEFORE_MS: Final = 30 * DAY_MS

EndKind = Literal["certificate", "ca", "crl"]
_WAY_OUT: Final[dict[EndKind, str]] = {
    "certificate": "renew it (tidemark cert renew, or your CA's way) and put the new file in its place: no restart is needed",
    "ca": "make a new CA, put both into the CA file of every node, then issue anew: docs/runbooks/certificate_end.md",
    "crl": "have its CA sign a new one and put that in its place: no restart is needed",
}


_CLOCKS: Final = "look at the clocks of this machine and of its CA's (timedatectl), set the wrong one, and issue anew where it was the CA's"


class End(msgspec.Struct, frozen=True):
    """When one thing in a file ends, in ms of the wall clock, and from when on it counts."""

    kind: EndKind
    path: str
    subject: str
    ends_wall_ms: int
    begins_wall_ms: int = 0


class Urgency(Enum):
    """How soon."""

    FAR = "ok"
    NEAR = "ends soon"
    OVER = "ended"
    EARLY = "does not count yet"


class Judgement(msgspec.Struct, frozen=True):
    """What is to be said of one end: what was found, and how to mend it ("" where there is nothing to)."""

    urgency: Urgency
    end: End
    left_ms: int
    """Below 0 once it has ended."""
    found: str
    mend: str

    @property
    def is_refused(self) -> bool:
        """Return whether it does not count now: it has ended, or does not count yet (INV-CTE2)."""
        return self.urgency in {Urgency.OVER, Urgency.EARLY}

    @property
    def text(self) -> str:
        """Both, as one line."""
        return f"{self.found}: {self.mend}" if self.mend else self.found


def judge(end: End, now_wall_ms: int) -> Judgement:
    """Return how soon that is, and what to do (INV-CTE1)."""
    left_ms = end.ends_wall_ms - now_wall_ms
    kind = end.kind if end.kind == "certificate" else end.kind.upper()
    what = f"{kind} {end.subject!r} in {end.path}"
    if left_ms <= 0:
        found = f"{what} ended {_days(-left_ms)} ago, and is refused by everyone"
        return Judgement(Urgency.OVER, end, left_ms, found, _WAY_OUT[end.kind])
    early_ms = end.begins_wall_ms - now_wall_ms
    if early_ms > 0:
        found = f"{what} counts only in {_time(early_ms)} by the clock of this machine, and is refused until then"
        return Judgement(Urgency.EARLY, end, left_ms, found, _CLOCKS)
    found = f"{what} ends in {_days(left_ms)}"
    if left_ms > WARN_BEFORE_MS:
        return Judgement(Urgency.FAR, end, left_ms, found, "")
    return Judgement(Urgency.NEAR, end, left_ms, found, _WAY_OUT[end.kind])


def first_end_by_file(ends: Iterable[End]) -> dict[str, End]:
    """Return of each file what ends first in it."""
    first: dict[str, End] = {}
    for end in ends:
        held = first.get(end.path)
        if held is None or end.ends_wall_ms < held.ends_wall_ms:
            first[end.path] = end
    return first


def judgements(ends: Iterable[End], now_wall_ms: int) -> list[Judgement]:
    """Return what is to be said of all that is in files: of each the first end, and whatever else is not well (INV-CTE3)."""
    known = tuple(dict.fromkeys(ends))
    first = first_end_by_file(known)
    found = [judge(end, now_wall_ms) for end in known]
    return [
        each
        for each in found
        if each.urgency is not Urgency.FAR or each.end is first[each.end.path]
    ]


def _time(duration_ms: int) -> str:
    return (
        _days(duration_ms)
        if duration_ms >= 60 * 60 * 1000
        else f"{max(1, duration_ms // 60_000)} min"
    )


def _days(duration_ms: int) -> str:
    days = duration_ms // DAY_MS
    if days == 0:
        return f"{max(1, duration_ms // (60 * 60 * 1000))} h"
    return "1 day" if days == 1 else f"{days} days"
