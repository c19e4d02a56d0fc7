"""Over ports in memory: aborts by administrators (B13), and late requests of TV1 producers (P1, P2)."""

import asyncio

import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from idempotency.ledger_records import TransactionRecord, TxnStatus
from tests.fixtures.coordinator import started, tp
from tests.fixtures.coordinator_driver import OK, Fixture, begin, listed, running, turns
from txn_coordinator import events as ev
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.verdicts import TxnVerdict


async def test_P1_a_request_of_a_gone_client_is_not_executed_later() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        add = asyncio.ensure_future(  # noqa: TID251
            txn.clients.add_partitions("t", *pair, [tp("orders", 1)], implicit=False)
        )
        await turns()
        add.cancel()
        await turns()
        fixture.markers.gate.set()
        await turns()
        assert listed(txn)[0].status is TxnStatus.COMPLETE_COMMIT


async def test_B13_an_admin_cannot_abort_behind_the_coordinators_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert await txn.admin.abort_producer(*pair, lambda: [tp("orders")]) is OK
        (order,) = fixture.markers.orders
        assert (order.producer_epoch, order.commit) == (pair[1] + 1, False)
        late = await txn.clients.end_txn("t", *pair, True, 1)
        assert late.verdict is TxnVerdict.FENCED
        assert (
            await txn.admin.abort_producer(
                ProducerId(4242), ProducerEpoch(0), lambda: [tp("orders")]
            )
            is OK
        )
        assert [order.producer_id for order in fixture.markers.orders] == [pair[0], 4242]
    (line,) = caplog.records  # INV-TAL1
    assert "by an administrator" in line.getMessage()


async def test_B13_an_abort_ends_what_the_ledger_does_not_know_of_by_a_decision_of_its_own() -> (
    None
):
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
        fixture.markers.orders.clear()
        hanging = [tp("orders", 7)]
        assert await txn.admin.abort_producer(*pair, lambda: hanging) is OK
        (order,) = fixture.markers.orders
        assert (order.partitions[0], order.commit, order.producer_epoch) == (
            hanging[0],
            False,
            pair[1] + 1,
        )
        assert fixture.ledger.records()[-1].status is TxnStatus.COMPLETE_ABORT
        again = await txn.clients.add_partitions("t", *pair, hanging, implicit=False)
        assert again is TxnVerdict.FENCED


async def test_B13_an_abort_waits_for_markers_under_way_and_looks_again() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        still_open = [tp("orders")]
        async with asyncio.TaskGroup() as group:
            abort = group.create_task(txn.admin.abort_producer(*pair, lambda: list(still_open)))
            await turns()
            assert not abort.done()
            still_open.clear()  # the commit's marker arrives
            fixture.markers.gate.set()
        assert abort.result() is OK
        assert [order.commit for order in fixture.markers.orders] == [True]
        assert (await txn.clients.add_partitions("t", *pair, [tp("a")], implicit=False)) is OK


# Holds INV-TN1.
async def test_B13_abort_by_name_ends_what_is_open_and_nothing_else() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        assert await txn.admin.abort("t") is TxnVerdict.UNKNOWN_PRODUCER_MAPPING
        pair = await begin(txn)
        assert await txn.admin.abort("t") is OK
        assert [order.commit for order in fixture.markers.orders] == [False]
        assert await txn.admin.abort("t") is TxnVerdict.INVALID_STATE
        record = txn.admin.describe("t")
        assert isinstance(record, TransactionRecord)
        assert (record.status, record.producer_epoch) == (TxnStatus.COMPLETE_ABORT, pair[1] + 1)
        assert txn.admin.describe("never") is None


async def test_P1_with_the_connection_order_fence_an_overtaken_end_txn_is_not_executed() -> None:
    """KAFKA-17754: EndTxn is delayed on connection 1, the client goes on over connection 2."""
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        ended = await txn.clients.end_txn("t", *pair, False, 1, sender=Sender(0, 2, 2))
        assert ended.verdict is OK
        joined = await txn.clients.add_partitions(
            "t", *pair, [tp("orders", 1)], implicit=False, sender=Sender(0, 2, 2)
        )
        assert joined is OK
        late = await txn.clients.end_txn("t", *pair, True, 1, sender=Sender(0, 1, 2))
        assert late.verdict is TxnVerdict.STALE_CONNECTION
        assert txn.open_transactions == 1


async def test_INV_SSD1_late_requests_without_end_fill_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert (
            await txn.clients.end_txn("t", *pair, False, 1, sender=Sender(0, 2, 2))
        ).verdict is OK

        async def come_late() -> None:
            late = await txn.clients.end_txn("t", *pair, True, 1, sender=Sender(0, 1, 2))
            assert late.verdict is TxnVerdict.STALE_CONNECTION

        def lines() -> int:
            return sum("a late request of t" in line.getMessage() for line in caplog.records)

        for _ in range(10):
            await come_late()
        assert lines() == 1
        fixture.clock.advance(59_999)
        await come_late()
        assert lines() == 1
        fixture.clock.advance(1)
        await come_late()
        assert lines() == 2


