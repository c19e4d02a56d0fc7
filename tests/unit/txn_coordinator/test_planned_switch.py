"""Over ports in memory: producers over a planned switch of regions (T22, INV-TC14, INV-TA3), and what comes late (INV-TO6).

Goal: a client of a region that was drained needs nothing, and nothing gets in that a failover keeps out.
Method: a coordinator ends; another one adopts its whole ledger under a later region epoch.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, ProducerPair, RegionEpoch
from idempotency.partition_state import OpenTxn
from tests.fixtures.coordinator import REGION_EPOCH, tp
from tests.fixtures.coordinator_driver import OK, Fixture, begin, running, turns
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.serving.adoption import Found
from txn_coordinator.verdicts import TxnVerdict

ORDERS = tp("orders")
LEFT, RIGHT = RegionEpoch(17), RegionEpoch(24)
"""Region epochs, of this region and of another one."""


@asynccontextmanager
async def adopted(
    fixture: Fixture,
    region_epoch: RegionEpoch,
    *,
    drained: RegionEpoch | None,
    found: Sequence[Found] = (),
) -> AsyncIterator[TransactionCoordinator]:
    """Let a coordinator take over under `region_epoch`."""
    fixture.ledger.leader_epoch = LeaderEpoch(region_epoch << 16)
    async with running(fixture, load=False) as txn:
        await txn.adopt(region_epoch, fixture.ledger.leader_epoch, found, drained)
        yield txn


async def idle(fixture: Fixture) -> ProducerPair:
    """Return the pair of a TV1 producer that has committed one transaction."""
    async with running(fixture) as txn:
        pair = await begin(txn)
        assert (await txn.clients.end_txn("t", *pair, True, 1)).verdict is OK
        await turns()
    return pair


async def join(
    txn: TransactionCoordinator, pair: ProducerPair, sender: Sender | None = None
) -> TxnVerdict:
    return await txn.clients.add_partitions("t", *pair, [ORDERS], implicit=False, sender=sender)


async def commit(
    txn: TransactionCoordinator, pair: ProducerPair, sender: Sender | None = None
) -> TxnVerdict:
    verdict = (await txn.clients.end_txn("t", *pair, True, 1, sender=sender)).verdict
    await turns()
    return verdict


def is_open(pair: ProducerPair, place: str = "orders") -> Found:
    return tp(place), OpenTxn(*pair, 0, 0)


# Holds INV-TC14.
async def test_T22_a_producer_goes_on_with_its_pair_over_planned_switches_and_restarts() -> None:
    fixture = Fixture()
    pair = await idle(fixture)
    drained = REGION_EPOCH
    for region_epoch in (LEFT, RIGHT):
        async with adopted(fixture, region_epoch, drained=drained) as txn:
            assert await join(txn, pair) is OK
            assert await commit(txn, pair) is OK
        drained = region_epoch
        async with running(fixture, load=False) as txn:  # the node is started again
            await txn.load(LeaderEpoch(fixture.ledger.leader_epoch + 1), region_epoch)
            assert await join(txn, pair) is OK
            assert txn.clients.verify("t", *pair, ORDERS) is OK
            assert await commit(txn, pair) is OK


# Holds INV-TC14.
async def test_T22_an_adoption_that_is_run_again_says_the_same() -> None:
    fixture = Fixture()
    pair = await idle(fixture)
    for _ in range(2):
        async with adopted(fixture, LEFT, drained=REGION_EPOCH) as txn:
            assert await join(txn, pair) is OK
            assert await commit(txn, pair) is OK


# Holds INV-TC14.
@pytest.mark.parametrize("first_switched", [True, False])
async def test_T22_a_failover_ends_the_line_of_switches(first_switched: bool) -> None:
    fixture = Fixture()
    pair = await idle(fixture)
    switch = REGION_EPOCH if first_switched else None
    async with adopted(fixture, LEFT, drained=switch) as txn:
        assert (await join(txn, pair) is OK) == first_switched
    async with adopted(fixture, RIGHT, drained=None if first_switched else LEFT) as txn:
        assert await join(txn, pair) is TxnVerdict.FENCED_BY_TAKEOVER
        assert await commit(txn, pair) is TxnVerdict.FENCED_BY_TAKEOVER_FATAL
        given = await txn.clients.init_producer_id("t", 60_000, *pair)
        assert given.verdict is OK
        assert given.producer_id != pair[0]


# Holds INV-TA3.
async def test_T22_a_transaction_that_is_open_goes_on_over_a_planned_switch() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
    async with adopted(fixture, LEFT, drained=REGION_EPOCH, found=[is_open(pair)]) as txn:
        assert fixture.markers.orders == []
        assert txn.open_transactions == 1
        assert txn.clients.verify("t", *pair, ORDERS) is OK
        assert await commit(txn, pair) is OK
        assert [(order.commit, order.partitions) for order in fixture.markers.orders] == [
            (True, (ORDERS,))
        ]


# Holds INV-TA3.
@pytest.mark.parametrize("older", [False, True])
async def test_T21_what_hangs_beside_an_open_transaction_is_aborted_with_it(older: bool) -> None:
    """The producer's own end would not reach it, and its marker would be of no newer epoch."""
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
        if older:
            given = await txn.clients.init_producer_id("t", 60_000)
            assert await join(txn, (given.producer_id, given.producer_epoch)) is OK
    fixture.markers.orders.clear()
    hanging = is_open(pair) if older else is_open(pair, "hangs")
    async with adopted(fixture, LEFT, drained=REGION_EPOCH, found=[hanging]) as txn:
        assert txn.open_transactions == 0
        assert not any(order.commit for order in fixture.markers.orders)
        assert hanging[0] in {tp for order in fixture.markers.orders for tp in order.partitions}
        assert await join(txn, pair) is TxnVerdict.FENCED
        given = await txn.clients.init_producer_id("t", 60_000)
        assert await join(txn, (given.producer_id, given.producer_epoch)) is OK


