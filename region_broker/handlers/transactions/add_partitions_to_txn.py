"""AddPartitionsToTxn (24), versions 0-5.

v2: PRODUCER_FENCED.  v4: several transactions, each added or (VerifyOnly) only looked at, as brokers ask other
brokers (KIP-890 part 1); the node that leads a region verifies in memory, but whoever asks is answered.
v5: TRANSACTION_ABORTABLE (KIP-890, KIP-1050).
Source: KafkaApis.scala `handleAddPartitionsToTxnRequest`, TransactionCoordinator.scala
`handleVerifyPartitionsInTransaction`.
INV-APT1 a partition that is named again and again is asked for, and answered, once, as in Kafka; of a request that names more than ADMIN_ITEMS_MAX
         nothing is asked
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerEpoch, ProducerId, TopicName, TopicPartition
from region_broker.controller.metadata_image import INTERNAL_TOPICS, OFFSETS_LEDGER
from region_broker.handlers.dispatch.authorizing import denied_topics, sees
from region_broker.handlers.dispatch.registry import Api, Fields, Finish, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import (
    INVALID_REQUEST,
    INVALID_TXN_STATE,
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    ErrorVersions,
)
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.codec.fast_paths.transactions import ADD_KEY, AddRequest, add_answer
from region_broker.wire.cooperative_yield import CooperativeYield, look_up_rows
from txn_coordinator.verdicts import TxnVerdict

ERRORS: Final = ErrorVersions(producer_fenced_since=2, abortable_since=5)
_BATCHED_SINCE: Final = 4
_UNBATCHED: Final = "results_by_topic_v3_and_below"


@dataclass(frozen=True, slots=True)
class _Asked:
    """One transaction of the request, whatever its version."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: Iterable[TopicPartition]
    """In the order sent, perhaps one of them again and again; gone over once."""
    verify_only: bool = False


def begin_add_partitions_to_txn(ctx: RequestContext, request: Any, finish: Finish) -> bool:
    """Let the partitions of one producer join, without a task; False if some may not."""
    if not isinstance(request, AddRequest):
        return False
    partitions = list(dict.fromkeys(request.partitions))
    for tp in partitions:
        if _refusal(ctx, tp) or not sees(ctx, Operation.WRITE, ResourceType.TOPIC, tp.topic):
            return False

    def done(verdict: TxnVerdict) -> None:
        error_code = ERRORS.error_of(verdict, ctx.version)
        names = (ErrorCode(error_code).name,) * len(partitions) if error_code else ()
        rows = [(tp, error_code) for tp in partitions]
        finish(Written(add_answer(ctx.correlation_id, rows), names))

    ctx.services.txn.begin_add_partitions(
        request.transactional_id, request.producer_id, request.producer_epoch, partitions,
        sender=ctx.sender, done=done,
    )  # fmt: skip
    return True


async def handle_add_partitions_to_txn(ctx: RequestContext, request: Any) -> Fields:
    """Let partitions join their transaction, all of them or none; or say whether they are in it."""
    answer_to = _refused if _count(ctx, request) > ADMIN_ITEMS_MAX else _topics
    yielding = CooperativeYield.of_a_write()
    if ctx.version < _BATCHED_SINCE:
        return {_UNBATCHED: await answer_to(ctx, _unbatched(request), yielding)}
    results: list[Fields] = []
    for asked in map(_batched, request.transactions):
        await yielding.row(1 + look_up_rows(asked.transactional_id))
        topics = await answer_to(ctx, asked, yielding)
        results.append({"transactional_id": asked.transactional_id, "topic_results": topics})
    return {"error_code": 0, "results_by_transaction": results}


def _count(ctx: RequestContext, request: Any) -> int:
    if isinstance(request, AddRequest):
        return len(request.partitions)
    if ctx.version < _BATCHED_SINCE:
        return sum(len(topic.partitions) for topic in request.v3_and_below_topics)
    return sum(len(topic.partitions) for each in request.transactions for topic in each.topics)


async def _refused(_ctx: RequestContext, asked: _Asked, yielding: CooperativeYield) -> list[Fields]:
    return await _by_topic(((tp, INVALID_REQUEST) for tp in asked.partitions), yielding)


