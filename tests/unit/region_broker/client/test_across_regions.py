"""Settings for clients of several regions: librdkafka takes them, and nothing waits for longer than a transaction."""

import pytest
from confluent_kafka import Consumer, Producer

from region_broker.client import ACROSS_REGIONS, TransactionalProducer, across_regions

NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


@pytest.mark.parametrize("transaction_timeout_ms", [1_000, 10_000, 60_000])
def test_INV_CP17_librdkafka_takes_them_with_any_transaction_time_out(
    transaction_timeout_ms: int,
) -> None:
    settings = across_regions(transaction_timeout_ms)
    assert settings["socket.timeout.ms"] <= transaction_timeout_ms
    own = {"transactional.id": "t", "transaction.timeout.ms": transaction_timeout_ms}
    Producer({**NOBODY, **own, **settings})


def test_INV_CP17_librdkafka_takes_them_for_a_consumer() -> None:
    Consumer({**NOBODY, "group.id": "g", **ACROSS_REGIONS}).close()


def test_INV_CP17_an_applications_own_settings_win() -> None:
    producer = TransactionalProducer(
        bootstrap="127.0.0.1:1", transactional_id="t", config={"socket.timeout.ms": 1_234}
    )
    assert producer._config["socket.timeout.ms"] == 1_234
    assert producer._config["connections.max.idle.ms"] == ACROSS_REGIONS["connections.max.idle.ms"]
