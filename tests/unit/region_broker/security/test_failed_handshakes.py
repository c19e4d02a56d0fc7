"""Handshakes that failed: each is counted, and a storm of them is no storm of log lines (INV-FHS1)."""

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from region_broker.ports.handshakes import GONE, NO_TLS, TEXTS, UNKNOWN_CA
from region_broker.ports.network import FailedHandshake
from region_broker.security.failed_handshakes import SAY_EVERY_MS, FailedHandshakes
from tests.fixtures.node_logs import ManualClock


def failed(reason: str, port: int = 1) -> FailedHandshake:
    return FailedHandshake(f"192.0.2.1:{port}", reason, TEXTS[reason])


def test_INV_FHS1_a_storm_is_one_line_and_all_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    handshakes = FailedHandshakes(clock)
    kafka, peer = handshakes.on_port("kafka"), handshakes.on_port("peer")
    caplog.set_level(logging.INFO, "tidemark.tls")
    for number in range(1_000):
        kafka(failed(NO_TLS, number))
    peer(failed(NO_TLS))
    kafka(failed(GONE))
    said = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert said == [
        (logging.WARNING, f"no TLS with 192.0.2.1:0 on the kafka port: {TEXTS[NO_TLS]}"),
        (logging.WARNING, f"no TLS with 192.0.2.1:1 on the peer port: {TEXTS[NO_TLS]}"),
        (logging.INFO, f"no TLS with 192.0.2.1:1 on the kafka port: {TEXTS[GONE]}"),
    ]
    clock.now_ms += SAY_EVERY_MS
    kafka(failed(NO_TLS, 7))
    kafka(failed(UNKNOWN_CA))
    assert "(and 999 others since the last such line)" in caplog.records[3].getMessage()
    assert "others" not in caplog.records[4].getMessage()
    registry = CollectorRegistry()
    registry.register(handshakes)
    text = generate_latest(registry).decode()
    assert 'tidemark_tls_handshakes_failed_total{port="kafka",reason="no_tls"} 1001.0' in text
    assert 'tidemark_tls_handshakes_failed_total{port="peer",reason="no_tls"} 1.0' in text
