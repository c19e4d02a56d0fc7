"""The work of one turn of the event loop, over all who ask: so much of it is begun, and what is more in later turns.

An event loop runs all that is ready before it polls again: however little each of a thousand pieces of work is, nobody else is served between
the first of them and the last.
INV-LTB1 while what was begun in a turn costs TURN_COST_MAX or more, whoever asks this (`is_spent`) begins nothing: it waits (`later`), and is begun
         in one of the next turns, with a poll in between
INV-LTB2 what waits is begun before what comes after it, by turns of who asks (INV-PFT2), each once, unless it is withdrawn; what comes while a turn
         begins waits for the next one, as what goes on in pieces would take the whole of it
INV-LTB3 a turn that is not half spent costs nothing: what it took counts with the next one's until both make half of a budget
What a piece costs is said by who begins it, once it is known, which is often behind its begin: the last one may go beyond the budget.
Not here: what is begun (`wire.server`, `handlers.fetch`), pieces of one long work (`wire.cooperative_yield`).
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeAlias

from region_broker.ports.fair_turns import InTurn

TURN_COST_MAX: Final = 8 * 1024
"""Some 10 ms (`limits.REQUEST_COST_MIN`)."""
Work: TypeAlias = Callable[[], None]
"""Begins what waited; it must not raise."""


class TurnBudget:
    """Belongs to one event loop."""

    __slots__ = ("_begins", "_coming", "_is_due", "_spent", "_waiting", "is_spent")

    def __init__(self) -> None:
        """Nothing was begun, nothing waits."""
        self._spent = 0
        self.is_spent = False
        """Whether nothing more is to be begun in this turn."""
        self._is_due = False
        self._waiting: Final[InTurn[Work]] = InTurn()
        self._coming: Final[InTurn[Work]] = InTurn()  # while a turn begins
        self._begins = False

    def spend(self, cost: int) -> None:
        """Count what was begun."""
        self._spent += cost
        if self._spent >= TURN_COST_MAX // 2:
            self.is_spent = self._spent >= TURN_COST_MAX
            if not self._is_due:
                self._come_back()

    def later(self, who: str, work: Work) -> None:
        """Have `work` begun for `who` in a later turn; once, if it waits already."""
        (self._coming if self._begins else self._waiting).add(who, work)
        if not self._is_due:
            self._come_back()

    def withdraw(self, who: str, work: Work) -> None:
        """Begin it no more, if it waits."""
        self._waiting.withdraw(who, work)
        self._coming.withdraw(who, work)

    def _come_back(self) -> None:
        self._is_due = True
        asyncio.get_running_loop().call_soon(self._begin_turn)

    def _begin_turn(self) -> None:
        self._is_due, self._begins = False, True
        self._spent, self.is_spent = 0, False
        try:
            while not self.is_spent and (first := self._waiting.pop()) is not None:
                first[1]()
        finally:
            self._begins = False
            while (came := self._coming.pop()) is not None:
                self._waiting.add(*came)
            if self._waiting and not self._is_due:
                self._come_back()
