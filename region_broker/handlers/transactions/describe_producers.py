"""DescribeProducers (61), versions 0-0 (KIP-664): who has written to a partition, and what is open there.

Answered by the primary region, whose partitions take the writes; a mirror forwards.
Source: KafkaApis.scala `handleDescribeProducersRequest`, UnifiedLog.scala `activeProducers`.
"""

from functools import partial
from itertools import islice
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerId
from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.answer_budget import (
    TOO_LARGE,
    TOO_LARGE_TEXT,
    check_count,
    described,
)
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics
from region_broker.handlers.dispatch.partitions import find_led
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.partitions.partition import Partition
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding


async def handle_describe_producers(ctx: RequestContext, request: Any) -> Fields:
    """Return every known producer of the partitions asked for."""
    asked = [(topic.name, int(i)) for topic in request.topics for i in topic.partition_indexes]
    check_count("DescribeProducers", len(asked))

    names = (str(topic.name) for topic in request.topics if name_problem(topic.name) is None)
    denied = await denied_topics(ctx, Operation.READ, names, CooperativeYield())

    async def describe(name: tuple[str, int], yielding: CooperativeYield) -> Fields:
        if name[0] in denied:
            return _refused(name[1], TOPIC_DENIED)
        return await _row(ctx, *name, yielding)

    rows = iter(await described(ctx, asked, describe, _too_large))
    return {
        "topics": [
            {"name": topic.name, "partitions": list(islice(rows, len(topic.partition_indexes)))}
            for topic in request.topics
        ]
    }


async def _row(ctx: RequestContext, topic: str, index: int, yielding: CooperativeYield) -> Fields:
    problem = name_problem(topic)
    if problem is not None:
        return _refused(index, ErrorCode.invalid_topic_exception, problem)
    found = find_led(ctx.services, topic, index)
    if isinstance(found, ErrorCode):
        return _refused(index, found)
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "error_message": None,
        "active_producers": [
            row
            for row in await each_yielding(
                sorted(found.state.producer_table.ids()), partial(_producer, found), yielding
            )
            if row is not None
        ],
    }


def _producer(partition: Partition, producer_id: ProducerId) -> Fields | None:
    known = partition.state.producer(producer_id)
    if known is None:  # it was forgotten meanwhile
        return None
    return {
        "producer_id": known.producer_id,
        "producer_epoch": known.producer_epoch,
        "last_sequence": known.last_sequence,
        "last_timestamp": known.last_timestamp_ms,
        "coordinator_epoch": known.coordinator_epoch,
        "current_txn_start_offset": known.txn_first_offset,
    }


def _too_large(name: tuple[str, int]) -> Fields:
    return _refused(name[1], TOO_LARGE, TOO_LARGE_TEXT)


def _refused(index: int, error_code: int, text: str | None = None) -> Fields:
    return {
        "partition_index": index,
        "error_code": error_code,
        "error_message": text,
        "active_producers": [],
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_refused(int(i), error_code) for i in topic.partition_indexes],
            }
            for topic in request.topics
        ]
    }


API: Final = Api(
    key=61,
    name="DescribeProducers",
    versions=range(1),
    handle=handle_describe_producers,
    forward=True,
    describes=True,
    on_error=_on_error,
)
