"""Decisions as the ledger's records tell of them."""

import pytest

from geo_replicator.reconciliation.evidence.ledger_facts import LedgerFact
from geo_replicator.reconciliation.transactions.instances import decisions_of
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId
from idempotency.ledger_records import TxnStatus

FIRST, SECOND = (0, 1, 10), (0, 1, 20)


def fact(offset: int, status: TxnStatus, decision: tuple[int, int, int] | None) -> LedgerFact:
    return LedgerFact(
        0, 0, offset, LeaderEpoch(1), "t", ProducerId(5), ProducerId(-1), ProducerEpoch(0),
        status, (("orders", 0),), decision, 0, 60_000,
    )  # fmt: skip


@pytest.mark.parametrize(("named", "complete"), [(FIRST, FIRST), (None, SECOND)])
def test_a_completion_ends_the_decision_that_it_names_or_the_last_one_of_its_transactional_id(
    named: tuple[int, int, int] | None, complete: tuple[int, int, int]
) -> None:
    decisions, _ = decisions_of(
        [
            fact(10, TxnStatus.PREPARE_COMMIT, None),
            fact(20, TxnStatus.PREPARE_ABORT, None),
            fact(30, TxnStatus.COMPLETE_COMMIT, named),
        ]
    )
    assert [(key, each.commit, each.complete) for key, each in decisions.items()] == [
        (FIRST, True, complete == FIRST), (SECOND, False, complete == SECOND),
    ]  # fmt: skip
