"""Regular expressions over topic names, in RE2's syntax, matched in linear time.

INV-RX1  whether a name matches costs at most `TOPIC_REGEX_STATES_MAX` steps per character: no
         backtracking, whatever a client sends
INV-RX3  what was remembered while names were matched is forgotten behind them: a pattern that is kept is as small as its text
INV-RX4  meanwhile it is bounded by states, not by sets of them: such a set has as many as the pattern, and nothing counts what they take

KIP-848 lets a client subscribe by a pattern that the broker resolves; Kafka uses RE2/J and matches whole names.
Matching is a simulated automaton (Thompson) whose steps are remembered.
Not here: the syntax (`regex_syntax`), when topics are resolved (`resolver`).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from region_broker.groups.modern.patterns.regex_syntax import (
    WORD,
    Assert,
    Chars,
    Choice,
    Node,
    RegexRefused,
    Repeat,
    Sequence,
    parse,
    reads,
)
from region_broker.limits import TOPIC_REGEX_BYTES_MAX, TOPIC_REGEX_STATES_MAX

_REMEMBERED_STATES_MAX: Final = 300_000
"""States of all sets that are remembered, some 30 bytes each; a pattern that people write meets sets of a few."""


@dataclass(slots=True)
class _Program:
    """States by number: those that read a character, and steps that read none."""

    reads: dict[int, frozenset[str]] = field(default_factory=dict)
    read_to: dict[int, int] = field(default_factory=dict)
    steps: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    state_count: int = 0

    def new_state(self) -> int:
        if self.state_count >= TOPIC_REGEX_STATES_MAX:
            raise RegexRefused(f"expression is too large: over {TOPIC_REGEX_STATES_MAX} states")
        self.state_count += 1
        return self.state_count - 1

    def link(self, start: int, end: int, condition: str = "") -> None:
        self.steps.setdefault(start, []).append((condition, end))

    def add(self, node: Node, start: int) -> int:
        """Add what `node` matches behind `start`; return the state behind it."""
        match node:
            case Chars(chars):
                self.reads[start] = chars
                self.read_to[start] = end = self.new_state()
                return end
            case Assert(kind):
                end = self.new_state()
                self.link(start, end, kind)
                return end
            case Sequence(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case Choice(parts):
                return self._add_choice(parts, start)
            case Repeat(part, least, most):
                return self._add_repeat(part, least, most, start)

    def _begin(self, start: int) -> int:
        """Return a fresh state behind `start`, so that what reads there shares it with nothing."""
        fresh = self.new_state()
        self.link(start, fresh)
        return fresh

    def _add_choice(self, parts: tuple[Node, ...], start: int) -> int:
        ends = [self.add(part, self._begin(start)) for part in parts]
        end = self.new_state()
        for each in ends:
            self.link(each, end)
        return end

    def _add_repeat(self, part: Node, least: int, most: int | None, start: int) -> int:
        for _ in range(least):
            start = self.add(part, self._begin(start))
        if most is None:
            again = self._begin(start)
            self.link(self.add(part, self._begin(again)), again)
            return self._begin(again)
        skips: list[int] = []
        for _ in range(most - least):
            skips.append(start)
            start = self.add(part, self._begin(start))
        end = self._begin(start)
        for skip in skips:
            self.link(skip, end)
        return end


class TopicRegex:
    """One pattern, ready to be matched against topic names."""

    def __init__(self, pattern: str) -> None:
        """Compile `pattern`; raises `RegexRefused`."""
        if len(pattern.encode()) > TOPIC_REGEX_BYTES_MAX:
            raise RegexRefused(f"expression is too large: over {TOPIC_REGEX_BYTES_MAX} bytes")
        self.pattern: Final = pattern
        self._program = _Program()
        begin = self._program.new_state()
        self._end = self._program.add(parse(pattern), begin)
        self._begin = frozenset((begin,))
        self._closures: dict[tuple[frozenset[int], bool, bool, bool], frozenset[int]] = {}
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._remembered_states = 0

    @property
    def state_count(self) -> int:
        """Return how many states the automaton has: the most that one character costs."""
        return self._program.state_count

    def matches(self, name: str) -> bool:
        """Return whether the whole `name` matches."""
        states = self._begin
        word_before = False
        for position in range(len(name) + 1):
            char = name[position] if position < len(name) else ""
            boundary = word_before != (char in WORD)
            states = self._closed(states, position == 0, not char, boundary)
            if not char:
                return self._end in states
            states = self._moved(states, char)
            if not states:
                return False
            word_before = char in WORD
        raise AssertionError("the loop ends with the name")

    def those_of(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the names that match, and forget what was remembered for that (INV-RX3)."""
        found = tuple(name for name in names if self.matches(name))
        self._forget()
        return found

    def _forget(self) -> None:
        self._closures.clear()
        self._moves.clear()
        self._remembered_states = 0

    def _make_room(self, *states: Collection[int]) -> None:
        """Count these sets among those that are remembered, and forget the others where it would be too much (INV-RX4)."""
        count = sum(map(len, states)) + len(states)
        if self._remembered_states + count > _REMEMBERED_STATES_MAX:
            self._forget()
        self._remembered_states += count

    def _closed(
        self, states: frozenset[int], at_start: bool, at_end: bool, boundary: bool
    ) -> frozenset[int]:
        key = (states, at_start, at_end, boundary)
        known = self._closures.get(key)
        if known is not None:
            return known
        holds = {"": True, "start": at_start, "end": at_end,
                 "boundary": boundary, "inside": not boundary}  # fmt: skip
        found = set(states)
        waiting = list(states)
        while waiting:
            for condition, state in self._program.steps.get(waiting.pop(), ()):
                if holds[condition] and state not in found:
                    found.add(state)
                    waiting.append(state)
        self._make_room(states, found)
        self._closures[key] = frozenset(found)
        return self._closures[key]

    def _moved(self, states: frozenset[int], char: str) -> frozenset[int]:
        key = (states, char)
        known = self._moves.get(key)
        if known is not None:
            return known
        program = self._program
        moved = frozenset(
            program.read_to[state]
            for state in states
            if state in program.reads and reads(program.reads[state], char)
        )
        self._make_room(states, moved)
        self._moves[key] = moved
        return moved
