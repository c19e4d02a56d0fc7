"""Which topics patterns stand for, as of the region's topics now; remembered until these change.

INV-NX1  the event loop is not held up: what would take long runs in a thread, one at a time
INV-NX2  ledgers are topics that no pattern stands for
INV-NX6  a group has few patterns, and one turn among all groups that wait for theirs; nothing is looked up for who is no member
Not here: the syntax (`topic_regex`), what a change of topics means (`target`).
"""

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Final
from weakref import WeakValueDictionary

from region_broker.groups.modern.messages import Refused
from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.ports import Topic
from region_broker.groups.verdicts import GroupVerdict

COMPILED_MAX: Final = 1_000
INLINE_STEPS_MAX: Final = 20_000  # letters of all names times states: about 10 ms at worst


class Patterns:
    """The patterns of all groups of a node."""

    def __init__(self) -> None:
        """Begin with none."""
        self._compiled: OrderedDict[str, TopicRegex] = OrderedDict()
        self._topics: Mapping[str, Topic] | None = None
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._one_at_a_time = asyncio.Lock()
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

    async def resolve(
        self, group_id: str, patterns: Collection[str], topics: Mapping[str, Topic]
    ) -> None:
        """Find what these patterns of a group stand for in `topics`; raises `Refused`."""
        async with self._turns.setdefault(group_id, asyncio.Lock()):
            names = sorted(name for name, topic in topics.items() if not topic.internal)
            letters = sum(map(len, names))
            for pattern in sorted(patterns):
                async with self._one_at_a_time:
                    self._begin(topics)
                    if pattern not in self._resolved:
                        found = await self._found(pattern, names, letters)
                        self._resolved[pattern] = found

    def _begin(self, topics: Mapping[str, Topic]) -> None:
        if self._topics is not topics:
            self._topics = topics
            self._resolved.clear()
        while len(self._resolved) > COMPILED_MAX:
            del self._resolved[next(iter(self._resolved))]

    async def _found(self, pattern: str, names: list[str], letters: int) -> tuple[str, ...]:
        regex = self._regex(pattern)
        if letters * regex.state_count > INLINE_STEPS_MAX:
            return await asyncio.to_thread(regex.those_of, names)
        found = regex.those_of(names)
        await asyncio.sleep(0)  # others are served before the next one
        return found

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
