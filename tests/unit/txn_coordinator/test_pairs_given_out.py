"""Producer ids that a stock gives out twice: a shard stops rather than let two producers have one pair."""

import pytest

from idempotency.identity import ProducerId, RegionEpoch
from idempotency.ledger_records import TxnStatus
from tests.fixtures.coordinator import FIRST_ID, CoreFixture, fixture_with, record, started
from txn_coordinator import events as ev


def test_INV_TC10_a_producer_id_of_two_transactional_ids_stops_the_shard() -> None:
    fixture = CoreFixture()
    fixture.init("a")
    fixture.step(ev.ProducerIdsGranted(ProducerId(FIRST_ID), 50))
    for name in (f"b{number}" for number in range(49)):
        fixture.init(name)
    fixture.persist()
    fixture.init("c")
    with pytest.raises(AssertionError, match="INV-TC10"):
        fixture.persist()


def test_INV_TC10_a_producer_is_found_by_its_id_as_long_as_it_has_it() -> None:
    fixture = fixture_with(record(TxnStatus.EMPTY, 0, region_epoch=RegionEpoch(0)))
    table = fixture.core._table
    assert table.find(None, ProducerId(5)) is fixture.entries["t"]
    given = fixture.init(pid=5, epoch=0)  # given out before this region acted: it gets another id
    fixture.persist()
    assert fixture.answers[given].producer_id == FIRST_ID
    assert table.find(None, ProducerId(5)) is None
    assert table.find(None, ProducerId(FIRST_ID)) is fixture.entries["t"]


def test_INV_TC12_a_pair_that_is_in_force_is_given_to_nobody() -> None:
    fixture = fixture_with(
        record(TxnStatus.EMPTY, 3, producer_id=ProducerId(FIRST_ID), region_epoch=RegionEpoch(0))
    )
    with pytest.raises(AssertionError, match="INV-TC12"):
        fixture.init(pid=FIRST_ID, epoch=3)


@pytest.mark.parametrize("pair", [(-1, -1), (FIRST_ID, 0)], ids=["new instance", "same producer"])
def test_INV_TC12_nothing_is_open_when_a_pair_is_given(pair: tuple[int, int]) -> None:
    fixture, _ = started()
    asked = fixture.init(pid=pair[0], epoch=pair[1])
    assert fixture.record().status is TxnStatus.ONGOING
    fixture.persist()
    assert fixture.record().status is TxnStatus.PREPARE_ABORT
    assert asked not in fixture.answers
    fixture.deliver()
    given = fixture.answers[asked]
    assert (given.producer_id, given.producer_epoch) > (FIRST_ID, 0)
    assert fixture.record().status in {TxnStatus.EMPTY, TxnStatus.COMPLETE_ABORT}
