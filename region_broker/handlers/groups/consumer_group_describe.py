"""ConsumerGroupDescribe (69), versions 0-1 (KIP-848).  v1: the protocol of each member."""

from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import Partitions
from region_broker.groups.modern.messages import ModernDescription, ModernMemberDescription
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.answer_budget import (
    TOO_LARGE,
    TOO_LARGE_TEXT,
    check_count,
    described,
)
from region_broker.handlers.dispatch.authorizing import (
    GROUP_DENIED,
    TOPIC_DENIED,
    may,
    sees,
)
from region_broker.handlers.dispatch.operations import NOT_ASKED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, group_operations
from region_broker.handlers.groups.names import topic_names
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding, look_up_rows

_CLASSIC, _CONSUMER = 0, 1
_HIDDEN_TOPICS: Final = (
    "The group has described topic(s) that the client is not authorized to describe."
)


async def handle_consumer_group_describe(ctx: RequestContext, request: Any) -> Fields:
    """Return the groups asked for; one of the classic protocol is GROUP_ID_NOT_FOUND."""
    asked = bool(request.include_authorized_operations)
    names = topic_names(ctx)
    check_count("ConsumerGroupDescribe", len(request.group_ids))

    async def describe(group_id: str, yielding: CooperativeYield) -> Fields:
        if not may(ctx, Operation.DESCRIBE, ResourceType.GROUP, group_id):
            return _refused(group_id, GROUP_DENIED)
        await yielding.row(look_up_rows(group_id))
        group = ctx.services.groups.describe_modern(group_id)
        if not await _sees_topics(ctx, group, names, yielding):
            return _refused(group_id, TOPIC_DENIED, _HIDDEN_TOPICS)
        members = await each_yielding(group.members, lambda each: _member(each, names), yielding)
        good = asked and group.verdict is GroupVerdict.OK
        return _group(group, members, group_operations(ctx, group_id, asked=good))

    return {"groups": await described(ctx, request.group_ids, describe, _too_large)}


def _group(group: ModernDescription, members: list[dict[str, Any]], operations: int) -> Fields:
    return {
        "error_code": ERROR_OF[group.verdict],
        "error_message": group.message,
        "group_id": group.group_id,
        "group_state": group.state,
        "group_epoch": group.group_epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": group.assignor,
        "members": members,
        "authorized_operations": operations,
    }


async def _sees_topics(
    ctx: RequestContext,
    group: ModernDescription,
    names: Mapping[UUID, str],
    yielding: CooperativeYield,
) -> bool:
    """Return whether who asks may see all topics that members read or subscribe to."""
    if not ctx.services.authorizer.in_force:
        return True
    for member in group.members:
        ids = {*member.assigned, *member.target}
        for topic in {*member.topic_names, *(names[each] for each in ids if each in names)}:
            await yielding.row()  # what is asked for the first time is decided by all rules
            if not sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, topic):
                return False
        await yielding.row()
    return True


def _member(member: ModernMemberDescription, names: Mapping[UUID, str]) -> dict[str, Any]:
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "rack_id": member.rack_id,
        "member_epoch": member.member_epoch,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed_topic_names": list(member.topic_names),
        "subscribed_topic_regex": member.topic_regex,
        "assignment": {"topic_partitions": _named(member.assigned, names)},
        "target_assignment": {"topic_partitions": _named(member.target, names)},
        "member_type": _CLASSIC if member.is_classic else _CONSUMER,
    }


def _named(partitions: Partitions, names: Mapping[UUID, str]) -> list[dict[str, Any]]:
    """Return partitions with the names of their topics, without topics that are deleted."""
    return [
        {
            "topic_id": topic_id,
            "topic_name": names[topic_id],
            "partitions": sorted(partitions[topic_id]),
        }
        for topic_id in partitions
        if topic_id in names
    ]


def _too_large(group_id: str) -> Fields:
    return _refused(group_id, TOO_LARGE, TOO_LARGE_TEXT)


def _refused(group_id: str, error_code: int, text: str | None = None) -> Fields:
    none = ModernDescription(verdict=GroupVerdict.OK, group_id=group_id, message=text)
    return {**_group(none, [], NOT_ASKED), "error_code": error_code}


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"groups": [_refused(group_id, error_code) for group_id in request.group_ids]}


API: Final = Api(
    key=69,
    name="ConsumerGroupDescribe",
    versions=range(2),
    handle=handle_consumer_group_describe,
    forward=True,
    describes=True,
    on_error=_on_error,
)
