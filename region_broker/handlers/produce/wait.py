"""From appended batches to the answer: who waits for a group commit, and until when.

INV-HPW1 a request is answered once: by the commit that reaches its last batch, or when its time is over; then what is
         not durable is REQUEST_TIMED_OUT (P18). With acks=1 the disk of this node is enough (INV-PTD1)
Not here: what is appended (`produce.pipeline`), what moves HW (`partitions.partition`).
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, TypeAlias

from kio.schema.errors import ErrorCode

from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
)
from idempotency.pieces import Pieces, drained
from idempotency.verification import VerificationGuard
from region_broker.handlers.dispatch.partitions import nodes_of
from region_broker.handlers.dispatch.registry import Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import PIECE_ELEMENTS, RECORD_ERRORS_MAX
from region_broker.partitions.admission import AppendOutcome
from region_broker.partitions.partition import Partition
from region_broker.partitions.record_rules import Prepared
from region_broker.ports.network import Buffer
from region_broker.wire.codec.fast_paths.leaders import Endpoint
from region_broker.wire.codec.fast_paths.produce import (
    ProducedRow,
    ProducedTopic,
    ProduceRequest,
    TopicKey,
    answer,
    answer_pieces,
)
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.server import CloseConnection
from txn_coordinator.verdicts import TxnVerdict

_TIMED_OUT: Final = int(ErrorCode.request_timed_out)
_NOT_LEADER: Final = int(ErrorCode.not_leader_or_follower)
_NAMES_LEADERS: Final = 10


class Item:
    """One batch of a request, on its way: what it is, where it goes, what became of it."""

    __slots__ = (
        "ahead", "attributes", "bad_records", "breaks", "data", "error", "guard", "index", "leader", "led_under", "outcome", "partition",
        "producer_epoch", "producer_id", "text", "topic", "verdict", "wait",
    )  # fmt: skip

    def __init__(self, topic: TopicKey, index: int, data: Buffer) -> None:
        """Take what was sent."""
        self.topic = topic
        self.index = index
        self.data = data
        self.attributes = 0
        self.producer_id: ProducerId = NO_PRODUCER_ID
        self.producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
        self.partition: Partition | None = None
        self.error = 0
        self.text: str | None = None
        self.bad_records: tuple[int, ...] = ()
        self.outcome: AppendOutcome | None = None
        self.ahead: Prepared | None = None
        self.guard: VerificationGuard | None = None
        """Of a transactional batch that waits before it is appended: the attempt that its verification belongs to."""
        self.breaks = False
        """Whether what the connection brings behind it is not to be executed, as it was refused for now (INV-HD4)."""
        self.led_under: LeaderEpoch | None = None
        """Under which leader epoch this node led it in a data group when it came; None where it is of the main group (INV-HLA3)."""
        self.verdict: TxnVerdict | None = None
        """What the coordinator said of it at another node (INV-HLA4)."""
        self.leader: tuple[int, int] | None = None
        """Who leads the partition, and under which leader epoch, of a batch that was refused because this node does not."""
        self.wait: ProduceWait | None = None

    @property
    def transactional(self) -> bool:
        """Return whether the batch says that it belongs to a transaction."""
        return self.attributes & 0x10 != 0

    @property
    def open(self) -> bool:
        """Return whether the batch may still be appended."""
        return not self.error

    def refuse(
        self, error: ErrorCode, text: str | None = None, bad_records: tuple[int, ...] = ()
    ) -> None:
        """Answer this batch with an error, and which of its records are the reason; it is not appended."""
        assert self.outcome is None, "an appended batch is never refused (P18)"
        self.error = int(error)
        self.text = text
        self.bad_records = bad_records

    def unknown(self, text: str) -> None:
        """Answer that the batch was appended and its fate is unknown: the one error that says so."""
        self.error = _TIMED_OUT
        self.text = text

    def is_durable(self, acks: int) -> bool:
        """Return whether an appended batch is where `acks` has it: on this node (1), or below HW (-1)."""
        assert self.partition is not None
        assert self.outcome is not None
        commits = self.partition.commits
        reached = commits.durable_end if acks == 1 else commits.high_watermark
        return reached >= self.outcome.next_offset

    def committed(self) -> None:
        """See `CommitListener`."""
        if self.wait is not None:
            self.wait.one_less()

    def not_committed(self, error: Exception) -> None:
        """See `CommitListener`: failed, cut, or a mirror by now."""
        if self.wait is not None:
            self.unknown(str(error))
            self.wait.one_less()

    def row(self) -> ProducedRow:
        """Return what the answer says."""
        outcome = self.outcome
        if outcome is None or self.error:
            return ProducedRow(
                self.index,
                self.error,
                text=self.text,
                bad_records=self.bad_records,
                leader=self.leader,
            )
        assert self.partition is not None
        return ProducedRow(
            self.index,
            0,
            outcome.base_offset,
            outcome.log_append_time_ms,
            self.partition.log_start_offset,
        )


OnEnd: TypeAlias = Callable[[Sequence[Item]], None]
"""Takes the batches of a request when each is refused, durable or given up."""


class ProduceWait:
    """One request that waits for its batches."""

    __slots__ = ("_ctx", "_is_for_one", "_items", "_left", "_on_end", "_request")

    def __init__(
        self,
        ctx: RequestContext,
        request: ProduceRequest,
        items: Sequence[Item],
        on_end: OnEnd,
    ) -> None:
        """Call `expect` and `all_expected` next; `on_end` is called once, on the event loop.

        With acks=0 nothing is waited for, and it is not called.
        """
        self._ctx = ctx
        self._request = request
        self._items = items
        self._on_end = on_end
        self._left = 1  # itself, until every batch is told of
        self._is_for_one: Final = request.acks == 1

    def expect(self, items: Sequence[Item]) -> None:
        """Wait for some of the batches, in the step that appended them; `all_expected` comes last."""
        if self._request.acks == 0:
            return
        for item in items:
            if item.outcome is not None:
                assert item.partition is not None
                self._left += 1
                item.wait = self
                commits = item.partition.commits
                notify = commits.notify_durable if self._is_for_one else commits.notify
                notify(item.outcome.next_offset, item)

    def all_expected(self) -> None:
        """Note that every batch is waited for; ends at once if all are durable or refused."""
        if self._request.acks == 0:
            _check_silent(self._items)
            return
        if self._left > 1:
            self._ctx.services.deadlines.add(self, self._request.timeout_ms / 1000)
        self.one_less()

    def one_less(self) -> None:
        """Note that a batch is durable, or will not be."""
        self._left -= 1
        if self._left == 0:
            self._ctx.services.deadlines.drop(self)
            self._end()

    def expire(self) -> None:
        """See `Expiring`."""
        text = f"not durable within {self._request.timeout_ms / 1000} s; it may still become so"
        for item in self._items:
            if (
                item.outcome is not None
                and not item.error
                and not item.is_durable(self._request.acks)
            ):
                item.unknown(text)
        self._end()

    def _end(self) -> None:
        for item in self._items:
            item.wait = None  # no cycle keeps the request's bytes until somebody looks for cycles
        on_end, self._on_end = self._on_end, _nothing
        on_end(self._items)


def _nothing(_items: Sequence[Item]) -> None:
    """Stand for what was called already."""


def _check_silent(items: Sequence[Item]) -> None:
    """With acks=0 nothing can be answered: a closed connection tells the producer of an error (as Kafka does)."""
    failed = next((item for item in items if item.error), None)
    if failed is not None:
        name = ErrorCode(failed.error).name
        raise CloseConnection(f"a batch sent with acks=0 was refused: {name}")


def written(ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]) -> Written:
    """Return the answer, once every batch is refused, durable or given up."""
    errors = [ErrorCode(item.error).name for item in items if item.error]
    endpoints: Sequence[Endpoint] = ()
    if errors:
        name_so_many(items, RECORD_ERRORS_MAX)
        endpoints = drained(_name_leaders(ctx, items))
    rows = iter(items)
    topics = [(topic.key, [next(rows).row() for _ in topic.batches]) for topic in request.topics]
    return Written(answer(ctx.version, ctx.correlation_id, topics, endpoints), errors)


def written_pieces(
    ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]
) -> Pieces[Written]:
    """Make what `written` returns, with a pause after each PIECE_ELEMENTS batches."""
    errors: list[str] = []
    rows: list[ProducedRow] = []
    for start in range(0, len(items), PIECE_ELEMENTS):
        piece = items[start : start + PIECE_ELEMENTS]
        errors += [ErrorCode(item.error).name for item in piece if item.error]
        yield
    endpoints: Sequence[Endpoint] = ()
    if errors:
        name_so_many(items, RECORD_ERRORS_MAX)
        endpoints = yield from _name_leaders(ctx, items)
    for start in range(0, len(items), PIECE_ELEMENTS):
        rows += [item.row() for item in items[start : start + PIECE_ELEMENTS]]
        yield
    each, topics, yielding = iter(rows), list[ProducedTopic](), CooperativeYield(PIECE_ELEMENTS)
    for topic in request.topics:
        topics.append((topic.key, list(islice(each, len(topic.batches)))))
        if yielding.due():
            yield
    encoded = yield from answer_pieces(ctx.version, ctx.correlation_id, topics, endpoints)
    return Written(encoded, errors)


def name_so_many(items: Sequence[Item], left: int) -> int:
    """Keep the records that one answer names within `left`, and return what is left then; of the others it has the text only."""
    for item in items:
        if item.bad_records:
            item.bad_records = item.bad_records[:left]
            left -= len(item.bad_records)
    return left


def _name_leaders(ctx: RequestContext, items: Sequence[Item]) -> Pieces[Sequence[Endpoint]]:
    """Let batches that were refused for it say who leads, where leaders are spread; return where these are met (KIP-951)."""
    services = ctx.services
    if ctx.version < _NAMES_LEADERS or services.apart is None or services.nodes.spread is None:
        return ()
    endpoints: dict[int, Endpoint] = {}
    yielding = CooperativeYield()
    for item in items:
        if item.error != _NOT_LEADER:
            continue
        nodes = nodes_of(ctx, item.topic, item.index)
        if nodes.leader is not None and nodes.leader_epoch is not None:
            leader = nodes.leader
            item.leader = leader.node_id, nodes.leader_epoch
            endpoints[leader.node_id] = Endpoint(
                leader.node_id, leader.kafka_host, leader.kafka_port
            )
        if yielding.due():
            yield
    return tuple(endpoints.values())
