r"""Regular expressions over topic names, in RE2's syntax, matched in linear time.

INV-RX1  whether a name matches costs at most `TOPIC_REGEX_STATES_MAX` steps per character: no
         backtracking, whatever a client sends
INV-RX2  what RE2 refuses is refused here (back references, look-around, `**`, `{1001}`)

KIP-848 lets a client subscribe by a pattern that the broker resolves; Kafka uses RE2/J and matches
whole names. Names consist of letters, digits, `.`, `_` and `-`, so only those ninety-odd printable
characters are told apart; what else a transactional id holds counts as one character more
(`handlers.list_transactions`, KIP-1152). Missing of RE2: Unicode classes (`\p{..}`), which are refused.
Parsing is recursive descent, matching a simulated automaton (Thompson) whose steps are remembered.
Not here: when topics are resolved (`subscriptions`).
"""

import string
from dataclasses import dataclass, field
from typing import Final

from region_broker.limits import TOPIC_REGEX_BYTES_MAX, TOPIC_REGEX_STATES_MAX

_ASCII: Final = frozenset(map(chr, range(0x20, 0x7F)))
_OTHER: Final = "\N{REPLACEMENT CHARACTER}"
"""Stands for every character outside `_ASCII`: `.` and negated classes match it, nothing else does."""
_ALPHABET: Final = _ASCII | {_OTHER}
_WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_PERL: Final = {
    "d": frozenset(string.digits),
    "w": _WORD,
    "s": frozenset(" "),
}
_POSIX: Final = {
    "alnum": frozenset(string.ascii_letters + string.digits),
    "alpha": frozenset(string.ascii_letters),
    "ascii": _ASCII,
    "blank": frozenset(" "),
    "cntrl": frozenset[str](),
    "digit": frozenset(string.digits),
    "graph": _ASCII - {" "},
    "lower": frozenset(string.ascii_lowercase),
    "print": _ASCII,
    "punct": frozenset(string.punctuation),
    "space": frozenset(" "),
    "upper": frozenset(string.ascii_uppercase),
    "word": _WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}
_CONTROLS: Final = "aftnrv"
_REPEAT_MAX: Final = 1_000  # RE2's
_REMEMBERED_MAX: Final = 5_000
_DEPTH_MAX: Final = 50


class RegexRefused(ValueError):
    """The pattern is not one that RE2 takes, or too large; the text says why."""


# --- the tree -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Chars:
    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Assert:
    kind: str


@dataclass(frozen=True, slots=True)
class _Sequence:
    parts: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Choice:
    parts: "tuple[_Node, ...]"


@dataclass(frozen=True, slots=True)
class _Repeat:
    part: "_Node"
    least: int
    most: int | None


_Node = _Chars | _Assert | _Sequence | _Choice | _Repeat


