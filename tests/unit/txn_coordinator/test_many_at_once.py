"""Very many transactions that are decided, sent, tried again or looked at together: others are served in between."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import NoReturn

import pytest

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from idempotency.pieces import Pieces, drained
from tests.fixtures.coordinator import (
    LEADER_EPOCH,
    ORDERS,
    REGION_EPOCH,
    CoreFixture,
    ManualClock,
    MemoryLedger,
    MemoryMarkers,
    record,
    tp,
)
from tests.fixtures.coordinator_driver import OK, Fixture, begin, listed, running, turns
from txn_coordinator import events as ev
from txn_coordinator.ports import LedgerFailed, LedgerPosition, MarkerOrder, MarkerResult
from txn_coordinator.serving import adoption
from txn_coordinator.serving.adoption import (
    SORTED_AT_ONCE,
    AdoptionReport,
    Found,
    SortedOut,
    sort_out,
)
from txn_coordinator.serving.hold_limit import HoldLimit
from txn_coordinator.serving.marker_orders import MARKERS_AT_ONCE_MAX, MarkerQueue, MarkerWave
from txn_coordinator.serving.turns import TURN_COST, Turns
from txn_coordinator.shard.step import PARKED_MAX
from txn_coordinator.verdicts import TxnVerdict

MANY = TURN_COST * 2 + 50


class Listener:
    """Hears nothing."""

    closed = False

    def marked(self, order: MarkerOrder, tp: TopicPartition, result: MarkerResult) -> None:
        """See `MarkerListener`."""


class Writes:
    """`MarkerChannel` that notes each call."""

    def __init__(self) -> None:
        self.calls: list[list[MarkerOrder]] = []

    def write(self, orders: Sequence[MarkerOrder]) -> None:
        self.calls.append(list(orders))


class CountingMarkers(MemoryMarkers):
    """Notes how many markers each call brings."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[int] = []

    def write(self, orders: Sequence[MarkerOrder]) -> None:
        self.calls.append(sum(len(order.partitions) for order in orders))
        super().write(orders)


class CountingLedger(MemoryLedger):
    """Notes how many records each append brings."""

    def __init__(self) -> None:
        super().__init__(shard_count=1)
        self.calls: list[int] = []

    def append(self, shard: int, records: Sequence[tuple[bytes, bytes | None]]) -> LedgerPosition:
        self.calls.append(len(records))
        return super().append(shard, records)


def counting() -> tuple[Fixture, CountingLedger, CountingMarkers]:
    ledger, markers = CountingLedger(), CountingMarkers()
    return Fixture(ledger=ledger, markers=markers), ledger, markers


def order(number: int, partitions: int, listener: Listener) -> MarkerOrder:
    return MarkerOrder(
        transactional_id=f"t{number}",
        partitions=tuple(tp("orders", partition) for partition in range(partitions)),
        producer_id=ProducerId(number),
        producer_epoch=ProducerEpoch(0),
        commit=True,
        coordinator_epoch=CoordinatorEpoch(LEADER_EPOCH),
        decision=DecisionId(0, LEADER_EPOCH, number, Round(0)),
        listener=listener,
    )


async def test_INV_TQ2_what_one_turn_decided_goes_in_pieces_first_come_first_served() -> None:
    writes, listener = Writes(), Listener()
    queue = MarkerQueue(writes)
    given = [order(number, 1_000, listener) for number in range(3)]
    for each in given:
        queue.put(each)
    seen: list[int] = []
    for _ in range(8):
        await asyncio.sleep(0)
        seen.append(len(writes.calls))
        if len(seen) == 1:
            queue.put(order(9, 1, listener))  # comes last, though others were served in between
    sizes = [sum(len(each.partitions) for each in call) for call in writes.calls]
    assert sizes == [500] * 6 + [1]
    assert seen == [1, 2, 3, 4, 5, 6, 7, 7]  # one a turn
    went = [(each.producer_id, at) for call in writes.calls for each in call for at in each.partitions]  # fmt: skip
    assert went == [(each.producer_id, at) for each in given for at in each.partitions] + [
        (ProducerId(9), tp("orders", 0))
    ]


