"""The driver over ports in memory: answers, group append, holding, failure, load, adoption, rounds."""

import asyncio

import pytest

from idempotency import ledger_records as lr
from idempotency.decision import round_of
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    TopicPartition,
)
from idempotency.partition_state import OpenTxn
from tests.fixtures.coordinator import (
    LEADER_EPOCH,
    REGION_EPOCH,
    tp,
)
from tests.fixtures.coordinator_driver import OK, Fixture, begin, listed, running, turns
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.ports import LedgerCorrupt, MarkerResult
from txn_coordinator.verdicts import TxnVerdict


async def test_a_transaction_commits_and_its_marker_carries_the_decision() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert txn.clients.verify("t", *pair, tp("orders")) is OK
        assert txn.clients.verify(None, *pair, tp("orders")) is OK
        assert txn.clients.verify("t", *pair, tp("orders", 1)) is TxnVerdict.NOT_IN_TRANSACTION
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
        (order,) = fixture.markers.orders
        shard = order.decision.shard
        prepared = [
            position
            for position, key, value in fixture.ledger.rows[shard]
            if key == lr.encode_transaction_key("t")
            and value is not None
            and lr.decode_transaction_value("t", value).status is lr.TxnStatus.PREPARE_COMMIT
        ]
        assert [(p.leader_epoch, p.offset) for p in prepared] == [
            (order.decision.leader_epoch, order.decision.offset)
        ]
        assert order.commit
        assert order.coordinator_epoch == CoordinatorEpoch(LEADER_EPOCH)
        assert fixture.ledger.records()[-1].status is lr.TxnStatus.COMPLETE_COMMIT


# Holds INV-TD2.
async def test_B2_the_answer_waits_until_the_record_is_durable() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.ledger.thawed.clear()
        end = asyncio.ensure_future(txn.clients.end_txn("t", *pair, True, 1))  # noqa: TID251
        await turns()
        assert not end.done()
        assert fixture.markers.orders == []
        fixture.ledger.thawed.set()
        assert (await end).verdict is OK


# Holds INV-TD1.
async def test_records_of_one_turn_go_out_as_one_batch() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        names = [f"t{number}" for number in range(40)]
        before = fixture.ledger.batches
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(txn.clients.init_producer_id(name, 1000)) for name in names]
        assert {task.result().verdict for task in tasks} == {OK}
        assert len({task.result().producer_id for task in tasks}) == len(names)
        assert fixture.ledger.batches - before < len(names)


async def test_P5_the_next_transaction_waits_for_the_markers_in_the_broker() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        async with asyncio.TaskGroup() as group:
            add = group.create_task(
                txn.clients.add_partitions("t", *pair, [tp("orders", 1)], implicit=False)
            )
            await turns()
            assert not add.done()
            fixture.markers.gate.set()
        assert add.result() is OK


async def test_C14_a_hold_is_bounded() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        async with asyncio.TaskGroup() as group:
            add = group.create_task(
                txn.clients.add_partitions("t", *pair, [tp("orders", 1)], implicit=False)
            )
            await turns()
            fixture.clock.advance(499)
            await turns()
            assert not add.done()
            fixture.clock.advance(1)
        assert add.result() is TxnVerdict.CONCURRENT
        fixture.markers.gate.set()


# Holds INV-TD3.
async def test_a_failed_ledger_closes_the_shard_and_guesses_nothing() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.ledger.broken = True
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is TxnVerdict.UNAVAILABLE
        assert fixture.markers.orders == []
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is TxnVerdict.UNAVAILABLE
        assert txn.clients.verify("t", *pair, tp("orders")) is TxnVerdict.UNAVAILABLE
        assert len(txn.failures) == 1
        fixture.ledger.broken = False
        await txn.load(LeaderEpoch(LEADER_EPOCH + 1), REGION_EPOCH)
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK


# Holds INV-TD6.
async def test_C22_a_damaged_record_fails_the_load() -> None:
    fixture = Fixture()
    fixture.ledger.append(0, [(lr.encode_transaction_key("t"), b"\x00\x63garbage")])
    async with running(fixture, load=False) as txn:
        with pytest.raises(LedgerCorrupt, match="offset 0"):
            await txn.load(LEADER_EPOCH, REGION_EPOCH)
        assert (await txn.clients.init_producer_id("t", 1000)).verdict is TxnVerdict.LOADING


