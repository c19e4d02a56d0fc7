"""Which of several starts of one region goes on: the one that is known, as long as it is heard (T36). Pure.

INV-KL1  a start that is met for the first time is let in once the one before it has ended, not before
INV-KL2  a start is refused once the known one has spoken after it: two processes do that, never a restart
INV-KL3  a start that answers at its region's address is the known one from then on, unless the one before is heard still
INV-KL4  the known one has ended when it was silent for `SILENT_MS`; beside a start that was refused, for `TWICE_MS`
INV-KL5  a start that stands aside, refused elsewhere, keeps no other one from becoming the known one, as long as it says so
         in handshakes; one that is let in here stands aside no more, until it says so again
INV-KL6  where both stand aside, the other one is let in once the known one has ended: neither waits for the other for ever
INV-KL7  a start that was elected after the known one is the known one at once, whoever is heard; one after which the known one was
         elected is refused for good, also at its region's address. No other rule is asked

Not here: asking at the address (`region.failover.steps.lives` of the broker), telling operators (`folder_life.HeardLives`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from geo_replicator.folder_life import (
    LATE_MS,
    LIVES_HEARD_MAX,
    TWICE_MS,
    LifeVerdict,
    Shown,
    judge_lives,
    was_deposed,
)

SILENT_MS: Final = 3_000
"""A region that acts makes a handshake twice a second, and a mirror asks for news at least each second."""


class Standing(Enum):
    """Whether a start may talk."""

    KNOWN = "it is the one that goes on"
    UNDECIDED = "it is not known yet whether the one before it has ended"
    REFUSED = "the one before it runs still"
    DEPOSED = "another one was elected after it"


@dataclass(slots=True)
class _Newer:
    shown: Shown
    first_ms: int
    last_ms: int
    refused: bool = False


@dataclass(slots=True)
class _Known:
    shown: Shown
    last_ms: int | None
    """None: remembered from an earlier life of this node, and not heard in this one."""
    aside_ms: int | None = None
    """When it made its handshake last as one that stands aside; None: it did not, or does no more."""
    newer: list[_Newer] = field(default_factory=list)


class KnownLives:
    """The known start of each other region, and those that came after it; times are monotonic ms."""

    def __init__(self, remembered: Mapping[str, Shown]) -> None:
        """Go on with what an earlier life of this node knew."""
        self._known = {region: _Known(shown, None) for region, shown in remembered.items()}

    def known(self, region: str) -> Shown | None:
        """Return the start that goes on, as it was heard last; None where none was met."""
        found = self._known.get(region)
        return None if found is None else found.shown

    def is_contested(self, region: str) -> bool:
        """Return whether another start than the known one was heard late."""
        found = self._known.get(region)
        return found is not None and bool(found.newer)

    def hear(
        self,
        region: str,
        shown: Shown | None,
        now_ms: int,
        *,
        at_address: bool,
        is_handshake: bool = True,
    ) -> Standing:
        """Judge who speaks; `at_address`: it answered where its region is to be met.

        `is_handshake` is False for a request in a session, which shows what was true at the session's handshake.
        """
        if shown is None or not shown.incarnations:
            return Standing.KNOWN  # a version that does not tell
        known = self._known.get(region)
        if known is None:
            aside_ms = now_ms if shown.aside else None
            self._known[region] = _Known(shown, now_ms, aside_ms)
            return Standing.KNOWN
        if judge_lives(known.shown, shown) is LifeVerdict.SAME:
            if is_handshake:
                known.aside_ms = now_ms if shown.aside else None
            _note(known, shown, now_ms, at_address=at_address)
            assert known.last_ms == now_ms, "INV-KL4: it was heard just now"
            return Standing.KNOWN
        if was_deposed(shown, known.shown):
            return Standing.DEPOSED
        if was_deposed(known.shown, shown):
            self._known[region] = _Known(shown, now_ms)
            return Standing.KNOWN
        newer = _newer_of(known, shown, now_ms)
        assert newer.refused <= (known.last_ms is not None), "INV-KL2: refused for one not heard"
        if _has_ended(known, newer, now_ms, at_address=at_address):
            self._known[region] = _Known(shown, now_ms)
            assert not self.is_contested(region), f"INV-KL1: {region}"
            return Standing.KNOWN
        return Standing.REFUSED if newer.refused else Standing.UNDECIDED


def _note(known: _Known, shown: Shown, now_ms: int, *, at_address: bool) -> None:
    known.shown, known.last_ms = shown, now_ms
    if not known.newer:
        return
    known.newer = [each for each in known.newer if now_ms - each.last_ms <= TWICE_MS]
    for each in known.newer:
        # What it said before its end may arrive late; an answer was given when it was asked for.
        if not _stands_aside(known, now_ms) and (at_address or now_ms > each.first_ms + LATE_MS):
            each.refused = True


def _newer_of(known: _Known, shown: Shown, now_ms: int) -> _Newer:
    for each in known.newer:
        if judge_lives(each.shown, shown) is LifeVerdict.SAME:
            each.shown, each.last_ms = shown, now_ms
            return each
    added = _Newer(shown, now_ms, now_ms)
    known.newer = [*known.newer, added][-LIVES_HEARD_MAX:]
    return added


def _stands_aside(known: _Known, now_ms: int) -> bool:
    return known.aside_ms is not None and now_ms - known.aside_ms < SILENT_MS


def _has_ended(known: _Known, newer: _Newer, now_ms: int, *, at_address: bool) -> bool:
    if _stands_aside(known, now_ms) and not newer.shown.aside:
        return True
    heard_since = known.last_ms is not None and known.last_ms > newer.first_ms + LATE_MS
    if at_address and not heard_since:
        return True
    silent_from_ms = newer.first_ms if known.last_ms is None else known.last_ms
    return now_ms - silent_from_ms >= (TWICE_MS if newer.refused else SILENT_MS)
