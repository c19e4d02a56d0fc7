"""AddPartitionsToTxn (24), versions 0-3.

v2: PRODUCER_FENCED.  v4 and v5 are for brokers verifying at other nodes (KIP-890) and are not served: a region
has one node, which verifies in memory.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from idempotency.identity import TopicName, TopicPartition
from region_broker.controller.metadata_image import INTERNAL_TOPICS, OFFSETS_LEDGER
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.handlers.txn_errors import (
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorVersions,
)

ERRORS: Final = ErrorVersions(producer_fenced_since=2, abortable_since=5)


async def handle_add_partitions_to_txn(ctx: RequestContext, request: Any) -> Fields:
    """Let partitions join the transaction; all of them or none."""
    partitions = _partitions(request)
    refused = {tp: error for tp in partitions if (error := _refusal(ctx, tp)) != 0}
    if refused:
        return _by_topic((tp, refused.get(tp, OPERATION_NOT_ATTEMPTED)) for tp in partitions)
    verdict = await ctx.services.txn.add_partitions(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        partitions,
        implicit=False,
        connection_id=ctx.connection_id,
    )
    return _on_error(ctx, request, ERRORS.error_of(verdict, ctx.version))


def _partitions(request: Any) -> Sequence[TopicPartition]:
    return [
        TopicPartition(TopicName(topic.name), int(partition))
        for topic in request.v3_and_below_topics
        for partition in topic.partitions
    ]


def _refusal(ctx: RequestContext, tp: TopicPartition) -> int:
    """Return why no transaction may have this partition, 0 if it may."""
    if tp.topic in INTERNAL_TOPICS and tp.topic != OFFSETS_LEDGER:
        return TOPIC_AUTHORIZATION_FAILED
    topic = ctx.services.metadata.image.topics.get(tp.topic)
    if topic is None or not 0 <= tp.partition < topic.partition_count:
        return UNKNOWN_TOPIC_OR_PARTITION
    return 0


def _by_topic(errors: Iterable[tuple[TopicPartition, int]]) -> Fields:
    topics: dict[str, list[Fields]] = {}
    for tp, error_code in errors:
        row = {"partition_index": tp.partition, "partition_error_code": error_code}
        topics.setdefault(tp.topic, []).append(row)
    return {
        "results_by_topic_v3_and_below": [
            {"name": name, "results_by_partition": rows} for name, rows in topics.items()
        ]
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return _by_topic((tp, error_code) for tp in _partitions(request))


API: Final = Api(
    key=24,
    name="AddPartitionsToTxn",
    versions=range(4),
    handle=handle_add_partitions_to_txn,
    forward=True,
    on_error=_on_error,
)
