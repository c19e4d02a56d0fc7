"""The lines about aborts that no client asked for."""

import pytest

from idempotency.ledger_records import TxnStatus
from tests.fixtures.coordinator import record, tp
from txn_coordinator.serving.abort_log import tell_timed_out


def test_INV_TAL1_a_line_counts_all_partitions_and_shows_twenty(
    caplog: pytest.LogCaptureFixture,
) -> None:
    many = tuple(tp("orders", number) for number in range(21))
    tell_timed_out(record(TxnStatus.ONGOING, 3, partitions=many))
    (line,) = caplog.records
    shown = vars(line)
    assert (shown["transactional_id"], shown["producer_id"], shown["producer_epoch"]) == ("t", 5, 3)
    assert shown["partition_count"] == 21
    assert shown["partitions"] == [f"orders-{number}" for number in range(20)]