# Holds INV-TQ1.
async def test_what_fits_goes_in_one_call_and_what_was_closed_meanwhile_does_not_go() -> None:
    writes, listener, gone = Writes(), Listener(), Listener()
    queue = MarkerQueue(writes)
    queue.put(order(1, MARKERS_AT_ONCE_MAX - 1, listener))
    queue.put(order(2, 700, gone))
    queue.put(order(3, 1, listener))
    queue.put(order(4, 2, gone))
    gone.closed = True
    await turns(3)
    assert [[each.producer_id for each in call] for call in writes.calls] == [[1, 3]]


async def test_a_wave_of_which_a_part_ended_early_waits_for_the_rest() -> None:
    wave = MarkerWave()
    first, second = order(1, 1, Listener()).decision, order(2, 1, Listener()).decision
    wave.expect(first, [tp("orders")])
    wave.ended(first, tp("orders"))
    wave.expect(second, [tp("orders")])
    async with asyncio.TaskGroup() as group:
        over = group.create_task(wave.over())
        await turns(3)
        assert not over.done()
        wave.ended(second, tp("orders"))


async def test_INV_TD7_markers_told_together_to_be_tried_again_wait_and_go_together() -> None:
    fixture, _, markers = counting()
    async with running(fixture) as txn:
        init = await txn.clients.init_producer_id("t", 60_000)
        pair = init.producer_id, init.producer_epoch
        joined = [tp("orders", number) for number in range(30)]
        assert await txn.clients.add_partitions("t", *pair, joined, implicit=False) is OK
        markers.results = [MarkerResult.RETRY] * 30 + [MarkerResult.RETRY] * 10
        sleeping = len(fixture.clock._sleepers)
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
        assert len(fixture.clock._sleepers) - sleeping == 1
        fixture.clock.advance(20)
        await turns()
        fixture.clock.advance(40)
        await turns()
        assert markers.calls == [30, 30, 10]
        assert [each.partitions[0] for each in markers.orders[-10:]] == joined[:10]
        assert [each.attempt for each in markers.orders] == [1] * 30 + [2] * 30 + [3] * 10


async def begun(fixture: Fixture, ledger: CountingLedger) -> None:
    """Leave so many transactions open, each of one partition."""
    async with running(fixture) as txn:
        for number in range(MANY):
            await begin(txn, f"t{number}")
    ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)


async def test_INV_TTU1_transactions_that_time_out_together_are_aborted_so_many_a_turn() -> None:
    fixture, ledger, _ = counting()
    async with running(fixture) as txn:
        for number in range(MANY):
            await begin(txn, f"t{number}")
        await turns()
        ledger.calls.clear()
        fixture.clock.advance(61_000)
        await turns()
        assert txn.open_transactions == 0
    assert (
        max(ledger.calls) <= 2 * TURN_COST
    )  # PREPARE_ABORT of some, COMPLETE_ABORT of those before
    assert sum(ledger.calls) == 2 * MANY


async def test_INV_TTU1_ids_that_are_idle_are_forgotten_so_many_a_turn() -> None:
    fixture, ledger, _ = counting()
    async with running(fixture) as txn:
        for number in range(MANY):
            assert (await txn.clients.init_producer_id(f"t{number}", 60_000)).verdict is OK
        await turns()
        ledger.calls.clear()
        fixture.clock.advance(8 * 24 * 3_600_000)
        await turns()
        assert listed(txn) == []
    assert ledger.calls == [100, 100, 50]


async def test_INV_TTU1_a_load_sends_what_is_owed_so_many_a_turn() -> None:
    fixture, ledger, markers = counting()
    markers.gate.clear()
    async with running(fixture) as txn:
        for number in range(MANY):
            pair = await begin(txn, f"t{number}")
            assert (await txn.clients.end_txn(f"t{number}", *pair, True, 1)).verdict is OK
        await turns()
    ledger.leader_epoch = LeaderEpoch(LEADER_EPOCH + 1)
    markers.gate.set()
    markers.calls.clear()
    async with running(fixture) as txn:
        await turns()
        assert all(record.status.name == "COMPLETE_COMMIT" for record in listed(txn))
    assert max(markers.calls) <= TURN_COST
    assert sum(markers.calls) == MANY


