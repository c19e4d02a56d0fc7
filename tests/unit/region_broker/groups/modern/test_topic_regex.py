"""Patterns of topics: RE2's syntax (its documented table), whole names, bounded work."""

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from region_broker.groups.modern.patterns import resolver
from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.ports import Topic
from region_broker.limits import TOPIC_REGEX_BYTES_MAX, TOPIC_REGEX_STATES_MAX
from tests.unit.region_broker.groups.fakes import HeldMatching, HeldThreads, settle


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
    patterns = Patterns(lambda: topics)
    expected = {
        f".*1.{{{behind}}}": tuple(name for name in names if name[-1 - behind] == "1")
        for behind in range(4, 10)
    }
    for pattern in expected:
        await patterns.resolve("g", [pattern])
    assert patterns.known(list(expected), topics) == expected
    kept = patterns._compiled.values()
    assert len(kept) == len(expected)
    assert [len(each._moves) + len(each._closures) for each in kept] == [0] * len(expected)


def test_INV_RX4_what_is_remembered_of_a_name_is_bounded_by_states() -> None:
    """Of a pattern of a thousand states each letter of such a name leads to a set that was never met: they took 190 MB."""
    name = "".join(random.Random(1).choice("ab") for _ in range(2_100))
    regex = TopicRegex(".*a.{480}")
    assert regex.matches(name) == (name[-481] == "a")
    count = sum(len(key[0]) + len(found) for key, found in regex._closures.items())
    count += sum(len(key[0]) + len(found) for key, found in regex._moves.items())
    assert 0 < count <= 300_000


def topics_of(*names: str) -> Mapping[str, Topic]:
    return cast("Mapping[str, Topic]", dict.fromkeys(names, SimpleNamespace(internal=False)))


async def test_INV_NX6_a_stream_of_patterns_of_one_group_keeps_no_other_group_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    topics = topics_of("a", "b")
    patterns = Patterns(lambda: topics)

    async def in_thread(work: Callable[[list[str]], tuple[str, ...]], names: list[str]) -> Any:
        await asyncio.sleep(0)
        return work(names)

    async def resolved(group_id: str, pattern: str) -> None:
        await patterns.resolve(group_id, [pattern])
        done.append(group_id)

    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", 0)
    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    async with asyncio.TaskGroup() as tasks:
        for number in range(20):
            tasks.create_task(resolved("stream", f"a{number}"))
        tasks.create_task(resolved("other", "b.*"))
    assert done.index("other") <= 2
    assert not patterns._turns


async def test_INV_NX1_the_loop_runs_between_patterns_that_take_no_thread() -> None:
    topics = topics_of("a", "b")
    patterns = Patterns(lambda: topics)
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(patterns.resolve("g", [f"a{n}" for n in range(5)]))
        rounds = 0
        while not work.done():
            rounds += 1
            await asyncio.sleep(0)
    assert rounds >= 5


async def test_INV_NX1_what_takes_a_thread_goes_by_the_letters_of_all_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`.*` has few states; over three thousand names of thirty letters it took 45 ms."""
    threads: list[int] = []

    async def in_thread(
        work: Callable[[Iterable[str]], tuple[str, ...]], names: Iterable[str]
    ) -> Any:
        looked = list(names)
        threads.append(len(looked))
        return work(looked)

    monkeypatch.setattr(asyncio, "to_thread", in_thread)
    names = [f"service-{number:022}" for number in range(3_000)]
    topics = topics_of(*names)
    patterns = Patterns(lambda: topics)
    await patterns.resolve("g", [".*"])
    assert threads == [3_000]
    topics = topics_of(*names[:100])
    await patterns.resolve("g", [".*"])
    assert threads == [3_000]


async def test_INV_NX1_patterns_that_are_remembered_are_let_go_of_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resolver, "COMPILED_MAX", 3)
    topics = topics_of("a", "b")
    patterns = Patterns(lambda: topics)
    for pattern in ("a", "b", "c", "d", "e"):
        await patterns.resolve("g", [pattern])
    assert patterns.known(["a"], topics) is None
    assert patterns.known(["c", "d", "e"], topics) == {"c": (), "d": (), "e": ()}


async def test_INV_NX7_a_quick_pattern_waits_for_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = HeldThreads(monkeypatch)
    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", 50)
    topics = topics_of("aaaa", "b")
    patterns = Patterns(lambda: topics)
    async with asyncio.TaskGroup() as tasks:
        slow = tasks.create_task(patterns.resolve("slow", ["a{1,100}"]))
        while not threads.begun:  # noqa: ASYNC110 -- what is awaited has no event of its own
            await asyncio.sleep(0)
        await patterns.resolve("quick", ["b"])
        assert patterns.known(["b"], topics) == {"b": ("b",)}
        assert not slow.done()
        topics = topics_of("a")
        assert not patterns.are_quick(["a{1,100}"]), "the thread is at it"
        threads.let_go()
    assert patterns.known(["a{1,100}"], topics) is None, "it was of other topics"


async def test_INV_NX1_who_is_gone_leaves_no_thread_beside_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A client asks for a pattern that takes long, and goes away. 2. The next one asks for another."""
    threads = HeldThreads(monkeypatch)
    monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", 0)
    topics = topics_of("a", "b")
    patterns = Patterns(lambda: topics)
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(patterns.resolve("g", ["a"]))
        for _ in range(5):
            await asyncio.sleep(0)
        gone.cancel()
        tasks.create_task(patterns.resolve("h", ["b"]))
        for _ in range(9):
            await asyncio.sleep(0)
        assert threads.begun == 1
        threads.let_go()
    assert gone.cancelled()
    assert patterns.known(["b"], topics) == {"b": ("b",)}


async def test_INV_NX9_a_thread_that_nobody_waits_for_looks_at_no_further_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A pattern may take minutes over all topics: whoever asks next, and a node that ends, waited for all of it."""
    matching = HeldMatching(monkeypatch)
    matching.hold()
    topics = topics_of("a", "b", "c")
    patterns = Patterns(lambda: topics)
    async with asyncio.TaskGroup() as tasks:
        gone = tasks.create_task(patterns.resolve("g", [".*"]))
        await matching.begun.wait()
        gone.cancel()
        next_one = tasks.create_task(patterns.resolve("h", ["[ab]"]))
        await settle()
        assert not gone.done(), "one thread at a time"
        assert matching.looked == ["a"]
        matching.let_go()
        await next_one
    assert gone.cancelled()
    assert matching.looked == ["a", *"abc"]
    assert patterns.known([".*"], topics) is None
    assert patterns.known(["[ab]"], topics) == {"[ab]": ("a", "b")}
