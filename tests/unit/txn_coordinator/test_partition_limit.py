"""How many partitions transactions may have, and what begins where the disk has no room: INV-TX3, INV-TX4, INV-TAD1."""

import pytest

from idempotency import ledger_records as lr
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, RegionEpoch, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from tests.fixtures.coordinator import CoreFixture, record, tp
from tests.fixtures.coordinator_driver import OK, Fixture, begin, listed, running, turns
from txn_coordinator import transitions as tr
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.partition_limit import TRANSACTION_PARTITIONS_MAX
from txn_coordinator.serving import admission
from txn_coordinator.verdicts import TxnVerdict

FULL = [tp("orders", number) for number in range(TRANSACTION_PARTITIONS_MAX)]
OFFSETS = tp("__consumer_offsets", 3)


def given(fixture: CoreFixture) -> ProducerId:
    number = fixture.init()
    fixture.persist()
    return fixture.answers[number].producer_id


def verdict_of(fixture: CoreFixture, number: int) -> TxnVerdict:
    fixture.persist()
    return fixture.answers[number].verdict


def test_INV_TX3_a_transaction_has_so_many_partitions_and_no_more() -> None:
    fixture = CoreFixture()
    pid = given(fixture)
    assert verdict_of(fixture, fixture.add(pid, 0, *FULL[:-1])) is OK
    assert verdict_of(fixture, fixture.add(pid, 0, FULL[-1], tp("late"))) is TxnVerdict.INVALID_REQUEST  # fmt: skip
    assert verdict_of(fixture, fixture.add(pid, 0, *FULL)) is OK
    assert verdict_of(fixture, fixture.add(pid, 0, tp("late"))) is TxnVerdict.INVALID_REQUEST
    assert verdict_of(fixture, fixture.add(pid, 0, *FULL)) is OK  # C26: it has them
    assert verdict_of(fixture, fixture.end(pid, 0, commit=True)) is OK
    fixture.deliver()
    assert verdict_of(fixture, fixture.add(pid, 0, tp("late"))) is OK  # the next transaction


def test_INV_TX3_requests_that_waited_together_are_counted_together() -> None:
    fixture = CoreFixture()
    pid = given(fixture)
    first = fixture.add(pid, 0, FULL[0])  # pending: the others wait for it
    fits = fixture.add(pid, 0, *FULL[:-1])
    beyond = fixture.add(pid, 0, *FULL, tp("late"))
    same = fixture.add(pid, 0, *FULL[1:])
    fixture.persist()
    verdicts = [fixture.answers[number].verdict for number in (first, fits, beyond, same)]
    assert verdicts == [OK, OK, TxnVerdict.INVALID_REQUEST, OK]
    assert len(fixture.record().partitions) == TRANSACTION_PARTITIONS_MAX