async def test_INV_TTU1_a_takeover_aborts_what_is_open_so_many_a_turn() -> None:
    fixture, ledger, _ = counting()
    await begun(fixture, ledger)
    ledger.calls.clear()
    nobodys = [(tp("orders"), OpenTxn(ProducerId(n), ProducerEpoch(0), n, 0)) for n in range(MANY)]
    async with running(fixture, load=False) as txn:
        report = await txn.adopt(RegionEpoch(16), ledger.leader_epoch, nobodys)
    assert (report.aborted, report.orphans_aborted) == (MANY, MANY)
    assert max(ledger.calls) <= TURN_COST + 1  # and the round


async def most_a_turn(work: Awaitable[AdoptionReport], done: Callable[[], int]) -> int:
    """Return how much was done at most of something between two turns of others."""
    steps = [done()]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(failed(work))
        while not task.done():
            await asyncio.sleep(0)
            steps.append(done())
    assert not task.result()
    return max(after - before for before, after in pairwise(steps))


async def failed(work: Awaitable[AdoptionReport]) -> bool:
    try:
        await work
    except LedgerFailed:
        return True
    return False


async def test_INV_TTU1_what_goes_on_over_a_planned_switch_is_judged_so_many_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fixture, ledger, _ = counting()
    await begun(fixture, ledger)
    judged, real = 0, adoption.goes_on

    def goes_on(kept: TransactionRecord, found: Sequence[Found]) -> bool:
        nonlocal judged
        judged += 1
        return real(kept, found)

    async with running(fixture, load=False) as txn:
        adopting = txn.adopt(RegionEpoch(16), ledger.leader_epoch, [], REGION_EPOCH)
        with monkeypatch.context() as patched:
            patched.setattr(adoption, "goes_on", goes_on)
            assert await most_a_turn(adopting, lambda: judged) <= TURN_COST
        assert judged == txn.open_transactions == MANY


def open_at(number: int, producer_id: int) -> OpenTxn:
    return OpenTxn(ProducerId(producer_id), ProducerEpoch(0), number, 0)


PIECES = 5
FOUND = [
    (tp("orders", number), open_at(number, 1 + number % 50))
    for number in range(PIECES * SORTED_AT_ONCE)
]
"""Of fifty producers."""


class Counted:
    """What is open, gone through once; `seen` counts how far."""

    seen = 0

    def __iter__(self) -> Iterator[Found]:
        for each in FOUND:
            self.seen += 1
            yield each


def test_INV_TA4_what_is_open_is_gone_through_and_judged_so_many_a_piece() -> None:
    """320,000 of them stood in two steps of a loop until its node was fenced, and so was each next one."""
    counted, steps = Counted(), 0

    def looked() -> Pieces[SortedOut]:
        nonlocal steps
        pieces = sort_out(counted, [record(TxnStatus.ONGOING, 0, producer_id=ProducerId(1))])
        while True:
            try:
                yield next(pieces)
            except StopIteration as done:
                result: SortedOut = done.value
                return result
            steps += 1
            assert counted.seen == min(steps * SORTED_AT_ONCE, len(FOUND))

    sorted_out = drained(looked())
    assert steps == 2 * PIECES, "those that judge have no more"
    assert [each.producer_id for each in sorted_out.orphans] == list(range(2, 51))
    assert sorted_out.orphans[0].partitions == tuple(
        at for at, txn in FOUND if txn.producer_id == 2
    )
    assert sum(map(len, sorted_out.by_producer.values())) == len(FOUND)


async def test_INV_TA4_a_takeover_serves_others_while_it_sorts_out_what_is_open() -> None:
    fixture, ledger, markers = counting()
    ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    counted = Counted()
    async with running(fixture, load=False) as txn:
        adopting = txn.adopt(RegionEpoch(16), ledger.leader_epoch, counted)
        assert await most_a_turn(adopting, lambda: counted.seen) <= SORTED_AT_ONCE
    assert len(markers.orders) == len(FOUND)


@pytest.mark.parametrize("how", ["it is deposed", "it is cancelled"])
async def test_INV_TA4_nothing_is_decided_by_who_is_deposed_while_it_sorts_out(how: str) -> None:
    """Whoever adopts next finds all of it open still, and decides it."""
    fixture, ledger, markers = counting()
    await begun(fixture, ledger)
    async with running(fixture, load=False) as txn:
        rows = len(ledger.rows[0])
        async with asyncio.TaskGroup() as group:
            adopting = group.create_task(failed(txn.adopt(RegionEpoch(16), ledger.leader_epoch, FOUND)))  # fmt: skip
            await turns(4)
            assert not adopting.done()
            if how == "it is deposed":
                await txn.resign()
            else:
                adopting.cancel()
        assert adopting.cancelled() or adopting.result()
        assert len(ledger.rows[0]) == rows + 1, "the round that it is in"
        assert markers.orders == []
        await txn.resign()
        report = await txn.adopt(RegionEpoch(16), ledger.leader_epoch, FOUND)
        assert report.aborted == MANY


