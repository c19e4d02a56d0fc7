"""EndTxn that is begun at once: only while there is a producer id in stock for it (INV-TD5)."""

from idempotency.identity import ProducerPair
from tests.fixtures.coordinator_driver import OK, Fixture, begin, running, turns
from txn_coordinator.connection_order import Sender
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.verdicts import EndOutcome

SENDER = Sender(0, 1, 1)


def end_at_once(
    txn: TransactionCoordinator, name: str, pair: ProducerPair, tv: int, told: list[EndOutcome]
) -> bool:
    return txn.clients.begin_end_txn(
        name, *pair, commit=True, tv=tv, sender=SENDER, done=told.append
    )


async def test_INV_TD5_a_tv2_end_is_not_begun_while_no_producer_id_is_in_stock() -> None:
    fixture, told = Fixture(), list[EndOutcome]()
    async with running(fixture) as txn:
        pair = await begin(txn)
        (shard,) = [shard for shard in txn._shards if shard.view.id_count]
        ids = shard._core._ids
        stock, ids._ids = ids._ids, type(ids._ids)()
        assert not end_at_once(txn, "t", pair, 2, told)
        await turns()
        assert told == []
        ids._ids = stock
        assert end_at_once(txn, "t", pair, 2, told)
        await turns()
        (outcome,) = told
        assert outcome.verdict is OK
        assert (outcome.producer_id, outcome.producer_epoch) == (pair[0], pair[1] + 1)


async def test_INV_TD5_a_tv1_end_needs_no_producer_id() -> None:
    fixture, told = Fixture(), list[EndOutcome]()
    async with running(fixture) as txn:
        pair = await begin(txn)
        (shard,) = [shard for shard in txn._shards if shard.view.id_count]
        shard._core._ids._ids.clear()
        assert end_at_once(txn, "t", pair, 1, told)
        await turns()
        assert [outcome.verdict for outcome in told] == [OK]
