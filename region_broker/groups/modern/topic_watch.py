"""What groups are compared with: the region's topics now, and what their patterns stand for, as far as that is known.

INV-NX8  where a group knows what its patterns stood for, that counts until it is known what they stand for now: no heartbeat waits for what takes long,
         its own or other groups' (Kafka resolves patterns behind the heartbeat too)
INV-NX10 what fails behind a heartbeat is logged, and begun again by the next heartbeat: it ends no other task of the groups, nor their node
Not here: resolving (`patterns`), who may see what (`sight`), what a change of topics means (`target`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from region_broker.groups.modern.heartbeat import patterns_needed
from region_broker.groups.modern.messages import HeartbeatRequest, Refused
from region_broker.groups.modern.patterns.resolver import Patterns
from region_broker.groups.modern.sight import Looks, look_ahead, patterns_seen
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.target import TopicView, patterns_left
from region_broker.groups.ports import GroupPorts, Topic
from region_broker.groups.verdicts import GroupVerdict

_log: Final = logging.getLogger("tidemark.groups")
_TRIES: Final = 3
Topics: TypeAlias = Mapping[str, Topic]


@dataclass(slots=True)
class Compared:
    """The topics that a group was compared with last; not in the ledger."""

    seen: object = None
    looks: Looks = field(default_factory=Looks)
    _outdated: tuple[Topics] | None = None

    def as_of(self, topics: Topics, *, is_current: bool) -> object:
        """Return what a comparison with these topics is remembered by: another thing as long as patterns were of older ones."""
        if is_current:
            return topics
        if self._outdated is None or self._outdated[0] is not topics:
            self._outdated = (topics,)
        return self._outdated

    def note(self, group: ConsumerGroup, request: HeartbeatRequest, view: TopicView) -> None:
        """Note that a member of the group, as it is now, was shown this view; not yet where the next heartbeat is to write the rest of it (INV-NN3)."""
        if view.is_news and patterns_left(group, view):
            return
        self.seen = view.as_of
        self.looks.note(group, request, view.as_of)


@dataclass(frozen=True, slots=True)
class _Matched:
    """What patterns stand for, as of the topics now or of older ones."""

    names: Mapping[str, tuple[str, ...]]
    is_current: bool = True


Found: TypeAlias = tuple[ConsumerGroup | None, Compared]
"""A group as it is now, None if there is none; and what it was compared with, nothing yet for a new one."""


class TopicWatch:
    """Looks at the region's topics for all groups of a node."""

    def __init__(self, ports: GroupPorts) -> None:
        """Know no patterns yet."""
        self._ports = ports
        self._patterns = Patterns(lambda: ports.image().topics)
        self._behind: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Resolve patterns in `tasks` from now on."""
        self._tasks = tasks

    def stop(self) -> None:
        """Begin no more of it."""
        self._tasks = None

    def check(self, pattern: str) -> None:
        """Refuse what is not a pattern; raises `Refused`."""
        self._patterns.check(pattern)

    async def resolve(self, request: HeartbeatRequest, find: Callable[[], Found]) -> None:
        """Find out what the group's patterns stand for, as long as topics keep changing; behind its back where it knows older ones (INV-NX8)."""
        for _ in range(_TRIES):
            group, compared = find()
            matched = self._matched(group, request, compared)
            if matched is not None and matched.is_current:
                return
            patterns = patterns_needed(group, request)
            if matched is not None and not self._patterns.are_quick(patterns):
                self._resolve_behind(request.group_id, patterns)
                return
            await self._patterns.resolve(request.group_id, patterns)

    def _resolve_behind(self, group_id: str, patterns: set[str]) -> None:
        if self._tasks is None or group_id in self._behind:
            return
        self._behind.add(group_id)
        task = self._tasks.create_task(self._look_up(group_id, patterns))
        task.add_done_callback(lambda _: self._behind.discard(group_id))

    async def _look_up(self, group_id: str, patterns: set[str]) -> None:
        """Resolve patterns while nobody waits for it, who would be told what failed (INV-NX10)."""
        try:
            await self._patterns.resolve(group_id, patterns)
        except AssertionError:
            raise
        except Exception:  # noqa: BLE001 - it is logged, and the next heartbeat begins it again
            # As where a node has no thread to spare. The group goes on by what its patterns stood for.
            _log.exception("what the patterns of group %s stand for now is not known", group_id)

    def _matched(
        self, group: ConsumerGroup | None, request: HeartbeatRequest, compared: Compared
    ) -> _Matched | None:
        """Return what the group's patterns stand for now, or stood for when it looked last; None where one was never resolved."""
        topics, patterns = self._ports.image().topics, patterns_needed(group, request)
        known = self._patterns.known(patterns, topics)
        if known is not None:
            return _Matched(known)
        if group is None or not patterns <= group.regexes.keys():
            return None
        kept = {each: group.regexes[each].topic_names for each in patterns}
        # The group was compared with these topics already, and nobody remembers that any more but the group.
        is_current = compared.seen is topics and not compared.looks.are_news(group, request, topics)
        return _Matched(kept, is_current)

    async def look_ahead(self, request: HeartbeatRequest, find: Callable[[], Found]) -> None:
        """Judge what the member may see, before the step in which that counts (INV-NX3)."""
        group, compared = find()
        matched = self._matched(group, request, compared)
        if matched is None:
            return
        as_of = compared.as_of(self._ports.image().topics, is_current=matched.is_current)
        group = group or ConsumerGroup(request.group_id)
        if compared.looks.are_news(group, request, as_of):
            await look_ahead(group, request, matched.names)

    def view(
        self, group: ConsumerGroup, request: HeartbeatRequest, compared: Compared
    ) -> TopicView:
        """Return the topics as the member that speaks may see them; raises `Refused`."""
        image = self._ports.image()
        matched = self._matched(group, request, compared)
        if matched is None:
            raise Refused(
                GroupVerdict.NOT_AVAILABLE,
                "The topics changed while patterns were resolved; retry.",
            )
        as_of = compared.as_of(image.topics, is_current=matched.is_current)
        sees_anew = compared.looks.are_news(group, request, as_of)
        return TopicView(
            image.topics,
            image.version,
            patterns_seen(group, request, matched.names, is_news=sees_anew),
            self._ports.clock.wall_ms(),
            is_news=sees_anew or compared.seen is not as_of,
            as_of=as_of,
        )
