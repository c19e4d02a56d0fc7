"""TxnOffsetCommit (28), versions 0-5.

v2: leader epoch.  v3: generation, member, instance (KIP-447, C42).  v4: TRANSACTION_ABORTABLE.
v5: adds the offsets partition to the transaction by itself (KIP-890, TV2).

INV-HTO1  offsets are staged in the transaction that was open when they came: verified in the step that appends them (C46),
          by a guard that a marker in between ends (P4, INV-G1)
"""

from collections.abc import Callable, Container, Mapping
from typing import Any, Final

from idempotency.identity import NO_SEQUENCE, TopicName, TopicPartition
from region_broker.controller.metadata_image import OFFSETS_LEDGER
from region_broker.groups.messages import CommitOutcome, CommitRequest, MemberIdentity
from region_broker.groups.ports import TxnProducer
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups.errors import (
    COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE,
    ERROR_OF,
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    offsets_of,
)
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding
from txn_coordinator.connection_order import Arrival
from txn_coordinator.verdicts import TxnVerdict

_ILLEGAL_GENERATION: Final = 22
_INVALID_REQUEST: Final = 42
_INVALID_PRODUCER_EPOCH: Final = 47
_INVALID_TXN_STATE: Final = 48
_INVALID_PRODUCER_ID_MAPPING: Final = 49
_CONCURRENT_TRANSACTIONS: Final = 51
_TRANSACTION_ABORTABLE: Final = 120

_TXN_ERROR_OF: Final = {
    TxnVerdict.OK: NONE,
    TxnVerdict.LOADING: COORDINATOR_LOAD_IN_PROGRESS,
    TxnVerdict.NOT_COORDINATOR: 16,
    TxnVerdict.UNAVAILABLE: COORDINATOR_NOT_AVAILABLE,
    TxnVerdict.CONCURRENT: _CONCURRENT_TRANSACTIONS,
    TxnVerdict.FENCED: _INVALID_PRODUCER_EPOCH,
    TxnVerdict.STALE_CONNECTION: _INVALID_PRODUCER_EPOCH,
    TxnVerdict.UNPROVEN_CONNECTION: COORDINATOR_LOAD_IN_PROGRESS,
    TxnVerdict.FENCED_BY_TAKEOVER: _TRANSACTION_ABORTABLE,
    TxnVerdict.FENCED_BY_TAKEOVER_FATAL: _INVALID_PRODUCER_EPOCH,
    TxnVerdict.UNKNOWN_PRODUCER_MAPPING: _INVALID_PRODUCER_ID_MAPPING,
    TxnVerdict.INVALID_STATE: _INVALID_TXN_STATE,
    TxnVerdict.INVALID_TIMEOUT: _INVALID_REQUEST,
    TxnVerdict.INVALID_REQUEST: _INVALID_REQUEST,
    TxnVerdict.NOT_IN_TRANSACTION: _TRANSACTION_ABORTABLE,
    TxnVerdict.WRONG_DOMAIN: _INVALID_REQUEST,
}
assert set(_TXN_ERROR_OF) == set(TxnVerdict), "a transaction verdict has no Kafka error"


class _NotInTransaction(Exception):
    """The offsets were not appended: their transaction is not open."""

    def __init__(self, verdict: TxnVerdict) -> None:
        super().__init__(verdict.name)
        self.verdict = verdict


async def handle_txn_offset_commit(ctx: RequestContext, request: Any) -> Fields:
    """Stage offsets in the producer's transaction; those of topics that who asks may not read, not."""
    names = [TopicName(topic.name) for topic in request.topics]
    denied = await denied_topics(ctx, Operation.READ, names, CooperativeYield.of_a_write())
    if not denied:
        return await _guarded(ctx, request, denied)
    if all(name in denied for name in names):
        return await error_for_all(ctx, request, TOPIC_DENIED, _on_error)
    answer = await _guarded(ctx, request, denied)
    yielding = CooperativeYield()
    topics: list[Fields] = []
    for topic in answer["topics"]:
        await yielding.row()
        told = topic if topic["name"] not in denied else await _denied(topic, yielding)
        topics.append(told)
    return {"topics": topics}


async def _denied(topic: Fields, yielding: CooperativeYield) -> Fields:
    rows = await each_yielding(
        topic["partitions"], lambda row: {**row, "error_code": TOPIC_DENIED}, yielding
    )
    return {**topic, "partitions": rows}


async def _guarded(ctx: RequestContext, request: Any, denied: Container[object]) -> Fields:
    groups = ctx.services.groups
    ledger = TopicPartition(TopicName(OFFSETS_LEDGER), groups.shard_of(request.group_id))
    log = ctx.services.partitions.get(ledger.topic, ledger.partition)
    if log is None:
        return await error_for_all(ctx, request, COORDINATOR_NOT_AVAILABLE, _on_error)
    attempts = log.state.verifications
    guard = attempts.begin(
        request.producer_id, request.producer_epoch, NO_SEQUENCE, tv2=ctx.version >= 5
    )
    try:
        return await _staged(
            ctx, request, denied, ledger, lambda: log.state.verifications.is_current(guard)
        )
    finally:
        attempts.leave(guard)


