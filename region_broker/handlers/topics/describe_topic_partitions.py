"""DescribeTopicPartitions (75), versions 0-0 (KIP-966): topics in name order, page by page.

INV-HTP2 the lists of eligible leaders are empty, never null: the Java client 4.1 falls over a null one
An answer holds at most DESCRIBED_PARTITIONS_MAX partitions; where more are left, the cursor names the next topic and
partition, and a request with that cursor goes on exactly there.
There are no eligible leaders besides those in sync: whoever may lead stays in the set (ADR 47).
Source: Kafka DescribeTopicPartitionsRequestHandler, KRaftMetadataCache.
"""

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.authorizing import (
    TOPIC_DENIED,
    may,
    operations_of,
    rows_of_operations,
    sees,
)
from region_broker.handlers.dispatch.partitions import leader_row
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import DESCRIBED_PARTITIONS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_RUN_NAMES: Final = 1_000
"""So many names are sorted in one step."""


async def handle_describe_topic_partitions(ctx: RequestContext, request: Any) -> Fields:
    """Describe the topics named, or all; from the cursor on."""
    every = not request.topics
    names = await _seen(ctx) if every else await _sorted(request.topics)
    cursor = request.cursor
    if cursor is not None:
        at = bisect_left(names, cursor.topic_name)
        if cursor.partition_index < 0 or not (every or names[at : at + 1] == [cursor.topic_name]):
            # Kafka answers so: there is no place for an error of the whole request.
            refused = [] if every else names
            made = lambda name: _refused(name, ErrorCode.invalid_request)  # noqa: E731
            return _answer(await each_yielding(refused, made, CooperativeYield()), None)
        names = names[at:]
    first = 0 if cursor is None or names[:1] != [cursor.topic_name] else cursor.partition_index
    limit = max(1, min(int(request.response_partition_limit), DESCRIBED_PARTITIONS_MAX))
    return await _page(ctx, names, first, limit)


async def _sorted(topics: Sequence[Any]) -> list[str]:
    """Return the names of topics in order, each once: a client may name very many, page by page."""
    yielding = CooperativeYield()
    names = await each_yielding(topics, lambda topic: str(topic.name), yielding)
    runs = [sorted(names[at : at + _RUN_NAMES]) for at in range(0, len(names), _RUN_NAMES)]
    found: list[str] = []
    for name in heapq.merge(*runs):
        await yielding.row()
        if found[-1:] != [name]:
            found.append(name)
    return found


async def _page(ctx: RequestContext, names: Sequence[str], first: int, limit: int) -> Fields:
    topics: list[Fields] = []
    left = limit
    yielding = CooperativeYield()
    judged = rows_of_operations(ctx)
    for name in names:
        await yielding.row(1 + judged)
        if left == 0:
            return _answer(topics, (name, first))
        if not may(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name):
            topics.append(_refused(name, TOPIC_DENIED))
            first = 0
            continue
        topic = ctx.services.metadata.image.topics.get(name)
        if topic is None:
            known = name_problem(name) is None
            error = (
                ErrorCode.unknown_topic_or_partition if known else ErrorCode.invalid_topic_exception
            )
            topics.append(_refused(name, error))
            first = 0
            continue
        stop = min(topic.partition_count, first + left)
        rows = [
            {
                **leader_row(ctx, topic, index),
                "eligible_leader_replicas": [],
                "last_known_elr": [],
            }
            for index in range(first, stop)
        ]
        topics.append(
            {
                "error_code": ErrorCode.none,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.internal,
                "partitions": rows,
                "topic_authorized_operations": operations_of(ctx, ResourceType.TOPIC, name),
            }
        )
        if stop < topic.partition_count:
            return _answer(topics, (name, stop))
        left -= len(rows)
        first = 0
    return _answer(topics, None)


async def _seen(ctx: RequestContext) -> list[str]:
    """Return the names of all topics that who asks may see, in order."""
    names = sorted(ctx.services.metadata.image.topics)
    if not ctx.services.authorizer.in_force:
        return names
    yielding = CooperativeYield()
    found = []
    for name in names:
        await yielding.row()
        if sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name):
            found.append(name)
    return found


def _answer(topics: list[Fields], next_cursor: tuple[str, int] | None) -> Fields:
    cursor = None
    if next_cursor is not None:
        cursor = {"topic_name": next_cursor[0], "partition_index": next_cursor[1]}
    return {"topics": topics, "next_cursor": cursor}


def _refused(name: str, error: ErrorCode) -> Fields:
    return {
        "error_code": error, "name": name, "topic_id": None, "is_internal": False,
        "partitions": [],
    }  # fmt: skip


def _lists_all(request: Any) -> bool:
    return not request.topics


API: Final = Api(
    75, "DescribeTopicPartitions", range(1), handle_describe_topic_partitions, lists=_lists_all
)