async def _topics(ctx: RequestContext, asked: _Asked, yielding: CooperativeYield) -> list[Fields]:
    partitions = await _each_once(asked)
    refused: dict[TopicPartition, int] = {}
    denied = await _denied(ctx, partitions)
    for tp in partitions:
        await yielding.row()
        if tp.topic in denied:
            refused[tp] = TOPIC_AUTHORIZATION_FAILED
        elif (error := _refusal(ctx, tp)) != 0:
            refused[tp] = error
    if refused:
        errors = ((tp, refused.get(tp, OPERATION_NOT_ATTEMPTED)) for tp in partitions)
        return await _by_topic(errors, yielding)
    if asked.verify_only:
        return await _by_topic(((tp, _verified(ctx, asked, tp)) for tp in partitions), yielding)
    verdict = await ctx.services.txn.add_partitions(
        asked.transactional_id,
        asked.producer_id,
        asked.producer_epoch,
        partitions,
        implicit=False,
        sender=ctx.sender,
    )
    error_code = ERRORS.error_of(verdict, ctx.version)
    return await _by_topic(((tp, error_code) for tp in partitions), yielding)


async def _each_once(asked: _Asked) -> Sequence[TopicPartition]:
    yielding, found = CooperativeYield.of_a_write(), dict[TopicPartition, None]()
    for tp in asked.partitions:
        await yielding.row()
        found[tp] = None
    return list(found)


async def _denied(ctx: RequestContext, partitions: Sequence[TopicPartition]) -> Container[str]:
    """Return the topics that a client may not write to; what comes for several transactions was judged as a whole."""
    if ctx.version >= _BATCHED_SINCE:
        return ()
    names, yielding = (tp.topic for tp in partitions), CooperativeYield.of_a_write()
    return await denied_topics(ctx, Operation.WRITE, names, yielding)


def _verified(ctx: RequestContext, asked: _Asked, tp: TopicPartition) -> int:
    if not asked.transactional_id:
        return INVALID_REQUEST
    verdict = ctx.services.txn.verify(
        asked.transactional_id, asked.producer_id, asked.producer_epoch, tp
    )
    if verdict is TxnVerdict.NOT_IN_TRANSACTION and ctx.version < ERRORS.abortable_since:
        return INVALID_TXN_STATE  # C27: what verification said before TRANSACTION_ABORTABLE existed
    return ERRORS.error_of(verdict, ctx.version)


def _unbatched(request: Any) -> _Asked:
    if isinstance(request, AddRequest):
        return _Asked(*request)
    return _Asked(
        request.v3_and_below_transactional_id,
        request.v3_and_below_producer_id,
        request.v3_and_below_producer_epoch,
        _partitions(request.v3_and_below_topics),
    )


def _batched(transaction: Any) -> _Asked:
    return _Asked(
        transaction.transactional_id,
        transaction.producer_id,
        transaction.producer_epoch,
        _partitions(transaction.topics),
        bool(transaction.verify_only),
    )


def _partitions(topics: Any) -> Iterator[TopicPartition]:
    return (
        TopicPartition(TopicName(topic.name), int(partition))
        for topic in topics
        for partition in topic.partitions
    )


def _refusal(ctx: RequestContext, tp: TopicPartition) -> int:
    """Return why no transaction may have this partition, 0 if it may."""
    if tp.topic in INTERNAL_TOPICS and tp.topic != OFFSETS_LEDGER:
        return TOPIC_AUTHORIZATION_FAILED
    topic = ctx.services.metadata.image.topics.get(tp.topic)
    if topic is None or not 0 <= tp.partition < topic.partition_count:
        return UNKNOWN_TOPIC_OR_PARTITION
    return 0


class _ByTopic(dict[str, list[Fields]]):
    """The rows of an answer, by topic."""

    def add(self, tp: TopicPartition, error_code: int) -> None:
        row = {"partition_index": tp.partition, "partition_error_code": error_code}
        self.setdefault(tp.topic, []).append(row)

    def results(self) -> list[Fields]:
        return [{"name": name, "results_by_partition": rows} for name, rows in self.items()]


async def _by_topic(
    errors: Iterable[tuple[TopicPartition, int]], yielding: CooperativeYield
) -> list[Fields]:
    topics = _ByTopic()
    for tp, error_code in errors:
        await yielding.row()
        topics.add(tp, error_code)
    return topics.results()


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    if ctx.version < _BATCHED_SINCE:
        topics = _ByTopic()
        for tp in _unbatched(request).partitions:
            topics.add(tp, error_code)
        return {_UNBATCHED: topics.results()}
    return {"error_code": error_code, "results_by_transaction": []}


API: Final = Api(
    key=ADD_KEY,
    name="AddPartitionsToTxn",
    versions=range(6),
    handle=handle_add_partitions_to_txn,
    forward=True,
    on_error=_on_error,
    begin=begin_add_partitions_to_txn,
)
