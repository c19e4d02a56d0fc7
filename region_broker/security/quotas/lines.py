"""In which order those begin who wait until what their limit owes is paid back.

INV-SQL1  while something is owed of a limit, none that it limits is let go, over all connections of those who share it; they are let go in the
          order in which they came, in one step of the loop about as many as what is left is enough for: what they take beyond is owed
INV-SQL2  however many wait at one limit, one timer runs for them, and nobody is looked at before its turn
INV-SQL3  a change of quotas counts for who waits, too, after LOOK_S_MAX at the latest
A connection that was told to be quiet is left unread by itself; without a line, who opens enough of them would have as many requests
carried out in each such time, whatever the limit.
Pure but for the timer, which is handed in. Not here: how much is owed (`buckets`), what of a connection waits (`wire.server`).
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeAlias

from region_broker.security.quotas.entities import Limit, QuotaKey, Sharers

LOOK_S_MAX: Final = 1.0
LET_GO_AT_ONCE: Final = 64
ASSUMED_PERCENT_S: Final = 0.01
"""What a request is taken for until it is charged for its time: a tenth of a millisecond of the loop."""


class Timer(Protocol):
    """What can be called off."""

    def cancel(self) -> None:
        """Do not call."""
        ...


class Debts(Protocol):
    """How much of limits is left (`Throttles`)."""

    def owes(self, limit: Limit) -> bool:
        """Return whether something is owed of a limit."""
        ...

    def left_of(self, limit: Limit) -> float:
        """Return how much is left of a limit; below 0: how much is owed."""
        ...


CallLater: TypeAlias = Callable[[float, Callable[[], None]], Timer]
"""Calls after so many seconds, 0: in the next step of the loop."""


class Place:
    """One that waits; `limits` says by what it is limited now, `go` lets it go. A connection that is not read yet has 0 `request_bytes`."""

    __slots__ = ("_go", "_limits", "_line", "_passed", "_request_bytes")

    def __init__(
        self, limits: Callable[[], Iterable[Limit]], go: Callable[[], None], request_bytes: int
    ) -> None:
        """Wait in no line yet."""
        self._limits = limits
        self._go = go
        self._request_bytes = request_bytes
        self._line: _Line | None = None
        self._passed: set[Sharers] = set()

    def cancel(self) -> None:
        """Wait no more, and be let go by nobody."""
        if self._line is not None:
            self._line.leave(self)
            self._line = None

    def limit_of(self, sharers: Sharers) -> Limit | None:
        """Return the limit that it waits for; None where it has that one no more."""
        return next((each for each in self._limits() if each.sharers == sharers), None)

    def takes_of(self, sharers: Sharers) -> float:
        """Return what it will take of a limit, as far as is known."""
        return ASSUMED_PERCENT_S if sharers[0] is QuotaKey.REQUEST else float(self._request_bytes)

    def queue(self, lines: "Lines") -> bool:
        """Wait in the first line in which it has to, and has not waited yet; return whether there is one."""
        for limit in self._limits():
            if limit.sharers not in self._passed and lines.has_to_wait(limit):
                self._passed.add(limit.sharers)
                self._line = lines.of(limit.sharers)
                self._line.enter(self)
                return True
        return False

    def go_on(self, lines: "Lines") -> None:
        """Wait for the next of its limits, or be let go."""
        self._line = None
        if not self.queue(lines):
            self._go()


class _Line:
    """Those who wait for what one limit owes, in the order in which they came."""

    __slots__ = ("_lines", "_places", "_sharers", "_timer")

    def __init__(self, lines: "Lines", sharers: Sharers) -> None:
        self._lines = lines
        self._sharers = sharers
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._timer: Timer | None = None

    def enter(self, place: Place) -> None:
        """Wait behind all others."""
        self._places[place] = None
        if self._timer is None:
            self._look()

    def leave(self, place: Place) -> None:
        """Wait no more; a line that nobody waits in is none."""
        self._places.pop(place, None)
        if not self._places and self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._lines.end(self._sharers)

    def _look(self, taken: float = 0.0) -> None:
        """Look again once the first one may go, when those who go now will have been charged what they take."""
        limit = next(iter(self._places)).limit_of(self._sharers)
        owed_s = 0.0 if limit is None else self._lines.owed_s(limit, taken)
        self._timer = self._lines.call_later(min(owed_s, LOOK_S_MAX), self._let_go)

    def _let_go(self) -> None:
        self._timer = None
        taken = 0.0
        for _ in range(LET_GO_AT_ONCE):
            first = next(iter(self._places), None)
            if first is None:
                break
            limit = first.limit_of(self._sharers)
            if limit is not None and self._lines.debts.left_of(limit) - taken < 0.0:
                break
            taken += first.takes_of(self._sharers)
            del self._places[first]
            first.go_on(self._lines)
        if not self._places:
            self._lines.end(self._sharers)
        elif self._timer is None:
            self._look(taken)


class Lines:
    """All lines of a node."""

    def __init__(self, debts: Debts, call_later: CallLater) -> None:
        """Nobody waits yet."""
        self.debts = debts
        self.call_later = call_later
        self._by_sharers: dict[Sharers, _Line] = {}

    def __len__(self) -> int:
        """Return how many limits somebody waits for."""
        return len(self._by_sharers)

    def wait(
        self, limits: Callable[[], Iterable[Limit]], go: Callable[[], None], request_bytes: int = 0
    ) -> Place | None:
        """Have somebody wait who is limited so, until `go` is called; None: nothing is to be waited for."""
        for limit in limits():
            if self.has_to_wait(limit):
                place = Place(limits, go, request_bytes)
                place.queue(self)
                return place
        return None

    def has_to_wait(self, limit: Limit) -> bool:
        """Return whether whoever comes now waits: something is owed, or others came before (INV-SQL1)."""
        return limit.sharers in self._by_sharers or self.debts.owes(limit)

    def owed_s(self, limit: Limit, taken: float) -> float:
        """Return how long it takes until nothing is owed of a limit, of which so much is taken beside, in whole milliseconds."""
        return math.ceil(max(taken - self.debts.left_of(limit), 0.0) / limit.rate * 1_000) / 1_000

    def of(self, sharers: Sharers) -> _Line:
        """Return the line of a limit."""
        line = self._by_sharers.get(sharers)
        if line is None:
            line = self._by_sharers[sharers] = _Line(self, sharers)
        return line

    def end(self, sharers: Sharers) -> None:
        """Keep no line that nobody waits in."""
        self._by_sharers.pop(sharers, None)
