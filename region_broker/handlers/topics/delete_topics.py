"""DeleteTopics (20), versions 1-6.  v5: error text, THROTTLING_QUOTA_EXCEEDED (KIP-599).  v6: by id too.

Ledgers cannot be deleted: a region without them could not take over.
"""

from collections.abc import Iterator
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.controller.refusals import NOT_ALLOWED
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may_by_cluster, sees
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.mutations import THROTTLED, may_change
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield

_STRICT_SINCE: Final = 5


async def handle_delete_topics(ctx: RequestContext, request: Any) -> Fields:
    """Delete each topic or say why not."""
    rows: list[Fields] = []
    yielding = CooperativeYield.of_a_write()
    for name, topic_id in _asked(ctx, request):
        await yielding.row()
        rows.append(await _delete(ctx, name, topic_id))
    return {"responses": rows}


def _asked(ctx: RequestContext, request: Any) -> Iterator[tuple[str | None, UUID | None]]:
    """Yield what is named, one by one: a request may name 90,000, each a tuple that takes time."""
    if ctx.version >= 6:
        return ((item.name, item.topic_id) for item in request.topics)
    return ((name, None) for name in request.topic_names)


async def _delete(ctx: RequestContext, name: str | None, topic_id: UUID | None) -> Fields:
    image = ctx.services.metadata.image
    if (name is None) == (topic_id is None):
        return _row(name, topic_id, ErrorCode.invalid_request, "name the topic by name or by id")
    if topic_id is not None:
        found = image.topic_by_id(topic_id)
        if found is None:
            return _row(None, topic_id, ErrorCode.unknown_topic_id, f"no topic has id {topic_id}")
        name = found.name
    assert name is not None
    if not _may_delete(ctx, name):
        return _denied(ctx, name, topic_id)
    return await _delete_named(ctx, name, topic_id)


def _denied(ctx: RequestContext, name: str, topic_id: UUID | None) -> Fields:
    """Refuse; an id is no secret, the name that it stands for may be (INV-HAZ4)."""
    shown = topic_id is None or sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name)
    return _row(name if shown else None, topic_id, TOPIC_DENIED, None)


async def _delete_named(ctx: RequestContext, name: str, topic_id: UUID | None) -> Fields:
    image = ctx.services.metadata.image
    topic = image.topics.get(name)
    if topic is None:
        text = f"there is no topic {name!r}"
        return _row(name, topic_id, ErrorCode.unknown_topic_or_partition, text)
    if topic.internal:
        text = f"topic {name} is a ledger of Tidemark and cannot be deleted"
        return _row(name, topic_id, ErrorCode.invalid_topic_exception, text)
    if not may_change(ctx, topic.partition_count, _STRICT_SINCE):
        return _row(name, topic_id, *THROTTLED)
    try:
        await ctx.services.metadata.delete_topic(name, lambda: _may_delete(ctx, name))
    except CommandRefused as refused:
        if refused.code == NOT_ALLOWED:
            return _denied(ctx, name, topic_id)
        if refused.code == NOT_ACTING:
            return _row(name, topic_id, ErrorCode.not_controller, refused.reason)
        # Another connection was first.
        return _row(name, topic_id, ErrorCode.unknown_topic_or_partition, refused.reason)
    except MetadataUnwritable as failed:
        return _row(name, topic_id, *unwritten(failed))
    return _row(name, topic.topic_id, ErrorCode.none, None)


def _may_delete(ctx: RequestContext, name: str) -> bool:
    return may_by_cluster(ctx, Operation.DELETE, name)


def _row(name: str | None, topic_id: UUID | None, error: int, text: str | None) -> Fields:
    return {"name": name, "topic_id": topic_id, "error_code": error, "error_message": text}


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    rows = [_row(name, topic_id, error_code, None) for name, topic_id in _asked(ctx, request)]
    return {"responses": rows}


API: Final = Api(
    20, "DeleteTopics", range(1, 7), handle_delete_topics, forward=True, on_error=_on_error
)
