"""Metadata (3), versions 0-13.  v4: auto creation may be refused.  v8: operations.  v10, v12: topics by id.

This node leads every partition it has, in a mirror region too: clients there fetch up to the last tidemark
reached, and what they write is forwarded. Where topics are created by being asked for, a mirror hands the request on
as it came: the acting region creates them, and the client, told that they are unknown, asks until they are here.
"""

import logging
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_names import collision, name_problem
from region_broker.handlers.operations import CLUSTER_OPERATIONS, NOT_ASKED, TOPIC_OPERATIONS
from region_broker.handlers.partitions import leader_row
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import ForwardingFailed, RequestContext
from region_broker.handlers.turns import Turns

_log: Final = logging.getLogger("tidemark.topics")


async def handle_metadata(ctx: RequestContext, request: Any) -> Fields:
    """Answer where topics are led; kio request `MetadataRequest`."""
    region = ctx.services.region
    of_cluster = bool(getattr(request, "include_cluster_authorized_operations", False))
    return {
        "brokers": [
            {"node_id": region.node_id, "host": region.kafka_host, "port": region.kafka_port}
        ],
        "cluster_id": region.cluster_id,
        "controller_id": region.node_id,
        "topics": await _topics(ctx, request),
        "cluster_authorized_operations": CLUSTER_OPERATIONS if of_cluster else NOT_ASKED,
        "error_code": ErrorCode.none,
    }


async def _topics(ctx: RequestContext, request: Any) -> list[Fields]:
    rows = await _rows(ctx, request)
    if getattr(request, "include_topic_authorized_operations", False):
        return [{**row, "topic_authorized_operations": TOPIC_OPERATIONS} for row in rows]
    return rows


async def _rows(ctx: RequestContext, request: Any) -> list[Fields]:
    asked = request.topics
    image = ctx.services.metadata.image
    turns = Turns()
    # v0: an empty list asks for all topics; later: null does, and an empty list asks for none.
    if asked is None or (ctx.version == 0 and not asked):
        return [await _described(ctx, topic, turns) for topic in image.topics.values()]
    may_create = ctx.services.config.auto_create_topics and bool(
        getattr(request, "allow_auto_topic_creation", True)
    )
    rows: list[Fields] = []
    seen: set[str | UUID] = set()
    for item in asked:
        topic_id: UUID | None = getattr(item, "topic_id", None)
        key: str | UUID = item.name if topic_id is None else topic_id
        await turns.row()
        if key not in seen:
            seen.add(key)
            found = await _one(ctx, item.name, topic_id, may_create=may_create)
            rows.append(
                await _described(ctx, found, turns) if isinstance(found, TopicImage) else found
            )
    unknown = any(row["error_code"] is ErrorCode.unknown_topic_or_partition for row in rows)
    if may_create and unknown and not ctx.services.region.acting:
        await _let_create(ctx)
    return rows


async def _let_create(ctx: RequestContext) -> None:
    """Have the acting region answer this request, which creates the topics that it names."""
    try:
        await ctx.services.forward.forward(ctx, ctx.frame)
    except ForwardingFailed as error:
        _log.info("topics that a client asked for were not created by the acting region: %s", error)


async def _one(
    ctx: RequestContext, name: str | None, topic_id: UUID | None, *, may_create: bool
) -> TopicImage | Fields:
    image = ctx.services.metadata.image
    if topic_id is not None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return _refused(None, topic_id, ErrorCode.unknown_topic_id)
        return topic
    if name is None or name_problem(name) is not None:
        return _refused(name or "", None, ErrorCode.invalid_topic_exception)
    topic = image.topics.get(name)
    if topic is None and may_create:
        topic = await _create(ctx, name)
    if topic is None:
        return _refused(name, None, ErrorCode.unknown_topic_or_partition)
    return topic


async def _create(ctx: RequestContext, name: str) -> TopicImage | None:
    services = ctx.services
    if not services.region.acting or collision(name, services.metadata.image.topics) is not None:
        return None
    try:
        return await services.metadata.create_topic(
            name, services.config.default_partition_count, {}, services.chance.uuid()
        )
    except CommandRefused:  # another connection was first
        return services.metadata.image.topics.get(name)


def _refused(name: str | None, topic_id: UUID | None, error: ErrorCode) -> Fields:
    return {"error_code": error, "name": name, "topic_id": topic_id, "partitions": []}


async def _described(ctx: RequestContext, topic: TopicImage, turns: Turns) -> Fields:
    await turns.row(topic.partition_count)
    return {
        "error_code": ErrorCode.none,
        "name": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.internal,
        "partitions": [
            leader_row(ctx.services, topic, index) for index in range(topic.partition_count)
        ],
    }


API: Final = Api(3, "Metadata", range(14), handle_metadata)
