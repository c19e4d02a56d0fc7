"""Which transactional ids there are."""

import pytest

from tests.fixtures.coordinator_driver import OK, Fixture, running
from txn_coordinator.transitions import ORPHAN_PREFIX
from txn_coordinator.verdicts import TxnVerdict


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("é" * 16_383 + "t", OK),  # 32,767 bytes: what a string of Kafka's may have
        ("é" * 16_384, TxnVerdict.INVALID_REQUEST),
        ("", TxnVerdict.INVALID_REQUEST),
        (f"{ORPHAN_PREFIX}7", TxnVerdict.INVALID_REQUEST),
    ],
    ids=["longest", "too long", "empty", "an orphan's"],
)
async def test_a_transactional_id_fits_a_string_of_Kafka_and_is_no_orphans(
    name: str, verdict: TxnVerdict
) -> None:
    async with running(Fixture()) as txn:
        assert (await txn.clients.init_producer_id(name, 60_000)).verdict is verdict
