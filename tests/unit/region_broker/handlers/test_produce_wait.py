"""From appended batches to the answer: each request is answered once, and says of each batch what is known (INV-HPW1)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from kio.schema.errors import ErrorCode

from idempotency.pieces import drained
from region_broker.handlers.dispatch.deadlines import Deadlines
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce.wait import Item, ProduceWait, written, written_pieces
from region_broker.limits import PIECE_ELEMENTS, RECORD_ERRORS_MAX
from region_broker.wire.codec.fast_paths.produce import ProduceRequest, SentBatch, SentTopic
from region_broker.wire.connection_state import ConnectionState
from tests.fixtures.node_logs import Fixture, batch, fixture

NONE, TIMED_OUT = 0, 7
REQUEST = ProduceRequest(None, -1, 60_000, [SentTopic("orders", [SentBatch(0, None)] * 2)])


@dataclass
class Services:
    """What waiting asks of a node."""

    deadlines: Deadlines = field(default_factory=Deadlines)
    apart: None = None


def context() -> RequestContext:
    return RequestContext(
        services=Services(),  # type: ignore[arg-type]  # a part of it
        connection_id=1,
        api_key=0,
        version=9,
        correlation_id=1,
        peer="client",
        connection_state=ConnectionState(),
    )


@dataclass
class Waiting:
    """A request of two batches: the first is durable, the second is not."""

    some: Fixture = field(default_factory=lambda: fixture(partition_count=2))
    ctx: RequestContext = field(default_factory=context)
    ended: list[Sequence[Item]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.items = [Item("orders", number, batch()) for number in range(2)]
        for item, partition in zip(self.items, self.some.partitions, strict=True):
            self.some.sync()
            item.partition, item.outcome = partition, partition.writer.append(item.data)
        self.wait = ProduceWait(self.ctx, REQUEST, self.items, self.ended.append)
        self.wait.expect(self.items)
        self.wait.all_expected()

    @property
    def errors(self) -> list[int]:
        return [item.row().error_code for item in self.items]


async def test_INV_HPW1_a_request_is_answered_once_by_the_commit_that_reaches_its_last_batch() -> (
    None
):
    waits = Waiting()
    assert waits.ended == []
    assert len(waits.ctx.services.deadlines) == 1
    waits.some.sync()
    assert waits.ended == [waits.items]
    assert waits.errors == [NONE, NONE]
    assert len(waits.ctx.services.deadlines) == 0
    waits.wait.expire()
    assert len(waits.ended) == 1


async def test_P18_at_its_time_only_what_is_not_durable_is_unknown() -> None:
    waits = Waiting()
    waits.wait.expire()
    assert waits.ended == [waits.items]
    assert waits.errors == [NONE, TIMED_OUT]
    assert [item.wait for item in waits.items] == [None, None], "its bytes are kept by nobody"
    waits.some.sync()
    assert len(waits.ended) == 1, "durable after its answer: nobody is told"
    assert waits.errors == [NONE, TIMED_OUT]


async def test_P18_what_is_not_the_leaders_any_more_is_unknown() -> None:
    waits = Waiting()
    waits.some.partitions[1].become_mirror()
    assert waits.ended == [waits.items]
    assert waits.errors == [NONE, TIMED_OUT]


def test_one_answer_names_so_many_records_in_pieces_too() -> None:
    for whole in (True, False):
        items = [Item("orders", number, b"") for number in range(2)]
        for item in items:
            item.refuse(ErrorCode.invalid_record, "each", tuple(range(RECORD_ERRORS_MAX - 1)))
        if whole:
            written(context(), REQUEST, items)
        else:
            drained(written_pieces(context(), REQUEST, items))
        assert sum(len(item.bad_records) for item in items) == RECORD_ERRORS_MAX


def test_INV_HW2_the_answer_to_many_topics_is_put_together_in_pieces() -> None:
    """Of each topic that is named a list is made: of tens of thousands they are not made in one step."""
    count = 4 * PIECE_ELEMENTS
    sent = SentBatch(0, None)
    request = REQUEST._replace(topics=[SentTopic(f"t-{n}", [sent]) for n in range(count)])
    items = [Item(f"t-{n}", 0, b"") for n in range(count)]
    pauses = sum(1 for _ in written_pieces(context(), request, items))
    looked_at, rows, topics, encoded = 4, 4, 4, 2 * 4
    assert pauses == looked_at + rows + topics + encoded
