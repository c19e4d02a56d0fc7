"""DeleteRecords (21), versions 0-2 (KIP-107): move the log start up; -1 means the high watermark.

INV-HDR1 an answer without an error is durable here; mirrors follow at a tidemark that names the log start (T14), so
         a takeover at an older one brings the records back. A planned switch is never at an older one (INV-RR4)
INV-HDR2 an answer without an error says that all members of the region that may lead next have the log start, durably (INV-RPL11);
         what does not get there in the request's time is REQUEST_TIMED_OUT, and may still come (P18)

First all partitions begin, then all are waited for, with one time-out. The low watermark is the least log start of these members. In
Kafka it is that of all replicas whose broker is alive: who is alive and lags holds an answer back there; here it is not taken in sync
before it has the log start.
Source: Kafka ReplicaManager.deleteRecords, DelayedDeleteRecords. Not here: when the bytes go (`partitions.partition`).
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may
from region_broker.handlers.dispatch.partitions import find_led
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.log.failures import NotLeader, OffsetOutOfRange, PartitionFailed
from region_broker.partitions.partition import Partition
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_HIGH_WATERMARK: Final = -1
_NO_OFFSET: Final = -1


@dataclass(slots=True)
class _Order:
    """One partition of a request. `partition`: where it has begun, and may have taken effect."""

    index: int
    error: ErrorCode = ErrorCode.none
    partition: Partition | None = None
    offset: int = _NO_OFFSET
    low_watermark: int = _NO_OFFSET

    def begun(self, partition: Partition, offset: int) -> None:
        """It is durable here; nobody knows yet whether it stays."""
        self.partition, self.offset = partition, offset
        self.low_watermark = partition.retention.low_watermark
        self.error = ErrorCode.request_timed_out

    def refuse(self, error: ErrorCode) -> None:
        """Answer with an error, and no offset."""
        self.error, self.low_watermark = error, _NO_OFFSET

    def row(self) -> Fields:
        """Return what the answer says."""
        return _row(self.index, self.error, self.low_watermark)


async def handle_delete_records(ctx: RequestContext, request: Any) -> Fields:
    """Delete below the offset given in each partition, or say why not."""
    if sum(len(topic.partitions) for topic in request.topics) > ADMIN_ITEMS_MAX:
        return await error_for_all(ctx, request, ErrorCode.invalid_request, _on_error)
    yielding = CooperativeYield.of_a_write()
    topics: list[tuple[str, list[_Order]]] = []
    begun: list[_Order] = []
    for topic in request.topics:
        await yielding.row()
        orders: list[_Order] = []
        allowed = may(ctx, Operation.DELETE, ResourceType.TOPIC, topic.name)
        for item in topic.partitions:
            await yielding.row()
            if not allowed:
                orders.append(_Order(item.partition_index, TOPIC_DENIED))
                continue
            order = await _begin(ctx, topic.name, item.partition_index, int(item.offset))
            orders.append(order)
            if order.partition is not None:
                begun.append(order)
        topics.append((topic.name, orders))
    with suppress(TimeoutError):
        async with asyncio.timeout(request.timeout / timedelta(seconds=1)):
            for order in begun:
                await _settle(ctx, order)
    return {
        "topics": [
            {"name": name, "partitions": await each_yielding(orders, _Order.row, yielding)}
            for name, orders in topics
        ]
    }


async def _begin(ctx: RequestContext, name: str, index: int, offset: int) -> _Order:
    """Carry it out here, durably, or say why not."""
    topic = ctx.services.metadata.image.topics.get(name)
    if topic is not None and topic.internal:
        return _Order(index, ErrorCode.invalid_topic_exception)
    if topic is not None and "delete" not in topic.configs.get("cleanup.policy", "delete"):
        return _Order(index, ErrorCode.policy_violation)
    partition = find_led(ctx.services, name, index)
    if isinstance(partition, ErrorCode):
        return _Order(index, partition)
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    order = _Order(index)
    try:
        with ctx.services.change_of(partition):
            await partition.retention.delete_records(offset)
            order.begun(partition, offset)
    except OffsetOutOfRange:
        order.refuse(ErrorCode.offset_out_of_range)
    except (NotLeader, CommandRefused):
        order.refuse(ErrorCode.not_leader_or_follower)
    except PartitionFailed:
        order.refuse(_why_failed(ctx, partition))
    return order


async def _settle(ctx: RequestContext, order: _Order) -> None:
    """Wait until all that may lead next have it (INV-HDR2). No change is counted meanwhile: a role ends without them (INV-RR4)."""
    partition = order.partition
    assert partition is not None
    try:
        await partition.retention.wait_deleted(order.offset)
    except NotLeader:
        order.refuse(ErrorCode.not_leader_or_follower)
    except PartitionFailed:
        order.refuse(_why_failed(ctx, partition))
    else:
        order.error, order.low_watermark = ErrorCode.none, partition.retention.low_watermark


def _why_failed(ctx: RequestContext, partition: Partition) -> ErrorCode:
    found = ctx.services.partitions.get(partition.tp.topic, partition.tp.partition)
    if found is not partition:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.kafka_storage_error


def _row(index: int, error: int, low_watermark: int = _NO_OFFSET) -> Fields:
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": error}


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_row(item.partition_index, error_code) for item in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API: Final = Api(
    21, "DeleteRecords", range(3), handle_delete_records, forward=True, on_error=_on_error
)