async def test_P1_whoever_was_fenced_cannot_fence_by_a_newer_connection() -> None:
    """INV-TO2: a zombie with the old epoch reconnects, and the new instance keeps its older connection."""
    fixture = Fixture()
    async with running(fixture) as txn:
        zombie = await begin(txn)
        given = await txn.clients.init_producer_id("t", 60_000)
        pair = (given.producer_id, given.producer_epoch)
        assert pair == (zombie[0], zombie[1] + 2)  # fenced by the abort, then given the next
        mine, his = Sender(0, 5, 5), Sender(0, 9, 9)
        assert (
            await txn.clients.add_partitions("t", *pair, [tp("a")], implicit=False, sender=mine)
            is OK
        )
        refused = await txn.clients.end_txn("t", *zombie, True, 1, sender=his)
        assert refused.verdict is TxnVerdict.FENCED
        # Nor does his request make what is known of the new pair forgotten.
        older = Sender(0, 4, 9)
        late = await txn.clients.end_txn("t", *pair, True, 1, sender=older)
        assert late.verdict is TxnVerdict.STALE_CONNECTION
        assert (await txn.clients.end_txn("t", *pair, True, 1, sender=mine)).verdict is OK


async def test_P1_a_repeated_init_that_changes_nothing_does_not_lift_the_fence() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        first = await txn.clients.init_producer_id("t", 60_000)
        old = (first.producer_id, first.producer_epoch)
        bumped = await txn.clients.init_producer_id("t", 60_000, *old)
        pair = (bumped.producer_id, bumped.producer_epoch)
        newer, older = Sender(0, 8, 8), Sender(0, 3, 8)
        assert (
            await txn.clients.add_partitions("t", *pair, [tp("a")], implicit=False, sender=newer)
            is OK
        )
        assert (await txn.clients.end_txn("t", *pair, True, 1, sender=newer)).verdict is OK
        await turns()
        again = await txn.clients.init_producer_id(
            "t", 60_000, *old
        )  # KIP-360: the present pair once more
        assert (again.producer_id, again.producer_epoch) == pair
        late = await txn.clients.add_partitions("t", *pair, [tp("a")], implicit=False, sender=older)
        assert late is TxnVerdict.STALE_CONNECTION


async def test_P2_data_of_a_connection_older_than_the_abort_is_asked_for_again() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        ended = await txn.clients.end_txn("t", *pair, False, 1, sender=Sender(0, 2, 6))
        assert ended.verdict is OK
        joined = await txn.clients.add_partitions(
            "t", *pair, [tp("orders")], implicit=False, sender=Sender(0, 2, 6)
        )
        assert joined is OK
        arrival = Arrival(Sender(0, 4, 6), 0)
        first = txn.clients.verify("t", *pair, tp("orders"), arrival)
        assert first is TxnVerdict.UNPROVEN_CONNECTION
        assert txn.clients.verify("t", *pair, tp("orders"), arrival) is OK
        assert txn.clients.verify(None, *pair, tp("orders"), Arrival(Sender(0, 5, 6), 0)) is (
            TxnVerdict.UNPROVEN_CONNECTION
        )


async def test_P1_TV2_needs_no_order_of_connections() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        newer, older = Sender(0, 8, 8), Sender(0, 3, 8)
        ended = await txn.clients.end_txn("t", *pair, False, 2, sender=newer)
        assert ended.verdict is OK
        await turns()
        pair = (ended.producer_id, ended.producer_epoch)
        assert await txn.clients.add_partitions("t", *pair, [tp("a")], implicit=True) is OK
        assert (await txn.clients.end_txn("t", *pair, True, 2, sender=older)).verdict is OK


def test_B13_an_abort_that_meets_a_decision_is_sent_away_to_look_again() -> None:
    """It may not wait: what was open when it came has its marker when the decision is carried out."""
    fixture, pid = started()
    fixture.end(pid, 0, commit=True)
    fixture.step(ev.AbortReceived(77, "t", ProducerId(pid), ProducerEpoch(0), (tp("orders"),)))
    assert fixture.answers[77].verdict is TxnVerdict.CONCURRENT
    fixture.deliver()
    assert fixture.record().status is TxnStatus.COMPLETE_COMMIT
    fixture.step(ev.AbortReceived(78, "t", ProducerId(pid), ProducerEpoch(0)))
    assert fixture.answers[78].verdict is TxnVerdict.INVALID_STATE
    fixture.step(ev.AbortReceived(79, "t", ProducerId(pid), ProducerEpoch(1), (tp("orders"),)))
    assert fixture.answers[79].verdict is TxnVerdict.FENCED  # an epoch that nobody was given yet
    assert fixture.record().status is TxnStatus.COMPLETE_COMMIT