# Holds INV-TD4.
async def test_C23_loading_and_resigned_coordinators_say_so() -> None:
    fixture = Fixture()
    async with running(fixture, load=False) as txn:
        assert (await txn.clients.init_producer_id("t", 1000)).verdict is TxnVerdict.NOT_COORDINATOR
        fixture.ledger.thawed.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(txn.load(LEADER_EPOCH, REGION_EPOCH))
            await turns()
            assert (
                await txn.clients.end_txn("t", ProducerId(1), ProducerEpoch(0), True, 1)
            ).verdict is TxnVerdict.LOADING
            assert (await txn.clients.init_producer_id(None, 1000)).verdict is TxnVerdict.LOADING
            fixture.ledger.thawed.set()
        pair = await begin(txn)
        fixture.ledger.thawed.clear()
        end = asyncio.ensure_future(txn.clients.end_txn("t", *pair, True, 1))  # noqa: TID251
        await turns()
        await txn.resign()
        assert (await end).verdict is TxnVerdict.NOT_COORDINATOR
        fixture.ledger.thawed.set()
        await turns()
        assert fixture.markers.orders == []  # the callback of the old load does nothing


async def test_a_prepared_transaction_is_finished_after_a_restart_with_the_old_decision() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
    fixture.ledger.leader_epoch = LeaderEpoch(LEADER_EPOCH + 1)
    fixture.markers.gate.set()
    async with running(fixture) as txn:
        await turns()
        (order,) = fixture.markers.orders
        assert order.decision.leader_epoch == LEADER_EPOCH
        assert order.coordinator_epoch == CoordinatorEpoch(LEADER_EPOCH) + 1
        assert (
            await txn.clients.end_txn("t", *pair, True, 1)
        ).verdict is OK  # C17: CompleteCommit, again


async def test_C32_a_marker_is_tried_again_until_it_is_there() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.results = [MarkerResult.RETRY, MarkerResult.RETRY]
        assert (await txn.clients.end_txn("t", *pair, False, 1)).verdict is OK
        await turns()
        assert len(fixture.markers.orders) == 1
        fixture.clock.advance(20)
        await turns()
        fixture.clock.advance(40)
        await turns()
        assert len(fixture.markers.orders) == 3
        assert len({order.decision for order in fixture.markers.orders}) == 1
        assert listed(txn)[0].status is lr.TxnStatus.COMPLETE_ABORT


async def test_C24_an_overdue_transaction_is_aborted_and_fenced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        await turns()
        fixture.clock.advance(60_000)
        await turns()
        assert txn.open_transactions == 1
        fixture.clock.advance(1_000)
        await turns()
        assert txn.open_transactions == 0
        assert not fixture.markers.orders[0].commit
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is TxnVerdict.FENCED
    (line,) = caplog.records  # INV-TAL1
    assert "the transaction of t is aborted" in line.getMessage()
    named = (line.transactional_id, line.producer_id, line.producer_epoch)  # type: ignore[attr-defined]
    assert named == ("t", *pair)


async def test_INV_TAL1_a_producer_that_begins_anew_over_an_open_transaction_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "txn_coordinator")
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert (await txn.clients.init_producer_id("t", 60_000)).verdict is TxnVerdict.OK
        assert (await txn.clients.init_producer_id("t", 60_000)).verdict is TxnVerdict.OK
    (line,) = caplog.records
    assert "began anew" in line.getMessage()
    assert line.producer_epoch == pair[1]  # type: ignore[attr-defined]


async def test_T2_T3_rounds_over_the_driver() -> None:
    fixture = Fixture()
    first, second = round_of(7, 1), round_of(7, 2)
    async with running(fixture) as txn:
        pair = await begin(txn)
        entered = await txn.rounds.enter_round(first)
        assert sorted(entered) == [0, 1]
        for shard, answer in entered.items():
            _, key, value = fixture.ledger.rows[shard][answer.ledger_offset]
            assert key == lr.encode_round_key()
            assert value is not None
            assert lr.decode_round_value(value).stamp == first
        assert await txn.rounds.enter_round(first) == entered  # repeated: the same L
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
        assert fixture.markers.orders == []
        assert txn.rounds.held_decisions == 1
        txn.rounds.release(first)
        await turns()
        assert fixture.markers.orders[0].decision.stamp == first
        assert await txn.rounds.enter_round(second) != {}
        assert await txn.rounds.enter_round(first) == {}  # lower: ignored


