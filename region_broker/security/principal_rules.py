"""Kafka's `ssl.principal.mapping.rules`: which user the subject of a certificate is.

INV-TID3  a rule is matched in linear time (RE2), on a name of at most 1,024 characters
RE2 is imported where there is a rule, as most nodes have none (INV-LEAN3).
Not here: subjects of certificates (`tls_identity`).
"""

import re
from collections.abc import Iterator
from typing import Final, Protocol

import msgspec

RULES_LENGTH_MAX: Final = 4096
_SPLIT: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)"
    r"|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<letters>[LU]?))\s*(?:,\s*|$)",
    re.DOTALL,
)
_REPLACEMENT: Final = re.compile(
    r"\\(?P<literal>.)|\$(?P<group>[0-9]+)|(?P<text>[^\\$]+)|\$", re.DOTALL
)


class RuleError(ValueError):
    """A mapping rule cannot be used; the text says which, and why."""


class _Match(Protocol):
    """What RE2 has found."""

    def start(self) -> int:
        """Return where it begins."""
        ...

    def end(self) -> int:
        """Return where it ends."""
        ...

    def group(self, number: int, /) -> str | None:
        """Return what a group has matched."""
        ...


class _Pattern(Protocol):
    """A pattern of RE2."""

    def fullmatch(self, text: str, /) -> _Match | None:
        """Return the match of a whole text."""
        ...

    def finditer(self, text: str, /) -> Iterator[_Match]:
        """Yield each match in a text."""
        ...


class _Rule(msgspec.Struct, frozen=True):
    """One rule; `pattern` is None for DEFAULT."""

    pattern: "_Pattern | None"
    replacement: tuple[str | int, ...] = ()
    letters: str = ""


class PrincipalRules:
    """Kafka's `ssl.principal.mapping.rules`, in their order; the first that fits gives the name."""

    def __init__(self, text: str = "DEFAULT") -> None:
        """Read rules `RULE:pattern/replacement/[LU]` and `DEFAULT`, divided by commas; raises `RuleError`."""
        if len(text) > RULES_LENGTH_MAX:
            raise RuleError(f"the rules have over {RULES_LENGTH_MAX} characters")
        self._rules = tuple(_parsed(text)) or (_Rule(None),)

    def name(self, subject: str) -> str | None:
        """Return the name that the first rule that fits makes of a subject; None where none fits."""
        for rule in self._rules:
            if rule.pattern is None:
                return subject
            if rule.pattern.fullmatch(subject):
                return _mapped(rule, subject)
        return None


def _parsed(text: str) -> list[_Rule]:
    rules, position = [], 0
    text = text.strip()
    while position < len(text):
        found = _SPLIT.match(text, position)
        if found is None:
            raise RuleError(
                f"no rule begins at {text[position : position + 80]!r}: it must be DEFAULT or RULE:pattern/replacement/,"
                " with L or U behind it or nothing (a / in it is written \\/)"
            )
        position = found.end()
        rules.append(_Rule(None) if found["default"] else _rule(found))
    return rules


def _rule(found: re.Match[str]) -> _Rule:
    import re2  # noqa: PLC0415 -- INV-LEAN3

    options = re2.Options()
    options.log_errors = False
    try:
        pattern = re2.compile(found["pattern"], options)
    except re2.error as error:
        raise RuleError(
            f"the pattern {found['pattern']!r} cannot be used ({error}): patterns are those of RE2, which has no lookarounds"
            " and no references back"
        ) from error
    return _Rule(pattern, _replacement(found["replacement"], pattern.groups), found["letters"])


def _replacement(text: str, group_count: int) -> tuple[str | int, ...]:
    """Return texts and numbers of groups; `$4` where there are three groups is a text, `$12` then is `$1` and a 2, as in Kafka."""
    parts: list[str | int] = []
    for found in _REPLACEMENT.finditer(text):
        digits = found["group"]
        if found[0] == "$":
            raise RuleError(f"in {text!r} a $ stands without a number behind it: write \\$")
        if digits is None:
            parts.append(found["literal"] or found["text"])
            continue
        length = len(digits)
        while length > 1 and int(digits[:length]) > group_count:
            length -= 1
        if int(digits[:length]) > group_count:
            parts.append(f"${digits}")
        else:
            parts += [int(digits[:length]), digits[length:]]
    return tuple(parts)


def _mapped(rule: _Rule, subject: str) -> str:
    assert rule.pattern is not None
    made, position = [], 0
    for found in rule.pattern.finditer(subject):
        made.append(subject[position : found.start()])
        made += [
            part if isinstance(part, str) else found.group(part) or "" for part in rule.replacement
        ]
        position = found.end()
    name = "".join(made) + subject[position:]
    if rule.letters == "L":
        return name.lower()
    return name.upper() if rule.letters == "U" else name
