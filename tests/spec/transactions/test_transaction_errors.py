"""C29, T22: which error number each version of the transaction APIs answers.

Source: KIP-588 (PRODUCER_FENCED: InitProducerId 4, AddPartitionsToTxn 2, AddOffsetsToTxn 2, EndTxn 2), KIP-890
(TRANSACTION_ABORTABLE: InitProducerId 5, AddPartitionsToTxn 5, AddOffsetsToTxn 4, EndTxn 4).
"""

import pytest

from region_broker.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    end_txn,
    init_producer_id,
)
from region_broker.handlers.transactions.errors import ErrorVersions
from txn_coordinator.verdicts import TxnVerdict as V

INVALID_PRODUCER_EPOCH, PRODUCER_FENCED, TRANSACTION_ABORTABLE = 47, 90, 120


@pytest.mark.parametrize(
    ("errors", "fenced_since", "abortable_since"),
    [
        (init_producer_id.ERRORS, 4, 5),
        (add_partitions_to_txn.ERRORS, 2, 5),
        (add_offsets_to_txn.ERRORS, 2, 4),
        (end_txn.ERRORS, 2, 4),
    ],
)
def test_C29_newer_errors_only_for_versions_that_know_them(
    errors: ErrorVersions, fenced_since: int, abortable_since: int
) -> None:
    for version in range(7):
        fenced = PRODUCER_FENCED if version >= fenced_since else INVALID_PRODUCER_EPOCH
        assert errors.error_of(V.FENCED, version) == fenced
        abortable = TRANSACTION_ABORTABLE if version >= abortable_since else INVALID_PRODUCER_EPOCH
        assert errors.error_of(V.FENCED_BY_TAKEOVER, version) == abortable
        fatal = errors.error_of(V.FENCED_BY_TAKEOVER_FATAL, version)
        assert fatal == INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize(
    ("verdict", "number"),
    [
        (V.OK, 0),
        (V.LOADING, 14),
        (V.UNAVAILABLE, 15),
        (V.NOT_COORDINATOR, 16),
        (V.INVALID_STATE, 48),
        (V.UNKNOWN_PRODUCER_MAPPING, 49),
        (V.INVALID_TIMEOUT, 50),
        (V.CONCURRENT, 51),
    ],
)
def test_verdicts_have_kafkas_numbers(verdict: V, number: int) -> None:
    for module in (init_producer_id, add_partitions_to_txn, add_offsets_to_txn, end_txn):
        for version in module.API.versions:
            assert module.ERRORS.error_of(verdict, version) == number


def test_C20_only_end_txn_5_is_TV2() -> None:
    assert end_txn.API.versions == range(6)
    assert add_partitions_to_txn.API.versions == range(6)
    assert all(
        module.API.forward
        for module in (init_producer_id, add_partitions_to_txn, add_offsets_to_txn, end_txn)
    )