@pytest.mark.parametrize("where", ["ongoing", "unknown"])
async def test_T21_adoption_ends_everything_that_is_open(where: str) -> None:
    fixture = Fixture()
    found: list[tuple[TopicPartition, OpenTxn]]
    async with running(fixture) as txn:
        pair = await begin(txn)
        if where == "ongoing":
            found = [
                (tp("orders"), OpenTxn(ProducerId(pair[0]), ProducerEpoch(0), 0, 0)),
                (tp("late"), OpenTxn(ProducerId(pair[0]), ProducerEpoch(0), 5, 0)),
            ]
        else:
            assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
            await turns()
            fixture.markers.orders.clear()
            found = [(tp("orders"), OpenTxn(ProducerId(pair[0]), ProducerEpoch(0), 9, 0))]
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    async with running(fixture, load=False) as txn:
        report = await txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), found)
        assert report.aborted == (where == "ongoing")
        assert report.orphans_aborted == (where == "unknown")
        assert {order.partitions[0] for order in fixture.markers.orders} == {
            partition for partition, _ in found
        }
        assert not any(order.commit for order in fixture.markers.orders)
        assert all(
            order.decision.stamp == fixture.ledger.leader_epoch << 32
            for order in fixture.markers.orders
        )
        # T22
        refused = await txn.clients.add_partitions("t", *pair, [tp("orders")], implicit=False)
        assert refused is TxnVerdict.FENCED_BY_TAKEOVER
        assert (
            await txn.clients.end_txn("t", *pair, True, 1)
        ).verdict is TxnVerdict.FENCED_BY_TAKEOVER_FATAL
        again = await txn.clients.init_producer_id("t", 60_000, *pair)
        assert again.verdict is OK
        assert again.producer_id != pair[0]
        assert again.producer_epoch == 0


async def test_T21_adoption_run_again_after_a_crash_changes_nothing() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
    found = [
        (tp("orders"), OpenTxn(ProducerId(pair[0]), ProducerEpoch(pair[1]), 0, 0)),
        (tp("x"), OpenTxn(ProducerId(77), ProducerEpoch(3), 0, 0)),
    ]
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    fixture.markers.gate.clear()
    async with running(fixture, load=False) as txn:
        adoption = asyncio.ensure_future(  # noqa: TID251
            txn.adopt(RegionEpoch(16), fixture.ledger.leader_epoch, found)
        )
        await turns()
        adoption.cancel()
        await turns()
    fixture.markers.gate.set()
    fixture.ledger.leader_epoch = LeaderEpoch(LEADER_EPOCH + 1)
    async with running(fixture, load=False) as txn:
        report = await txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), found)
        assert report.aborted == 0
        assert report.carried_out == 2
        assert {order.decision.leader_epoch for order in fixture.markers.orders} == {16 << 16 | 1}
        assert [order.partitions[0] for order in fixture.markers.orders] == [tp("orders"), tp("x")]
        orphan = fixture.markers.orders[1]
        assert (orphan.producer_id, orphan.producer_epoch) == (77, 4)


# Holds INV-TP3.
async def test_C11_ids_without_transactional_id_are_never_given_twice() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        seen = [(await txn.clients.init_producer_id(None, 0)).producer_id for _ in range(10)]
        seen += [(await txn.clients.init_producer_id(f"t{n}", 1000)).producer_id for n in range(10)]
        assert len(set(seen)) == 20