async def test_INV_TX3_who_lets_too_many_join_is_told_of_once_a_minute(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        init = await txn.clients.init_producer_id("t", 60_000)
        pair = init.producer_id, init.producer_epoch
        for _ in range(3):
            verdict = await txn.clients.add_partitions("t", *pair, [*FULL, tp("late")], implicit=True)  # fmt: skip
            assert verdict is TxnVerdict.INVALID_REQUEST
    assert sum("one transaction has 10000 at most" in line.getMessage() for line in caplog.records) == 1  # fmt: skip


def counted(txn: TransactionCoordinator) -> int:
    """Return what is counted, which is what there is."""
    shards = list(txn._shards)
    found = sum(shard.view.partition_count for shard in shards)
    assert found == sum(len(each.partitions) for shard in shards for each in shard.view.records())
    return found


async def test_INV_TX4_all_transactions_together_have_so_many(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(admission, "OPEN_PARTITIONS_MAX", 2)
    monkeypatch.setattr(admission, "SMALL_TRANSACTION_PARTITIONS", 0)
    fixture = Fixture()
    async with running(fixture) as txn:
        first, _ = await begin(txn, "a"), await begin(txn, "b")
        assert counted(txn) == 2
        init = await txn.clients.init_producer_id("c", 60_000)
        late = "c", init.producer_id, init.producer_epoch, [tp("orders")]
        for _ in range(3):
            assert await txn.clients.add_partitions(*late, implicit=False) is TxnVerdict.UNAVAILABLE
        assert sum("have 2, and may have 2 together" in line.getMessage() for line in caplog.records) == 1  # fmt: skip
        assert (await txn.clients.end_txn("a", *first, True, 1)).verdict is OK
        await turns()
        assert await txn.clients.add_partitions(*late, implicit=False) is OK
        assert counted(txn) == 2


async def test_INV_TX4_who_has_few_partitions_is_let_in_and_offsets_end_what_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One client that fills the total must not keep all others out."""
    monkeypatch.setattr(admission, "OPEN_PARTITIONS_MAX", 2)
    monkeypatch.setattr(admission, "SMALL_TRANSACTION_PARTITIONS", 2)
    fixture = Fixture()
    async with running(fixture) as txn:
        await begin(txn, "a")
        await begin(txn, "b")
        pair = await begin(txn, "c")
        of_c = "c", pair[0], pair[1]
        add = txn.clients.add_partitions
        assert await add(*of_c, [tp("two")], implicit=False) is OK
        assert await add(*of_c, [tp("three")], implicit=False) is TxnVerdict.UNAVAILABLE
        record = next(each for each in listed(txn) if each.transactional_id == "c")
        limit = admission.Admission(fixture.clock, lambda: 9)
        asked = {"joining": 1, "open_count": 2}
        assert limit.of_join(record, ends=True, **asked) is OK
        assert limit.of_join(record, ends=False, **asked) is TxnVerdict.UNAVAILABLE


async def test_INV_TX4_what_is_counted_is_what_there_is_after_a_takeover_and_when_ids_are_forgotten() -> None:  # fmt: skip
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert counted(txn) == 1
    fixture.ledger.leader_epoch = LeaderEpoch(16 << 16 | 1)
    found = [(tp("late"), OpenTxn(pair[0], pair[1], 5, 0)), (tp("x"), OpenTxn(ProducerId(9), ProducerEpoch(0), 5, 0))]  # fmt: skip
    async with running(fixture, load=False) as txn:
        await txn.adopt(RegionEpoch(16), LeaderEpoch(fixture.ledger.leader_epoch), found)
        assert counted(txn) == 0
        fixture.clock.advance(8 * 24 * 3_600_000)
        await turns()
        assert listed(txn) == []
        assert counted(txn) == 0


async def test_INV_TAD1_without_room_nothing_begins_and_what_is_open_is_ended() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        clients = txn.clients
        pair, idle = await begin(txn, "open"), await begin(txn, "idle")
        assert (await clients.end_txn("idle", *idle, True, 1)).verdict is OK
        await turns()
        txn.admission.no_room = lambda: "the disk is nearly full"
        unavailable = TxnVerdict.UNAVAILABLE
        for name in ("new", "idle"):
            assert (await clients.init_producer_id(name, 60_000)).verdict is unavailable
        begins = await clients.add_partitions("idle", *idle, [OFFSETS], implicit=False)
        grows = await clients.add_partitions("open", *pair, [tp("more")], implicit=False)
        both = await clients.add_partitions("open", *pair, [OFFSETS, tp("more")], implicit=False)
        assert (begins, grows, both) == (unavailable,) * 3
        assert await clients.add_partitions("open", *pair, [tp("orders")], implicit=False) is OK
        assert await clients.add_partitions("open", *pair, [OFFSETS], implicit=False) is OK
        assert (await clients.end_txn("open", *pair, True, 1)).verdict is OK
        await turns()
        assert fixture.markers.orders[-1].partitions[0] in {tp("orders"), OFFSETS}
        txn.admission.no_room = lambda: None
        assert (await clients.init_producer_id("new", 60_000)).verdict is OK
        assert await clients.add_partitions("open", *pair, [tp("more")], implicit=False) is OK


async def test_INV_TAD1_without_room_an_init_still_ends_what_its_id_has_open() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        await begin(txn)
        txn.admission.no_room = lambda: "the disk is nearly full"
        assert (await txn.clients.init_producer_id("t", 60_000)).verdict is OK
        assert txn.open_transactions == 0


def value_bytes(partitions: tuple[TopicPartition, ...]) -> int:
    return len(lr.encode_transaction_value(record(TxnStatus.ONGOING, 0, partitions=partitions)))


def test_partitions_of_two_topics_that_join_by_turns_are_written_as_those_that_join_together() -> None:  # fmt: skip
    stamp = tr.Stamp(1, RegionEpoch(1))
    topics = "a" * 240, "b" * 240
    by_turns: TransactionRecord = record(TxnStatus.EMPTY, 0, partitions=())
    for number in range(50):
        for topic in topics:
            by_turns = tr.join_partitions(by_turns, stamp, partitions=(tp(topic, number),), tv=1)
    together = tuple(tp(topic, number) for topic in topics for number in range(50))
    assert by_turns.partitions == together
    assert value_bytes(by_turns.partitions) == value_bytes(together) < 1_200  # each name once
    mixed = tuple(tp(topic, number) for number in range(50) for topic in topics)
    begun = tr.join_partitions(record(TxnStatus.EMPTY, 0), stamp, partitions=mixed, tv=1)
    assert begun.partitions == together
