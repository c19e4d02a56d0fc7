"""WriteTxnMarkers (27), versions 1-2 (KIP-98, KIP-664): an administrator's abort.  v2: transaction version.

No marker is written as it came: an abort becomes a decision of the coordinator, which fences the producer and writes
its own markers (B13); a commit is refused, since only the ledger commits. A partition in which the producer has nothing
open is answered with success and left alone (P9).

`kafka-transactions.sh abort` and `Admin.abortTransaction` send it with what DescribeProducers told them.
Source: KafkaApis.scala `handleWriteTxnMarkersRequest`, ProducerAppendInfo.java `appendEndTxnMarker`,
AbortTransactionHandler.java (what the sender retries).
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import TopicName, TopicPartition
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.led_apart import OpenHere
from region_broker.handlers.dispatch.partitions import find_led
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.partitions.partition import Partition
from region_broker.wire.cooperative_yield import CooperativeYield
from txn_coordinator.verdicts import TxnVerdict

# NOT_LEADER_OR_FOLLOWER is what senders ask again after; the rest ends the abort with its name.
_ERROR_OF: Final = {
    TxnVerdict.OK: ErrorCode.none,
    TxnVerdict.LOADING: ErrorCode.not_leader_or_follower,
    TxnVerdict.NOT_COORDINATOR: ErrorCode.not_leader_or_follower,
    TxnVerdict.UNAVAILABLE: ErrorCode.kafka_storage_error,
    TxnVerdict.CONCURRENT: ErrorCode.concurrent_transactions,
    TxnVerdict.FENCED: ErrorCode.invalid_producer_epoch,
    TxnVerdict.STALE_CONNECTION: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNPROVEN_CONNECTION: ErrorCode.not_leader_or_follower,
    TxnVerdict.FENCED_BY_TAKEOVER: ErrorCode.invalid_producer_epoch,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: ErrorCode.invalid_producer_epoch,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: ErrorCode.invalid_producer_id_mapping,
    TxnVerdict.INVALID_STATE: ErrorCode.invalid_txn_state,
    TxnVerdict.INVALID_TIMEOUT: ErrorCode.invalid_request,
    TxnVerdict.INVALID_REQUEST: ErrorCode.invalid_request,
    TxnVerdict.NOT_IN_TRANSACTION: ErrorCode.invalid_txn_state,
    TxnVerdict.WRONG_DOMAIN: ErrorCode.invalid_request,
}
assert set(_ERROR_OF) == set(TxnVerdict), "a transaction verdict has no Kafka error"


async def handle_write_txn_markers(ctx: RequestContext, request: Any) -> Fields:
    """Abort what each marker names; answered when nothing of it is open any more."""
    check_count(
        "WriteTxnMarkers",
        sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics),
    )
    return {"markers": [await _result(ctx, marker) for marker in request.markers]}


async def _result(ctx: RequestContext, marker: Any) -> Fields:
    errors: dict[TopicPartition, int] = {}
    open_in: dict[TopicPartition, Partition] = {}
    yielding = CooperativeYield.of_a_write()
    for tp in _partitions(marker):
        await yielding.row()
        judged = _judge(ctx, marker, tp)
        if isinstance(judged, Partition):
            open_in[tp] = judged
        else:
            errors[tp] = judged

    def still_open() -> list[TopicPartition]:
        return [tp for tp, partition in open_in.items() if _is_open(partition, marker)]

    if open_in:
        if ctx.services.leads_apart:
            verdict = await _abort_elsewhere(ctx, marker, open_in)
        else:
            verdict = await ctx.services.txn_admin.abort_producer(
                marker.producer_id, marker.producer_epoch, still_open
            )
        errors |= dict.fromkeys(open_in, _ERROR_OF[verdict])
    return _row(marker, errors)


async def _abort_elsewhere(
    ctx: RequestContext, marker: Any, open_in: Mapping[TopicPartition, Partition]
) -> TxnVerdict:
    """Have the coordinator decide it, which is at another node where leaders are spread."""
    services = ctx.services
    assert services.apart is not None
    assert services.txn_elsewhere is not None, "INV-HLA4: data groups have a coordinator"
    found: list[OpenHere] = []
    for partition in open_in.values():
        known = partition.state.producer(marker.producer_id)
        led_under = services.apart.leads_under(partition.key)
        if led_under is None:
            return TxnVerdict.NOT_COORDINATOR
        if known is not None and known.txn_first_offset >= 0:
            end = partition.log_end_offset
            found.append(OpenHere(partition.key, led_under, known.txn_first_offset, end))
    return await services.txn_elsewhere.abort_producer(
        marker.producer_id, marker.producer_epoch, found
    )


def _judge(ctx: RequestContext, marker: Any, tp: TopicPartition) -> Partition | int:
    """Return the partition that needs the abort, or the answer where none is needed or allowed."""
    found = find_led(ctx.services, tp.topic, tp.partition)
    if isinstance(found, ErrorCode):
        return found
    if marker.transaction_result:
        return ErrorCode.invalid_request
    known = found.state.producer(marker.producer_id)
    if known is None:
        return ErrorCode.none
    if marker.producer_epoch < known.producer_epoch:
        return ErrorCode.invalid_producer_epoch
    if marker.coordinator_epoch < known.coordinator_epoch:
        return ErrorCode.transaction_coordinator_fenced
    return found if known.txn_first_offset >= 0 else ErrorCode.none


def _is_open(partition: Partition, marker: Any) -> bool:
    known = partition.state.producer(marker.producer_id)
    return known is not None and known.txn_first_offset >= 0


def _partitions(marker: Any) -> Iterator[TopicPartition]:
    return (
        TopicPartition(TopicName(topic.name), int(index))
        for topic in marker.topics
        for index in topic.partition_indexes
    )


def _row(marker: Any, errors: dict[TopicPartition, int]) -> Fields:
    return {
        "producer_id": marker.producer_id,
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": index,
                        "error_code": errors[TopicPartition(TopicName(topic.name), int(index))],
                    }
                    for index in topic.partition_indexes
                ],
            }
            for topic in marker.topics
        ],
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "markers": [
            _row(marker, dict.fromkeys(_partitions(marker), error_code))
            for marker in request.markers
        ]
    }


API: Final = Api(
    key=27,
    name="WriteTxnMarkers",
    versions=range(1, 3),
    handle=handle_write_txn_markers,
    forward=True,
    on_error=_on_error,
)
