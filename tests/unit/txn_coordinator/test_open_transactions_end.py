"""Who may end an open transaction over its producer's head, or begin anew over it."""

import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from tests.fixtures.coordinator import ORDERS, CoreFixture, started
from txn_coordinator import events as ev
from txn_coordinator.verdicts import TxnVerdict


def settled(fixture: CoreFixture) -> None:
    """Let decisions get durable and markers be written."""
    for _ in range(3):
        fixture.persist()
        fixture.deliver()


@pytest.mark.parametrize(
    ("of_another", "epoch", "verdict"),
    [
        (1, 0, TxnVerdict.UNKNOWN_PRODUCER_MAPPING),
        (0, 1, TxnVerdict.FENCED),
    ],
)
def test_B13_an_administrator_ends_only_the_transaction_of_the_pair_that_it_names(
    of_another: int, epoch: int, verdict: TxnVerdict
) -> None:
    fixture, pid = started()
    asked = ev.AbortReceived(99, "t", ProducerId(pid + of_another), ProducerEpoch(epoch), (ORDERS,))
    fixture.step(asked)
    assert fixture.answers[99].verdict is verdict


def test_KIP360_an_init_with_its_own_pair_over_what_it_left_open_gets_the_next_epochs() -> None:
    fixture, pid = started()
    number = fixture.init(pid=pid, epoch=0)
    settled(fixture)
    answer = fixture.answers[number]
    assert (answer.verdict, answer.producer_id) == (TxnVerdict.OK, pid)
    assert answer.producer_epoch > 0


def test_C15_a_new_instance_over_what_is_open_fences_the_one_before() -> None:
    fixture, pid = started()
    number = fixture.init()
    settled(fixture)
    assert fixture.answers[number].verdict is TxnVerdict.OK
    late = fixture.init(pid=pid, epoch=0)
    settled(fixture)
    assert fixture.answers[late].verdict is TxnVerdict.FENCED