async def test_INV_TTU1_an_id_of_many_partitions_counts_for_as_many() -> None:
    turn = Turns()
    served: list[int] = []

    async def serve() -> None:
        for number in range(10):
            served.append(number)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        group.create_task(serve())
        await turn.worked(980)
        assert served == []
        await turn.worked(0)
        assert served == [0]


class NotSearched(tuple[TopicPartition, ...]):
    """Partitions that may be gone through, and not be searched for one of them."""

    __slots__ = ()

    def __contains__(self, _key: object) -> NoReturn:
        raise AssertionError("searched")


# Holds INV-TC15.
def test_what_a_takeover_finds_open_is_looked_up_in_what_is_decided() -> None:
    decided = record(TxnStatus.PREPARE_ABORT, 4, partitions=NotSearched([tp("a"), tp("b")]))
    open_in_it = [(at, OpenTxn(ProducerId(5), ProducerEpoch(3), 0, 0)) for at in (tp("a"), tp("c"))]
    (orphan,) = drained(sort_out(open_in_it, [decided])).orphans
    assert orphan.partitions == (tp("c"),)


FLOOD = 1_000


def test_INV_TC17_so_many_requests_wait_at_one_id_and_one_more_is_told_to_come_again() -> None:
    core = CoreFixture()
    asked = [core.init() for _ in range(FLOOD)]
    told = [number for number in asked if number in core.answers]
    assert told == asked[1 + PARKED_MAX :]  # the first one is being written
    assert {core.answers[number].verdict for number in told} == {TxnVerdict.CONCURRENT}
    settled = 2 * FLOOD
    core.step(ev.SettledAsked(settled, "t"))
    assert settled not in core.answers, "an administrator's question waits all the same"
    other = core.init("other")
    core.persist()
    assert core.answers[settled].verdict is core.answers[other].verdict is OK


def test_INV_TC18_what_waits_is_not_looked_at_again_for_each_that_is_served() -> None:
    """Each record that became durable answered one of them and parked all the others again."""
    core = CoreFixture()
    asked = [core.init() for _ in range(1 + PARKED_MAX)]
    core.persist()
    assert core.held == asked[1:]
    given = [core.answers[number].producer_epoch for number in asked]
    assert given == list(range(1 + PARKED_MAX)), "in order of arrival"


def test_INV_TC18_behind_one_that_begins_something_the_order_stays() -> None:
    core = CoreFixture()
    core.init()
    core.persist()
    pid = core.record().producer_id
    joins = core.add(pid, 0, ORDERS)
    commit = core.end(pid, 0, commit=True)
    again = core.end(pid, 0, commit=True)
    late = core.add(pid, 0, tp("orders", 1))
    abort = core.end(pid, 0, commit=False)
    core.persist()  # the join, then the commit
    assert {core.answers[number].verdict for number in (joins, commit)} == {OK}
    assert core.answers[again].verdict is TxnVerdict.CONCURRENT, "the decision is there"
    assert list(core.entries["t"].parked) == [late, abort], "INV-TC8"
    core.deliver()
    assert {core.answers[number].verdict for number in (late, abort)} == {OK}
    assert core.record().status is TxnStatus.COMPLETE_ABORT


async def test_INV_THL1_of_many_that_waited_too_long_so_many_go_at_once() -> None:
    gone: list[ev.HoldExpired] = []
    clock = ManualClock()
    limit = HoldLimit(clock, 500, gone.append)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(limit.run())
        for number in range(MANY):
            limit.hold(ev.HoldExpired(number, "t"))
        await turns(2)
        clock.advance(500)
        seen: list[int] = []
        while len(gone) < MANY - 1:
            await asyncio.sleep(0)
            seen.append(len(gone))
            if len(seen) == 1:
                limit.answered(MANY - 1)  # meanwhile
        task.cancel()
    assert seen == [TURN_COST, 2 * TURN_COST, MANY - 1]
