"""OffsetDelete (47), versions 0-0 (KIP-496): committed offsets of topics that no member of the group reads."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import TopicName, TopicPartition
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import (
    ERROR_OF,
    UNKNOWN_TOPIC_OR_PARTITION,
    topic_of,
)
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_offset_delete(ctx: RequestContext, request: Any) -> Fields:
    """Delete the offsets named, or say why not, of the group or of a partition."""
    if sum(len(topic.partitions) for topic in request.topics) > ADMIN_ITEMS_MAX:
        return {"error_code": ErrorCode.invalid_request, "topics": []}
    asked = [
        TopicPartition(TopicName(topic.name), part.partition_index)
        for topic in request.topics
        for part in topic.partitions
    ]
    yielding = CooperativeYield.of_a_write()
    known: list[TopicPartition] = []
    names = (tp.topic for tp in asked)
    denied = await denied_topics(ctx, Operation.READ, names, CooperativeYield.of_a_write())
    for tp in asked:
        await yielding.row()
        if tp.topic not in denied and topic_of(ctx, tp) is not None:
            known.append(tp)
    verdict, verdicts = await ctx.services.groups.delete_offsets(request.group_id, known)
    topics: dict[str, list[Fields]] = {}
    for tp in asked if not ERROR_OF[verdict] else ():
        await yielding.row()
        error = ERROR_OF[verdicts[tp]] if tp in verdicts else UNKNOWN_TOPIC_OR_PARTITION
        if tp.topic in denied:
            error = int(TOPIC_DENIED)
        row = {"partition_index": tp.partition, "error_code": error}
        topics.setdefault(tp.topic, []).append(row)
    return {
        "error_code": ERROR_OF[verdict],
        "topics": [{"name": name, "partitions": rows} for name, rows in topics.items()],
    }


API: Final = Api(47, "OffsetDelete", range(1), handle_offset_delete, forward=True)
