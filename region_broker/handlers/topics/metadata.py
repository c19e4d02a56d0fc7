"""Metadata (3), versions 0-13.  v4: auto creation may be refused.  v8: operations.  v10, v12: topics by id.

One node leads every partition of its region, in a mirror region too: clients there fetch up to the last tidemark
reached, and what they write is forwarded. All nodes of a region tell the same, as far as they know it; what is to be changed
clients send to its leader, which is the controller for them. Where topics are created by being asked for, a mirror, and a node
that does not lead, hands the request on as it came: the primary region creates them, and the client, told that they are
unknown, asks until they are here.
"""

import logging
from collections.abc import Iterable
from functools import partial
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.authorizing import (
    TOPIC_DENIED,
    cluster_operations,
    may,
    may_by_cluster,
    operations_of,
    rows_of_operations,
    sees,
)
from region_broker.handlers.dispatch.operations import NOT_ASKED
from region_broker.handlers.dispatch.partitions import leader_row
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.handlers.topics.mutations import may_change
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.codec.answers import encode_body
from region_broker.wire.codec.struct_writers import EncodedRow
from region_broker.wire.cooperative_yield import CooperativeYield

_log: Final = logging.getLogger("tidemark.topics")
_ALWAYS_STRICT: Final = 0
"""Since this version nothing is created while something is owed (KIP-599), as in Kafka, where who creates them is the controller."""


async def handle_metadata(ctx: RequestContext, request: Any) -> Fields | bytes:
    """Answer where topics are led; kio request `MetadataRequest`."""
    region, nodes = ctx.services.region, ctx.nodes
    of_cluster = bool(getattr(request, "include_cluster_authorized_operations", False))
    found = await _found(ctx, request)
    fields = {
        # Those that are not heard, too, unlike Kafka: librdkafka takes who is not named any more for decommissioned, and then waits
        # for that one as a coordinator until any of its connections changes (its issues 5511, 5456).
        "brokers": [node.row() for node in nodes.registered],
        "cluster_id": region.cluster_id,
        "controller_id": nodes.leader_id,
        "cluster_authorized_operations": cluster_operations(ctx) if of_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }
    operations = bool(getattr(request, "include_topic_authorized_operations", False))
    rows = await _written(ctx, found, operations=operations)
    if rows is not None:
        return encode_body(3, ctx.version, fields | {"topics": rows})
    return fields | {"topics": await _rows(ctx, found, operations=operations)}


async def _written(
    ctx: RequestContext, found: list[TopicImage | Fields], *, operations: bool
) -> list[EncodedRow] | None:
    """Return the rows as they were written before, where they were; None if there are errors among them."""
    services, yielding = ctx.services, CooperativeYield()
    if operations and services.authorizer.in_force:
        return None  # they are not the same for everybody
    nodes = ctx.nodes
    told_apart = ctx.connection_state.listener if nodes.hides_nodes else ""
    if not told_apart:
        nodes = services.nodes  # a row has no addresses: it is the same by all listeners
    written = services.topic_rows.of(
        ctx.version, operations=operations, topic_count=len(services.metadata.image.topics), listener=told_apart
    )  # fmt: skip
    rows = []
    for topic in found:
        if not isinstance(topic, TopicImage):
            return None
        await yielding.row(topic.partition_count)
        describe = partial(_row, ctx, topic, operations=operations)
        row = written.row(topic, nodes, services.partitions, describe)
        if row is None:
            return None
        rows.append(row)
    return rows


async def _rows(
    ctx: RequestContext, found: list[TopicImage | Fields], *, operations: bool
) -> list[Fields]:
    """Return the rows as fields: errors among them are counted."""
    yielding = CooperativeYield()
    judged = rows_of_operations(ctx) if operations else 0
    rows: list[Fields] = []
    for topic in found:
        if isinstance(topic, TopicImage):
            await yielding.row(topic.partition_count + judged)
            rows.append(_row(ctx, topic, operations=operations))
        else:
            await yielding.row(1 + judged)
            rows.append(_with_operations(ctx, topic) if operations else topic)
    return rows


