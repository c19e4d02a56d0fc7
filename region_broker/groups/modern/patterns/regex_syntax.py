r"""RE2's syntax, as far as names of topics need it: a pattern becomes a tree.

INV-RX2  what RE2 refuses is refused here (back references, look-around, `**`, `{1001}`)

Names consist of letters, digits, `.`, `_` and `-`, so only those ninety-odd printable characters are told apart; what
else a transactional id holds counts as one character more (`handlers.transactions.list_transactions`, KIP-1152). Missing of RE2:
Unicode classes (`\p{..}`), which are refused. Parsing is recursive descent.
Not here: matching (`topic_regex`).
"""

import string
from dataclasses import dataclass
from typing import Final

_ASCII: Final = frozenset(map(chr, range(0x20, 0x7F)))
_OTHER: Final = "\N{REPLACEMENT CHARACTER}"
"""Stands for every character outside `_ASCII`: `.` and negated classes match it, nothing else does."""
_ALPHABET: Final = _ASCII | {_OTHER}
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
_PERL: Final = {
    "d": frozenset(string.digits),
    "w": WORD,
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
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
_ASSERTIONS: Final = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}
_CONTROLS: Final = "aftnrv"
_REPEAT_MAX: Final = 1_000  # RE2's
_DEPTH_MAX: Final = 50


class RegexRefused(ValueError):
    """The pattern is not one that RE2 takes, or too large; the text says why."""


def reads(chars: frozenset[str], char: str) -> bool:
    """Return whether a set of a tree holds `char`, which may be any character."""
    return char in chars or (_OTHER in chars and char not in _ASCII)


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set."""

    chars: frozenset[str]


@dataclass(frozen=True, slots=True)
class Assert:
    """A place: `start`, `end`, `boundary` of a word or `inside` of one."""

    kind: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One behind the other."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    parts: "tuple[Node, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """So many times, `most` None: without end."""

    part: "Node"
    least: int
    most: int | None


Node = Chars | Assert | Sequence | Choice | Repeat


def parse(pattern: str) -> Node:
    """Return the tree of `pattern`; raises `RegexRefused`."""
    return _Parser(pattern).parse()


class _Parser:
    """Reads one pattern."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._ignores_case = False
        self._depth = -1  # the pattern itself is no group

    def parse(self) -> Node:
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

    def _choice(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise RegexRefused(f"groups are nested deeper than {_DEPTH_MAX}")
        outer = self._ignores_case
        parts = [self._sequence()]
        while self._accept("|"):
            parts.append(self._sequence())
        self._ignores_case = outer
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Choice(tuple(parts))

    def _sequence(self) -> Node:
        parts: list[Node] = []
        while self._peek() not in ("", "|", ")"):
            parts.append(self._repeated())
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _repeated(self) -> Node:
        if self._peek() and self._peek() in "*+?":
            raise RegexRefused(f"missing argument to repetition operator: {self._peek()}")
        part = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return part
        self._accept("?")  # lazy: the same names match
        if self._bounds() is not None:
            raise RegexRefused("invalid nested repetition operator")
        return Repeat(part, *bounds)

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

    def _atom(self) -> Node:
        match self._take():
            case "(":
                return self._group()
            case "[":
                return self._class()
            case ".":
                return Chars(_ALPHABET)
            case "^":
                return Assert("start")
            case "$":
                return Assert("end")
            case "\\":
                return self._escape()
            case char:
                return self._literal(char)

    def _literal(self, char: str) -> Chars:
        chars = {char.lower(), char.upper()} if self._ignores_case else {char}
        return Chars(frozenset(chars))

    def _group(self) -> Node:
        if self._peek() == "?":
            self._position += 1
            if self._accept("P<") or (self._peek() == "<" and self._peek(1) not in ("=", "!")):
                self._accept("<")
                self._name()
            elif self._flags():
                return Sequence(())
        outer = self._ignores_case
        tree = self._choice()
        if not self._accept(")"):
            raise RegexRefused("missing closing )")
        self._ignores_case = outer
        return tree

    def _name(self) -> None:
        end = self._pattern.find(">", self._position)
        name = self._pattern[self._position : end] if end >= 0 else ""
        if not name or not set(name) <= WORD:
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

    def _escape(self) -> Node:
        char = self._take()
        if not char:
            raise RegexRefused("trailing backslash at end of expression")
        if char in _ASSERTIONS:
            return Assert(_ASSERTIONS[char])
        if char == "Q":
            end = self._pattern.find("\\E", self._position)
            quoted = self._pattern[self._position : end if end >= 0 else None]
            self._position += len(quoted) + (2 if end >= 0 else 0)
            return Sequence(tuple(self._literal(each) for each in quoted))
        return Chars(self._escaped_chars(char))

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

    def _class(self) -> Node:
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
        return Chars(_ALPHABET - chars if negated else frozenset(chars))

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
