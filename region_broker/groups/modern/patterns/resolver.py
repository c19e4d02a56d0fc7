"""Which topics patterns stand for, as of the region's topics now; remembered until these change.

INV-NX1  the event loop is not held up: what would take long runs in a thread, one at a time
INV-NX2  ledgers are topics that no pattern stands for
INV-NX6  a group has few patterns, and one turn among all groups that wait for theirs; nothing is looked up for who is no member
INV-NX7  a pattern that is quick waits for no thread that is at another one
Not here: the syntax (`topic_regex`), what a thread does (`matching`), what a change of topics means (`target`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import Final
from weakref import WeakValueDictionary

from region_broker.groups.modern.messages import Refused
from region_broker.groups.modern.patterns.matching import those_in_a_thread
from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.ports import Topic
from region_broker.groups.verdicts import GroupVerdict

COMPILED_MAX: Final = 1_000
INLINE_STEPS_MAX: Final = 20_000  # letters of all names times states: about 10 ms at worst


class Patterns:
    """The patterns of all groups of a node."""

    def __init__(self, topics: Callable[[], Mapping[str, Topic]]) -> None:
        """Begin with none; `topics` returns those of the region as of now."""
        self._topics_now = topics
        self._compiled: OrderedDict[str, TopicRegex] = OrderedDict()
        self._topics: Mapping[str, Topic] | None = None
        self._names: list[str] = []
        self._letters = 0
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._one_at_a_time = asyncio.Lock()
        self._in_thread: str | None = None
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def check(self, pattern: str) -> None:
        """Refuse what is not a pattern; raises `Refused`."""
        _ = self._regex(pattern)

    def known(
        self, patterns: Collection[str], topics: Mapping[str, Topic]
    ) -> Mapping[str, tuple[str, ...]] | None:
        """Return what these patterns stand for in `topics`, None unless `resolve` has found it."""
        if not patterns:
            return {}
        if self._topics is not topics or any(each not in self._resolved for each in patterns):
            return None
        return {each: self._resolved[each] for each in patterns}

    def are_quick(self, patterns: Collection[str]) -> bool:
        """Return whether none of these takes a thread; raises `Refused`."""
        self._look()
        return all(self._is_quick(each) for each in patterns if each not in self._resolved)

    async def resolve(self, group_id: str, patterns: Collection[str]) -> None:
        """Find what these patterns of a group stand for in the topics as they are by then; raises `Refused`."""
        async with self._turns.setdefault(group_id, asyncio.Lock()):
            for pattern in sorted(patterns):
                self._look()
                if pattern in self._resolved:
                    continue
                if self._is_quick(pattern):
                    self._resolved[pattern] = self._regex(pattern).those_of(self._names)
                    await asyncio.sleep(0)  # others are served before the next one
                else:
                    await self._resolve_in_thread(pattern)

    async def _resolve_in_thread(self, pattern: str) -> None:
        async with self._one_at_a_time:
            self._look()
            if pattern in self._resolved:
                return
            regex, topics = self._regex(pattern), self._topics
            self._in_thread = pattern
            try:
                found = await those_in_a_thread(regex, self._names)
            finally:
                self._in_thread = None
            if self._topics is topics:
                self._resolved[pattern] = found

    def _look(self) -> None:
        """Forget what patterns stood for if the topics are others now."""
        topics = self._topics_now()
        if self._topics is not topics:
            self._topics = topics
            self._names = sorted(name for name, topic in topics.items() if not topic.internal)
            self._letters = sum(map(len, self._names))
            self._resolved.clear()
        while len(self._resolved) > COMPILED_MAX:
            del self._resolved[next(iter(self._resolved))]

    def _is_quick(self, pattern: str) -> bool:
        """Return whether the loop may do it: a thread that is at this very pattern changes what is compiled of it."""
        steps = self._letters * self._regex(pattern).state_count
        return steps <= INLINE_STEPS_MAX and pattern != self._in_thread

    def _regex(self, pattern: str) -> TopicRegex:
        regex = self._compiled.get(pattern)
        if regex is None:
            try:
                regex = self._compiled[pattern] = TopicRegex(pattern)
            except RegexRefused as error:
                raise Refused(
                    GroupVerdict.INVALID_REGEX,
                    f"SubscribedTopicRegex `{pattern}` is not a valid regular expression: {error}.",
                ) from error
            if len(self._compiled) > COMPILED_MAX:
                self._compiled.popitem(last=False)
        return regex
