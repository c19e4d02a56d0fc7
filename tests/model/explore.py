"""An explicit-state model checker: every reachable state, breadth first, and the shortest way to what is wrong.

A state is judged when it is first met; the first one that is wrong ends the search, and no shorter way leads to any
wrong one. Liveness is a question on the whole graph: from every reachable state some good one can be reached.
"""

import gc
import random
import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar


class Broken(Exception):
    """A move, or the state that it leads to, breaks an invariant; `name` says which."""

    def __init__(self, name: str, detail: str) -> None:
        """`name` is what mutants are told apart by."""
        super().__init__(f"{name}: {detail}")
        self.name = name


Label = tuple[Any, ...]
"""A text with places to fill in, and what to fill in: made readable only where somebody reads it."""


class Move(NamedTuple):
    """Something that can happen: what it is called, and the state after it."""

    label: Label
    after: Callable[[], Hashable]


State = TypeVar("State", bound=Hashable)


class Instance(Protocol[State]):
    """A small world whose states are all looked at."""

    def initial(self) -> State:
        """Return where it begins."""
        ...

    def moves(self, state: State) -> Iterator[Move]:
        """Yield all that can happen."""
        ...

    def canonical(self, state: State) -> State:
        """Return the one that stands for all states which go on as this one."""
        ...

    def check(self, state: State) -> None:
        """Raise `Broken` where an invariant does not hold."""
        ...

    def good(self, state: State) -> bool:
        """Return whether what was begun is done."""
        ...


@dataclass(frozen=True, slots=True)
class Found:
    """What was wrong, and the shortest way there."""

    name: str
    text: str
    trace: tuple[str, ...]


@dataclass(slots=True)
class Explored:
    """What a search came to."""

    states: int = 0
    transitions: int = 0
    depth: int = 0
    seconds: float = 0.0
    found: Found | None = None


@dataclass(slots=True)
class _Search:
    world: Instance[Any]
    numbers: dict[Hashable, int] = field(default_factory=dict)
    came_from: list[tuple[int, Label]] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    result: Explored = field(default_factory=Explored)

    def run(self, *, liveness: bool) -> Explored:
        began_s = time.process_time()
        try:
            self._layers(liveness=liveness)
            if liveness:
                self._stuck()
        except _Stopped as stopped:
            self.result.found = stopped.found
        self.result.states = len(self.numbers)
        self.result.seconds = time.process_time() - began_s
        return self.result

    def _layers(self, *, liveness: bool) -> None:
        first = self.world.initial()
        self.numbers[first] = 0
        self.came_from.append((-1, ()))
        layer = [(0, first)]
        while layer:
            following: list[tuple[int, Hashable]] = []
            for number, state in layer:
                for label, after in self.world.moves(state):
                    found = self._after(number, label, after)
                    if found is None:
                        continue
                    to, met = found
                    if liveness and to != number:
                        self.edges.append((number, to))
                    if met is not None:
                        following.append((to, met))
            layer = following
            self.result.depth += bool(layer)

    def _after(
        self, number: int, label: Label, after: Callable[[], Hashable]
    ) -> tuple[int, Hashable | None] | None:
        self.result.transitions += 1
        try:
            state = self.world.canonical(after())
            fresh = len(self.came_from)
            known = self.numbers.setdefault(state, fresh)
            if known != fresh:
                return known, None
            self.came_from.append((number, label))
            self.world.check(state)
        except Broken as broken:
            raise self._stop(broken.name, str(broken), number, label) from broken
        except AssertionError as broken:
            raise self._stop("assertion", f"assertion: {broken!r}", number, label) from broken
        return fresh, state

    def _stop(self, name: str, text: str, number: int, *last: Label) -> "_Stopped":
        labels = list(last)
        while number > 0:
            number, label = self.came_from[number]
            labels.append(label)
        return _Stopped(Found(name, text, tuple(readable(label) for label in reversed(labels))))

    def _stuck(self) -> None:
        before: dict[int, list[int]] = {}
        for start, to in self.edges:
            before.setdefault(to, []).append(start)
        reached = {number for state, number in self.numbers.items() if self.world.good(state)}
        waiting = list(reached)
        while waiting:
            for start in before.get(waiting.pop(), ()):
                if start not in reached:
                    reached.add(start)
                    waiting.append(start)
        stuck = next((n for n in self.numbers.values() if n not in reached), None)
        if stuck is not None:
            raise self._stop("stuck", "stuck: nothing good can be reached any more", stuck)


class _Stopped(Exception):
    def __init__(self, found: Found) -> None:
        super().__init__(found.text)
        self.found = found


def readable(label: Label) -> str:
    """Return a label in words."""
    return str(label[0]).format(*label[1:])


def walk(world: Instance[Any], *, steps: int, seed: int) -> Found | None:
    """Go one drawn way through a world that is too large to be looked at whole; return what was wrong."""
    chance, state, labels = random.Random(seed), world.initial(), [("seed {}", seed)]
    for _ in range(steps):
        moves = list(world.moves(state))
        if not moves:
            return None
        label, after = chance.choice(moves)
        labels.append(label)
        try:
            state = world.canonical(after())
            world.check(state)
        except (Broken, AssertionError) as broken:
            name = broken.name if isinstance(broken, Broken) else "assertion"
            return Found(name, str(broken), tuple(map(readable, labels)))
    return None


def explore(world: Instance[Any], *, liveness: bool = True) -> Explored:
    """Look at every state that can be reached."""
    gc.disable()  # nothing is thrown away, so there is nothing to look for, among millions of tuples
    try:
        return _Search(world).run(liveness=liveness)
    finally:
        gc.enable()
