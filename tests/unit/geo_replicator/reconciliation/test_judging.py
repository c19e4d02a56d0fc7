"""What a finding says of a transaction."""

import pytest

from geo_replicator.reconciliation.transactions.instances import ABORT, COMMIT, OPEN
from geo_replicator.reconciliation.transactions.judging import _shown


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (OPEN, "3 records open"),
        (ABORT, "3 records aborted at 9"),
        (COMMIT, "3 records committed at 9"),
    ],
)
def test_a_transaction_is_shown_with_its_marker_where_it_has_one(outcome: int, said: str) -> None:
    assert _shown({"outcome": outcome, "records": 3, "marker_offset": 9}) == said
