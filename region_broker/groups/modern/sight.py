"""Which topics the members of a group may see, and so which ones subscribe them.

INV-NX3 what a member may not see it is not subscribed to: neither an assignment nor an epoch, nor what the group is described by, tells
         whether there is a topic of a name, or one that a pattern matches
INV-NX4 a JoinGroup takes effect in the step in which it is taken up, as what comes behind it on its connection does (C7): what a member may see is
         asked only where that counts, in a group of the new protocol, and of many names alone a few at a time
A member that speaks is looked at; of another one's pattern stands what that one saw. Members with one pattern share what it stands for: what one
of them sees. Rights that come or go count with the member's next heartbeat, as topics do (INV-ND3).
Source: Kafka 4.1, GroupMetadataManager.java `filterTopicDescribeAuthorizedTopics` (KAFKA-18813).
Not here: what a pattern matches (`patterns`), who may see what (the handlers say), what members of a classic group read (`upgrade`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from region_broker.groups.messages import JoinRequest, Sight
from region_broker.groups.modern.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    Subscription,
    subscription_said,
)
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.wire.cooperative_yield import CooperativeYield, run_yielding

Topics = tuple[str, ...]


def seen_names(names: Iterable[str], sight: Sight | None) -> Topics:
    """Return those of the topics that may be seen; None sees all."""
    return tuple(name for name in names if sight is None or sight.sees(name))


async def look_ahead(
    group: ConsumerGroup, request: HeartbeatRequest, matched: Mapping[str, Topics]
) -> None:
    """Judge what the member's pattern matches a few at a time: judged again in one step it is remembered (INV-HAZ7)."""
    pattern, yielding = _own_pattern(group, request), CooperativeYield()
    if request.sight is None or pattern is None:
        return
    for name in matched.get(pattern, ()):
        await yielding.row()
        request.sight.sees(name)


async def read_ahead(request: JoinRequest) -> tuple[JoinRequest, Subscription | None]:
    """Return what a JoinGroup subscribes to, None if that cannot be read, and the request with a sight that knows already of each of these topics.

    Both a few at a time, where they are many (INV-HAZ7, INV-NCP1).
    """
    yielding = CooperativeYield.of_a_write()
    if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
        return request, None
    try:
        said = await run_yielding(subscription_said(request.protocols[0][1], yielding))
    except MalformedProtocol:
        return request, None
    if request.sight is None:
        return request, said
    return replace(request, sight=await _judged_sight(request.sight, said.topic_names)), said


async def _judged_sight(sight: Sight, names: Iterable[str]) -> Sight:
    """Return a sight that knows already of these topics."""
    yielding, judged = CooperativeYield.of_a_write(), dict[str, bool]()
    for name in dict.fromkeys(names):
        await yielding.row()
        judged[name] = sight.sees(name)

    def sees(name: str) -> bool:
        known = judged.get(name)
        return sight.sees(name) if known is None else known

    return Sight(sees, since=sight.since)


@dataclass(slots=True)
class Looks:
    """By which rights, and at which topics, the pattern of each member was looked at last."""

    _last: dict[str, tuple[str | None, object, object]] = field(default_factory=dict)

    def are_news(self, group: ConsumerGroup, request: HeartbeatRequest, topics: object) -> bool:
        """Return whether the member that speaks must be looked at again."""
        pattern, _, since = _look(group, request, topics)
        if pattern is None:
            return False
        last = self._last.get(request.member_id)
        if last is None or last[0] != pattern:
            return True
        return last[1] is not topics or last[2] is not since

    def note(self, group: ConsumerGroup, request: HeartbeatRequest, topics: object) -> None:
        """Note that it was looked at, and forget who is not there any more."""
        self._last[request.member_id] = _look(group, request, topics)
        for member_id in [each for each in self._last if each not in group.metadata]:
            del self._last[member_id]


def _look(
    group: ConsumerGroup, request: HeartbeatRequest, topics: object
) -> tuple[str | None, object, object]:
    since = None if request.sight is None else request.sight.since
    return _own_pattern(group, request), topics, since


def _own_pattern(group: ConsumerGroup, request: HeartbeatRequest) -> str | None:
    """Return the pattern that the member has after its request."""
    if request.topic_regex is not None:
        return request.topic_regex or None
    member = group.metadata.get(request.member_id)
    return None if member is None else member.topic_regex


def patterns_seen(
    group: ConsumerGroup, request: HeartbeatRequest, matched: Mapping[str, Topics], *, is_news: bool
) -> Mapping[str, Topics]:
    """Return what patterns stand for, of what they match (INV-NX3).

    Without `is_news` the member was looked at before: what its pattern stood for then it stands for now.
    """
    if request.sight is None:
        return matched
    own = _own_pattern(group, request)
    return {
        pattern: _seen(group, request, pattern, names, anew=pattern == own and is_news)
        for pattern, names in matched.items()
    }


def _seen(
    group: ConsumerGroup, request: HeartbeatRequest, pattern: str, names: Topics, *, anew: bool
) -> Topics:
    known = group.regexes.get(pattern)
    kept = frozenset(() if known is None else known.topic_names)
    if not anew:
        return tuple(name for name in names if name in kept)
    is_shared = any(
        member.topic_regex == pattern
        for member_id, member in group.metadata.items()
        if member_id != request.member_id
    )
    seen = frozenset(seen_names(names, request.sight))
    return tuple(name for name in names if name in seen or (is_shared and name in kept))