async def _found(ctx: RequestContext, request: Any) -> list[TopicImage | Fields]:
    """Return the topics that are asked for, and rows of errors for those that are not there."""
    asked = request.topics
    image = ctx.services.metadata.image
    # v0: an empty list asks for all topics; later: null does, and an empty list asks for none.
    if asked is None or (ctx.version == 0 and not asked):
        return await _seen(ctx, image.topics.values())
    may_create = ctx.services.config.auto_create_topics and bool(
        getattr(request, "allow_auto_topic_creation", True)
    )
    yielding = CooperativeYield()
    found: list[TopicImage | Fields] = []
    seen: set[str | UUID] = set()
    unknown = False
    for item in asked:
        topic_id: UUID | None = getattr(item, "topic_id", None)
        key: str | UUID = item.name if topic_id is None else topic_id
        await yielding.row()
        if key in seen:
            continue
        seen.add(key)
        try:
            one = await _one(ctx, item.name, topic_id, may_create=may_create)
        except MetadataUnwritable as failed:
            # INV-UNW1: the others of the request are told all the same, and none of them is waited for, too.
            _tell_not_created(ctx, f"{item.name}: {failed}")
            may_create, one = False, _refused(item.name, None, ErrorCode.unknown_topic_or_partition)
        if not isinstance(one, TopicImage):
            unknown = unknown or one["error_code"] is ErrorCode.unknown_topic_or_partition
        found.append(one)
    elsewhere = not (ctx.services.leads and ctx.services.region.acting)
    if may_create and unknown and elsewhere and not (ctx.is_forwarded and not ctx.services.leads):
        await _let_create(ctx)
    return found


async def _seen(ctx: RequestContext, topics: Iterable[TopicImage]) -> list[TopicImage | Fields]:
    """Return those of all topics that who asks may see."""
    if not ctx.services.authorizer.in_force:
        return list(topics)
    yielding = CooperativeYield()
    found: list[TopicImage | Fields] = []
    for topic in topics:
        await yielding.row()
        if sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            found.append(topic)
    return found


async def _let_create(ctx: RequestContext) -> None:
    """Have who leads, or the primary region, answer this request, which creates the topics that it names."""
    try:
        await ctx.services.forward.forward(ctx, ctx.frame)
    except ForwardingFailed as error:
        _tell_not_created(ctx, f"not asked for where topics are led: {error}")


def _tell_not_created(ctx: RequestContext, why: str) -> None:
    """Tell it seldom: clients ask for a topic until it is there (INV-SSD1)."""
    if ctx.services.says_not_created():
        _log.warning("topics that clients ask for are not created: %s. Said once a minute", why)


async def _one(
    ctx: RequestContext, name: str | None, topic_id: UUID | None, *, may_create: bool
) -> TopicImage | Fields:
    image = ctx.services.metadata.image
    if topic_id is not None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return _refused(None, topic_id, ErrorCode.unknown_topic_id)
        if not may(ctx, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            return _refused(None, topic_id, TOPIC_DENIED)
        return topic
    if name is None or name_problem(name) is not None:
        return _refused(name or "", None, ErrorCode.invalid_topic_exception)
    if not may(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _refused(name, None, TOPIC_DENIED)
    topic = image.topics.get(name)
    if topic is None and may_create:
        if not may_by_cluster(ctx, Operation.CREATE, name):
            return _refused(name, None, TOPIC_DENIED)
        topic = await _create(ctx, name)
    if topic is None:
        return _refused(name, None, ErrorCode.unknown_topic_or_partition)
    return topic


async def _create(ctx: RequestContext, name: str) -> TopicImage | None:
    services = ctx.services
    if (
        not (services.leads and services.region.acting)
        or services.metadata.image.colliding_topic(name) is not None
    ):
        return None
    if not may_change(ctx, services.config.default_partition_count, _ALWAYS_STRICT):
        return None  # it is unknown meanwhile: the client asks again
    try:
        return await services.metadata.create_topic(
            name, services.config.default_partition_count, {}, services.chance.uuid(),
            lambda: may_by_cluster(ctx, Operation.CREATE, name),
        )  # fmt: skip
    except CommandRefused:  # another connection was first
        return services.metadata.image.topics.get(name)


def _refused(name: str | None, topic_id: UUID | None, error: ErrorCode) -> Fields:
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": []}


def _row(ctx: RequestContext, topic: TopicImage, *, operations: bool) -> Fields:
    row = {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [leader_row(ctx, topic, index) for index in range(topic.partition_count)],
    }
    return _with_operations(ctx, row) if operations else row


def _with_operations(ctx: RequestContext, row: Fields) -> Fields:
    """Return a row with what who asks may do; as in Kafka, without that where the topic has no name, or is not to be seen."""
    if not row["name"] or row["error_code"] is TOPIC_DENIED:
        return row
    operations = operations_of(ctx, ResourceType.TOPIC, row["name"])
    return {**row, "topic_authorized_operations": operations}


def _lists_all(request: Any) -> bool:
    return not request.topics  # v0: an empty list asks for all, too


API: Final = Api(3, "Metadata", range(14), handle_metadata, lists=_lists_all)