async def test_T21_what_no_ledger_knows_is_aborted_after_a_planned_switch_too() -> None:
    fixture = Fixture()
    await idle(fixture)
    fixture.markers.orders.clear()
    orphan = is_open((ProducerId(77), ProducerEpoch(3)))
    async with adopted(fixture, LEFT, drained=REGION_EPOCH, found=[orphan]):
        (order,) = fixture.markers.orders
        assert (order.producer_id, order.producer_epoch, order.commit) == (77, 4, False)


async def test_a_zombie_stays_fenced_over_a_planned_switch() -> None:
    fixture = Fixture()
    zombie = await idle(fixture)
    async with running(fixture) as txn:
        given = await txn.clients.init_producer_id("t", 60_000)
    async with adopted(fixture, LEFT, drained=REGION_EPOCH) as txn:
        assert await join(txn, zombie) is TxnVerdict.FENCED
        assert await commit(txn, zombie) is TxnVerdict.FENCED
        pair = (given.producer_id, given.producer_epoch)
        assert await join(txn, pair) is OK
        assert txn.clients.verify("t", *zombie, ORDERS) is TxnVerdict.FENCED
        assert txn.clients.verify("t", *pair, ORDERS) is OK


# Holds INV-TO6.
@pytest.mark.parametrize("live_first", [False, True])
async def test_P1_a_commit_from_before_a_planned_switch_ends_no_later_transaction(
    live_first: bool,
) -> None:
    """It was held up on connection 7; its client went on over 8, and has its next transaction open."""
    fixture = Fixture()
    late, live = Sender(3, 7, 9), Sender(3, 8, 9)
    async with running(fixture) as txn:
        pair = await begin(txn)
    async with adopted(fixture, LEFT, drained=REGION_EPOCH, found=[is_open(pair)]) as txn:
        unproven, stale = TxnVerdict.UNPROVEN_CONNECTION, TxnVerdict.STALE_CONNECTION
        if live_first:
            assert await join(txn, pair, live) is unproven
            assert await join(txn, pair, live) is OK  # clients repeat this by themselves
            assert await commit(txn, pair, late) is stale
        else:
            assert await commit(txn, pair, late) is unproven
        assert txn.open_transactions == 1
        verdicts = [await commit(txn, pair, live) for _ in range(1 if live_first else 2)]
        assert verdicts[-1] is OK
        assert (
            await join(txn, pair, Sender(3, 10, 10)) is OK
        )  # accepted since: nothing late is on it


# Holds INV-TO6.
async def test_P2_data_from_before_a_planned_switch_is_asked_for_again() -> None:
    fixture = Fixture()
    async with running(fixture) as txn:
        pair = await begin(txn)
    async with adopted(fixture, LEFT, drained=REGION_EPOCH, found=[is_open(pair)]) as txn:

        def data(number: int, sequence: int) -> TxnVerdict:
            arrival = Arrival(Sender(3, number, max(number, 9)), sequence)
            return txn.clients.verify("t", *pair, ORDERS, arrival)

        assert data(7, 40) is TxnVerdict.UNPROVEN_CONNECTION
        assert data(8, 40) is TxnVerdict.UNPROVEN_CONNECTION
        assert data(8, 40) is OK
        assert data(8, 41) is OK
        assert data(10, 42) is OK


# Holds INV-TO6.
async def test_a_pair_of_this_region_is_asked_for_nothing_twice() -> None:
    fixture = Fixture()
    async with adopted(fixture, LEFT, drained=REGION_EPOCH) as txn:
        given = await txn.clients.init_producer_id("t", 60_000)
        assert await join(txn, (given.producer_id, given.producer_epoch), Sender(3, 7, 9)) is OK
