"""Patterns of topics: RE2's syntax (its documented table), whole names, bounded work."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest

from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.ports import Topic
from region_broker.limits import TOPIC_REGEX_BYTES_MAX, TOPIC_REGEX_STATES_MAX


@pytest.mark.parametrize(
    ("pattern", "names", "others"),
    [
        ("orders", ["orders"], ["orders2", "my.orders", ""]),
        ("(^orders.*)|(^bills)", ["orders", "orders-eu"], ["bills2", "x-orders"]),
        ("foo.*", ["foo", "foo.bar"], ["xfoo"]),
        (r"foo\..+", ["foo.bar"], ["foo.", "fooxbar"]),
        ("[a-c]{2,3}", ["ab", "abc"], ["a", "abca", "ad"]),
        ("a{2}", ["aa"], ["a", "aaa"]),
        ("a{2,}", ["aa", "aaaa"], ["a"]),
        ("(?i)Ord(er)?S", ["ORDS", "orders"], ["order"]),
        ("a(?i:b)c", ["abc", "aBc"], ["Abc"]),
        ("(?P<x>a)|(?<y>b)|(?:c)", ["a", "b", "c"], ["ab"]),
        ("[^-_]+", ["a.b"], ["a-b"]),
        (r"[\w.]+", ["a_1.b"], ["a-b"]),
        (r"\Qa.b\E.", ["a.bc"], ["axbc"]),
        ("[[:digit:]]+", ["42"], ["4b"]),
        ("[]a]+", ["a"], ["b"]),
        (r"a\b.*", ["a-b", "a"], ["ab"]),
        (r"\x61\x{62}", ["ab"], ["ba"]),
        ("x{a", ["x{a"], ["x"]),
        ("", [""], ["a"]),
        ("a|", ["a", ""], ["b"]),
    ],
)
def test_a_pattern_matches_whole_names(pattern: str, names: list[str], others: list[str]) -> None:
    regex = TopicRegex(pattern)
    assert [name for name in names if not regex.matches(name)] == []
    assert [name for name in others if regex.matches(name)] == []


# Holds INV-RX2.
@pytest.mark.parametrize(
    "pattern",
    ["[", "a)", "(a", "*a", "a**", "a+*", r"a\1", "(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", "a{2,1}",
     "a{1001}", "[b-a]", "[[:word", "\\", r"\pL", r"\8", "(?z)", "(?P=x)", "(?P<>a)", "(?"],
)  # fmt: skip
def test_what_RE2_refuses_is_refused(pattern: str) -> None:
    with pytest.raises(RegexRefused):
        TopicRegex(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a" * (TOPIC_REGEX_BYTES_MAX + 1), "(a{100}){100}", "(" * 400 + ")" * 400,
     "a{" + str(TOPIC_REGEX_STATES_MAX) + "}"],
)  # fmt: skip
def test_what_is_too_large_is_refused(pattern: str) -> None:
    with pytest.raises(RegexRefused):
        TopicRegex(pattern)


# Holds INV-RX1.
def test_a_pattern_that_kills_backtracking_is_answered() -> None:
    """`re` would need 2**60 steps for this one."""
    regex = TopicRegex("(a|a|aa)*" * 20 + "b")
    assert not regex.matches("a" * 60)
    assert regex.matches("a" * 60 + "b")


def test_groups_may_be_nested_fifty_deep() -> None:
    assert TopicRegex("(" * 50 + "a" + ")" * 50).matches("a")
    with pytest.raises(RegexRefused, match="deeper than 50"):
        TopicRegex("(" * 51 + "a" + ")" * 51)


async def test_INV_RX3_patterns_that_are_kept_hold_nothing_of_the_names_that_they_met() -> None:
    """A member may change its pattern again and again, and a thousand are kept: each held some 4 MB of states for 300 names."""
    names = [f"service-{number:060b}" for number in range(0, 3_000_000, 10_000)]
    topics = cast("Mapping[str, Topic]", dict.fromkeys(names, SimpleNamespace(internal=False)))
    patterns = Patterns()
    expected = {
        f".*1.{{{behind}}}": tuple(name for name in names if name[-1 - behind] == "1")
        for behind in range(4, 10)
    }
    for pattern in expected:
        await patterns.resolve([pattern], topics)
    assert patterns.known(list(expected), topics) == expected
    kept = patterns._compiled.values()
    assert len(kept) == len(expected)
    assert [len(each._moves) + len(each._closures) for each in kept] == [0] * len(expected)