async def test_T28_a_partition_of_another_domain_is_refused() -> None:
    fixture = Fixture()
    txn = TransactionCoordinator(
        ledger=fixture.ledger,
        markers=fixture.markers,
        id_blocks=fixture.ids,
        clock=fixture.clock,
        domain_check=lambda _name, partitions: all(part.topic != "foreign" for part in partitions),
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(txn.run())
        await txn.load(LEADER_EPOCH, REGION_EPOCH)
        pair = await begin(txn)
        refused = await txn.clients.add_partitions("t", *pair, [tp("foreign")], implicit=False)
        assert refused is TxnVerdict.WRONG_DOMAIN
        task.cancel()


async def test_names_that_no_client_may_use_are_refused() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        for name in ("", "\x00orphan-1", "x" * 40_000):
            assert (
                await txn.clients.init_producer_id(name, 1000)
            ).verdict is TxnVerdict.INVALID_REQUEST


async def test_without_producer_ids_only_those_who_need_one_are_refused() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.ids.broken = True
        for number in range(40):
            await txn.clients.init_producer_id(f"u{number}", 1000)
        assert (await txn.clients.init_producer_id("v", 1000)).verdict is TxnVerdict.UNAVAILABLE
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        fixture.ids.broken = False
        assert (await txn.clients.init_producer_id("v", 1000)).verdict is OK


# Holds INV-TA2.
async def test_H9_an_orphan_abort_waits_for_the_markers_of_older_decisions() -> None:
    """T0 is decided in the cut, its marker owed; were the abort first, T6 would void T0's marker."""
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
    fixture.markers.gate.set()
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    fixture.markers.results = [MarkerResult.RETRY]
    found = [
        (tp("orders"), OpenTxn(*pair, 0, 0)),
        (tp("x"), OpenTxn(ProducerId(77), ProducerEpoch(3), 0, 0)),
    ]
    async with running(fixture, load=False) as txn, asyncio.TaskGroup() as group:
        adoption = group.create_task(
            txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), found)
        )
        await turns()
        assert [order.commit for order in fixture.markers.orders] == [True]
        fixture.clock.advance(20)
        assert (await adoption).orphans_aborted == 2
        assert [order.commit for order in fixture.markers.orders] == [True, True, False, False]


def status_of(txn: TransactionCoordinator, name: str) -> lr.TxnStatus:
    described = txn.admin.describe(name)
    assert isinstance(described, lr.TransactionRecord), described
    return described.status


async def test_T21_adoption_does_not_wait_for_a_stopped_partition_whose_marker_stays_owed() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.markers.gate.clear()
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
    fixture.markers.gate.set()
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    fixture.markers.results = [MarkerResult.STOPPED]
    async with running(fixture, load=False) as txn:
        assert (
            await txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), [])
        ).carried_out == 1
        # Its producer waits, all others are served.
        assert (await txn.clients.init_producer_id("other", 1000)).verdict is OK
        assert status_of(txn, "t") is lr.TxnStatus.PREPARE_COMMIT
        fixture.clock.advance(20)  # the partition is there again
        await turns()
        assert [order.commit for order in fixture.markers.orders] == [True, True]
        assert status_of(txn, "t") is lr.TxnStatus.COMPLETE_COMMIT


async def test_P4_what_comes_while_the_decision_is_written_came_too_late() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        fixture.ledger.thawed.clear()
        async with asyncio.TaskGroup() as group:
            group.create_task(txn.clients.end_txn("t", *pair, True, 1))
            await turns()
            assert txn.clients.verify("t", *pair, tp("orders")) is TxnVerdict.CONCURRENT
            fixture.ledger.thawed.set()


async def test_T21_an_orphan_abort_that_owes_its_markers_is_not_the_abort_of_more() -> None:
    """An administrator's abort is decided for x when the primary dies; the same producer has y open, too."""
    fixture = Fixture()
    async with running(fixture) as txn, asyncio.TaskGroup() as group:
        fixture.markers.gate.clear()
        asked = group.create_task(
            txn.admin.abort_producer(ProducerId(77), ProducerEpoch(3), lambda: [tp("x")])
        )
        await turns()
        asked.cancel()
    fixture.markers.gate.set()
    fixture.markers.orders.clear()
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    found = [
        (tp("x"), OpenTxn(ProducerId(77), ProducerEpoch(3), 0, 0)),
        (tp("y"), OpenTxn(ProducerId(77), ProducerEpoch(3), 0, 0)),
    ]
    async with running(fixture, load=False) as txn:
        await txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), found)
        assert txn.active
        first, second = fixture.markers.orders
        assert (first.partitions, second.partitions) == ((tp("x"),), (tp("y"),))
        assert second.decision.is_newer_than(first.decision)