async def _staged(
    ctx: RequestContext, request: Any, denied: Container[object], ledger: TopicPartition,
    is_current: Callable[[], bool],
) -> Fields:  # fmt: skip
    groups = ctx.services.groups
    producer = (request.transactional_id, request.producer_id, request.producer_epoch)
    if ctx.version >= 5:
        added = await ctx.services.txn.add_partitions(*producer, [ledger], implicit=True)
        if added is not TxnVerdict.OK:
            return await error_for_all(ctx, request, _txn_error(ctx, added), _on_error)
    topics = [(TopicName(topic.name), topic) for topic in request.topics]
    offsets, unknown = await offsets_of(ctx, topics, denied, CooperativeYield.of_a_write())
    commit = CommitRequest(
        group_id=request.group_id,
        offsets=offsets,
        who=MemberIdentity(
            getattr(request, "member_id", ""), getattr(request, "group_instance_id", None)
        ),
        generation=getattr(request, "generation_id", -1),
    )
    arrival = Arrival(ctx.sender, request.group_id) if ctx.version < 5 else None

    def verify() -> None:
        # Nothing is awaited from here to the append (C46, P4):
        # 1. verified here. 2. were the transaction aborted now, its marker would be appended.
        # 3. an append after it would open a transaction that nobody ends.
        verified = ctx.services.txn.verify(*producer, ledger, arrival)
        if verified is not TxnVerdict.OK:
            raise _NotInTransaction(verified)
        if not is_current():
            raise _NotInTransaction(
                TxnVerdict.LOADING
            )  # a live client asks again, and is verified anew
        ctx.leave_large()  # it waits for the ledger now, and none of the refusals below comes any more

    sender = TxnProducer(request.producer_id, request.producer_epoch)
    try:
        outcome = await groups.txn_commit_offsets(commit, sender, verify)
    except _NotInTransaction as refused:
        return await error_for_all(ctx, request, _txn_error(ctx, refused.verdict), _on_error)
    yielding, rows = CooperativeYield(), _ByTopic()
    for topic in request.topics:
        for part in topic.partitions:
            await yielding.row()
            tp = TopicPartition(TopicName(topic.name), part.partition_index)
            code = UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else _error(ctx, outcome, tp)
            rows.add(tp, code)
    return rows.fields


def _error(ctx: RequestContext, outcome: CommitOutcome, tp: TopicPartition) -> int:
    verdict = outcome.of(tp)
    if verdict is GroupVerdict.LOADING:
        return _loading(ctx)
    if verdict is GroupVerdict.OFFSET_BEYOND_EPOCH:
        return _ILLEGAL_GENERATION  # clients abort the transaction and read again; another error ends them
    if verdict is GroupVerdict.TOO_MANY_OFFSETS:  # any other error is the end of a Java producer
        return _TRANSACTION_ABORTABLE if ctx.version >= 4 else COORDINATOR_NOT_AVAILABLE
    return ERROR_OF[verdict]


def _txn_error(ctx: RequestContext, verdict: TxnVerdict) -> int:
    if verdict in (TxnVerdict.LOADING, TxnVerdict.UNPROVEN_CONNECTION):
        return _loading(ctx)  # clients ask again
    if verdict is TxnVerdict.CONCURRENT and ctx.version < 5:
        return COORDINATOR_NOT_AVAILABLE  # retriable for old clients, as C28 does for Produce
    error_code = _TXN_ERROR_OF[verdict]
    if error_code == _TRANSACTION_ABORTABLE and ctx.version < 4:
        taken_over = verdict is TxnVerdict.FENCED_BY_TAKEOVER
        return _INVALID_PRODUCER_EPOCH if taken_over else _INVALID_TXN_STATE
    return error_code


def _loading(ctx: RequestContext) -> int:
    """Return the error for a loading coordinator: old clients fail on its own one (KAFKA-7296)."""
    return COORDINATOR_NOT_AVAILABLE if ctx.version < 2 else COORDINATOR_LOAD_IN_PROGRESS


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    rows = _ByTopic()
    for topic in request.topics:
        for part in topic.partitions:
            rows.add(TopicPartition(TopicName(topic.name), part.partition_index), error_code)
    return rows.fields


class _ByTopic:
    """The answer: one error per partition, each topic once."""

    def __init__(self) -> None:
        """Begin without partitions."""
        self._topics: dict[str, list[Mapping[str, int]]] = {}

    def add(self, tp: TopicPartition, error_code: int) -> None:
        """Take the error of one partition."""
        row = {"partition_index": tp.partition, "error_code": error_code}
        self._topics.setdefault(tp.topic, []).append(row)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the answer."""
        rows = [{"name": name, "partitions": parts} for name, parts in self._topics.items()]
        return {"topics": rows}


API: Final = Api(
    key=28,
    name="TxnOffsetCommit",
    versions=range(6),
    handle=handle_txn_offset_commit,
    forward=True,
    on_error=_on_error,
)