class _Parser:
    """Reads one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._ignores_case = False
        self._depth = 0

    def parse(self) -> _Node:
        tree = self._choice()
        if self._position < len(self._pattern):
            raise RegexRefused("unexpected )")
        return tree

    def _peek(self, ahead: int = 0) -> str:
        position = self._position + ahead
        return self._pattern[position] if position < len(self._pattern) else ""

    def _take(self) -> str:
        char = self._peek()
        self._position += 1
        return char

    def _accept(self, text: str) -> bool:
        if self._pattern.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _choice(self) -> _Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise RegexRefused(f"groups are nested deeper than {_DEPTH_MAX}")
        outer = self._ignores_case
        parts = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        self._ignores_case = outer
        self._depth -= 1
        return parts[0] if len(parts) == 1 else _Choice(tuple(parts))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _repeated(self) -> _Node:
        if self._peek() and self._peek() in "*+?":
            raise RegexRefused(f"missing argument to repetition operator: {self._peek()}")
        part = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return part
        self._accept("?")  # lazy: the same names match
        if self._bounds() is not None:
            raise RegexRefused("invalid nested repetition operator")
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return bounds
        return self._counted() if self._peek() == "{" else None

    def _counted(self) -> tuple[int, int | None] | None:
        end = self._pattern.find("}", self._position)
        text = self._pattern[self._position + 1 : end] if end >= 0 else ""
        least, comma, most = text.partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # a brace as it stands, as in RE2
        low = int(least)
        high = low if not comma else (int(most) if most else None)
        if max(low, high or 0) > _REPEAT_MAX or (high is not None and high < low):
            raise RegexRefused(f"invalid repeat count: {{{text}}}")
        self._position = end + 1
        return low, high

    def _atom(self) -> _Node:
        match self._take():
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return _Chars(_ALPHABET)
            case "^":
                return _Assert("start")
            case "$":
                return _Assert("end")
            case "\\":
                return self._escape()
            case char:
                return self._literal(char)

    def _literal(self, char: str) -> _Chars:
        chars = {char.lower(), char.upper()} if self._ignores_case else {char}
        return _Chars(frozenset(chars))

    def _group(self) -> _Node:
        if self._peek() == "?":
            self._position += 1
            if self._accept("P<") or (self._peek() == "<" and self._peek(1) not in ("=", "!")):
                self._accept("<")
                self._name()
            elif self._flags():
                return _Sequence(())
        outer = self._ignores_case
        tree = self._choice()
        if not self._accept(")"):
            raise RegexRefused("missing closing )")
        self._ignores_case = outer
        return tree

    def _name(self) -> None:
        end = self._pattern.find(">", self._position)
        name = self._pattern[self._position : end] if end >= 0 else ""
        if not name or not set(name) <= _WORD:
            raise RegexRefused(f"invalid named capture: {name}")
        self._position = end + 1

    def _flags(self) -> bool:
        """Read `i)` or `i:`; tell whether the flags stand alone and rule the rest of the group."""
        wanted = True
        while (char := self._take()) not in (":", ")"):
            if char == "-" and wanted:
                wanted = False
            elif char == "i":
                self._ignores_case = wanted
            elif not char or char not in "msU":
                raise RegexRefused(f"invalid or unsupported Perl syntax: (?{char}")
        return char == ")"

    def _escape(self) -> _Node:
        char = self._take()
        if not char:
            raise RegexRefused("trailing backslash at end of expression")
        if char in _ASSERTIONS:
            return _Assert(_ASSERTIONS[char])
        if char == "Q":
            end = self._pattern.find("\\E", self._position)
            quoted = self._pattern[self._position : end if end >= 0 else None]
            self._position += len(quoted) + (2 if end >= 0 else 0)
            return _Sequence(tuple(self._literal(each) for each in quoted))
        return _Chars(self._escaped_chars(char))

    def _escaped_chars(self, char: str) -> frozenset[str]:
        if char.lower() in _PERL:
            found = _PERL[char.lower()]
            return found if char.islower() else _ALPHABET - found
        if char in _CONTROLS:
            return frozenset()  # no topic name holds one
        if char == "x":
            return self._literal(self._hexadecimal()).chars
        if char.isalnum() or not char.isascii():
            raise RegexRefused(f"invalid escape sequence: \\{char}")
        return frozenset(char)

    def _hexadecimal(self) -> str:
        if self._accept("{"):
            end = self._pattern.find("}", self._position)
            digits = self._pattern[self._position : end] if end >= 0 else ""
            self._position = end + 1
        else:
            digits = self._take() + self._take()
        if not 0 < len(digits) <= 6 or not set(digits) <= set(string.hexdigits):
            raise RegexRefused(f"invalid escape sequence: \\x{digits}")
        code = int(digits, 16)
        if code > 0x10FFFF:
            raise RegexRefused(f"invalid escape sequence: \\x{digits}")
        return chr(code)

    def _class(self) -> _Node:
        negated = self._accept("^")
        chars: set[str] = set()
        first = True
        while first or self._peek() != "]":
            if not self._peek():
                raise RegexRefused("missing closing ]")
            chars |= self._class_item()
            first = False
        self._position += 1
        if self._ignores_case:
            chars |= {each.lower() for each in chars} | {each.upper() for each in chars}
        return _Chars(_ALPHABET - chars if negated else frozenset(chars))

    def _class_item(self) -> frozenset[str]:
        if self._accept("[:"):
            end = self._pattern.find(":]", self._position)
            name = self._pattern[self._position : end] if end >= 0 else ""
            if name.removeprefix("^") not in _POSIX:
                raise RegexRefused(f"invalid character class range: [:{name}:]")
            self._position = end + 2
            found = _POSIX[name.removeprefix("^")]
            return _ALPHABET - found if name.startswith("^") else found
        low = self._class_char()
        if self._peek() != "-" or self._peek(1) in ("]", "") or len(low) != 1:
            return low
        self._position += 1
        high = self._class_char()
        if len(high) != 1 or min(low) > min(high):
            raise RegexRefused("invalid character class range")
        return frozenset(each for each in _ALPHABET if min(low) <= each <= min(high))

    def _class_char(self) -> frozenset[str]:
        char = self._take()
        if char != "\\":
            return frozenset(char)
        escaped = self._take()
        if not escaped:
            raise RegexRefused("trailing backslash at end of expression")
        return self._escaped_chars(escaped)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 6


# --- the automaton ------------------------------------------------------------------------------


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

    def add(self, node: _Node, start: int) -> int:
        """Add what `node` matches behind `start`; return the state behind it."""
        match node:
            case _Chars(chars):
                self.reads[start] = chars
                self.read_to[start] = end = self.new_state()
                return end
            case _Assert(kind):
                end = self.new_state()
                self.link(start, end, kind)
                return end
            case _Sequence(parts):
                for part in parts:
                    start = self.add(part, start)
                return start
            case _Choice(parts):
                return self._add_choice(parts, start)
            case _Repeat(part, least, most):
                return self._add_repeat(part, least, most, start)

    def _begin(self, start: int) -> int:
        """Return a fresh state behind `start`, so that what reads there shares it with nothing."""
        fresh = self.new_state()
        self.link(start, fresh)
        return fresh

    def _add_choice(self, parts: tuple[_Node, ...], start: int) -> int:
        ends = [self.add(part, self._begin(start)) for part in parts]
        end = self.new_state()
        for each in ends:
            self.link(each, end)
        return end

    def _add_repeat(self, part: _Node, least: int, most: int | None, start: int) -> int:
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


def _reads(chars: frozenset[str], char: str) -> bool:
    return char in chars or (_OTHER in chars and char not in _ASCII)


class TopicRegex:
    """One pattern, ready to be matched against topic names."""

    def __init__(self, pattern: str) -> None:
        """Compile `pattern`; raises `RegexRefused`."""
        if len(pattern.encode()) > TOPIC_REGEX_BYTES_MAX:
            raise RegexRefused(f"expression is too large: over {TOPIC_REGEX_BYTES_MAX} bytes")
        self.pattern: Final = pattern
        self._program = _Program()
        begin = self._program.new_state()
        self._end = self._program.add(_Parser(pattern).parse(), begin)
        self._begin = frozenset((begin,))
        self._closures: dict[tuple[frozenset[int], bool, bool, bool], frozenset[int]] = {}
        self._moves: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    @property
    def state_count(self) -> int:
        """Return how many states the automaton has: the most that one character costs."""
        return self._program.state_count

    def matches(self, name: str) -> bool:
        """Tell whether the whole `name` matches."""
        states = self._begin
        word_before = False
        for position in range(len(name) + 1):
            char = name[position] if position < len(name) else ""
            boundary = word_before != (char in _WORD)
            states = self._closed(states, position == 0, not char, boundary)
            if not char:
                return self._end in states
            states = self._moved(states, char)
            if not states:
                return False
            word_before = char in _WORD
        raise AssertionError("the loop ends with the name")

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
        if len(self._closures) >= _REMEMBERED_MAX:
            self._closures.clear()
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
            if state in program.reads and _reads(program.reads[state], char)
        )
        if len(self._moves) >= _REMEMBERED_MAX:
            self._moves.clear()
        self._moves[key] = moved
        return moved
