"""Which transactional ids there are."""

import pytest

from tests.fixtures.coordinator_driver import OK, Fixture, running
from txn_coordinator.transitions import ORPHAN_PREFIX
from txn_coordinator.verdicts import TxnVerdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("é" * 1_049 + "ts", OK),  # 2,100 bytes: the longest that a new one may have (INV-GN3)
        ("é" * 1_050 + "t", TxnVerdict.INVALID_REQUEST),
        ("é" * 16_384, TxnVerdict.INVALID_REQUEST),  # longer than a string of Kafka's
        ("", TxnVerdict.INVALID_REQUEST),
        (f"{ORPHAN_PREFIX}7", TxnVerdict.INVALID_REQUEST),
    ],
    ids=["longest", "too long", "longer than any", "empty", "an orphan's"],
)
async def test_a_new_transactional_id_has_a_bounded_name_and_is_no_orphans(
    name: str, verdict: TxnVerdict
) -> None:
    async with running(Fixture()) as txn:
        assert (await txn.clients.init_producer_id(name, 60_000)).verdict is verdict
