"""Which answered errors are told, at which level, and how often."""

import logging
from pathlib import Path

import pytest

from region_broker.handlers.dispatch import error_log
from region_broker.handlers.dispatch.error_log import QUIET_MS, ErrorLog
from region_broker.wire.request_trace import Trace
from tests.fixtures.node_logs import ManualClock

TRACE: Trace = {"client_id": "billing", "correlation_id": 7}


class Traced:
    """Counts how often a trace was asked for."""

    asked = 0

    def __call__(self) -> Trace:
        self.asked += 1
        return TRACE


@pytest.mark.parametrize(
    ("api", "name", "level"),
    [
        ("Produce", "kafka_storage_error", logging.WARNING),
        ("Produce", "request_timed_out", logging.WARNING),
        ("Fetch", "corrupt_message", logging.WARNING),
        ("Produce", "corrupt_message", logging.DEBUG),
        ("EndTxn", "producer_fenced", logging.INFO),
        ("Produce", "invalid_txn_state", logging.INFO),
        ("Metadata", "unknown_topic_or_partition", logging.DEBUG),
        ("JoinGroup", "member_id_required", logging.DEBUG),
    ],
)
def test_INV_EL1_levels(api: str, name: str, level: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, error_log.__name__)
    ErrorLog(ManualClock()).answered(api, [name, name], Traced())
    (record,) = caplog.records
    assert record.levelno == level
    assert (record.error, record.client_id, record.correlation_id) == (name.upper(), "billing", 7)  # type: ignore[attr-defined]
    assert name.upper() in record.getMessage()


def test_INV_EL2_one_line_in_ten_seconds_and_the_next_counts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, error_log.__name__)
    clock, traced = ManualClock(), Traced()
    log = ErrorLog(clock)
    for _ in range(5):
        log.answered("Produce", ["kafka_storage_error"], traced)
    log.answered("Fetch", ["kafka_storage_error"], traced)
    log.failed("Produce", "no region acts", traced)
    assert [record.getMessage() for record in caplog.records] == [
        "Produce was answered with KAFKA_STORAGE_ERROR",
        "Fetch was answered with KAFKA_STORAGE_ERROR",
        "Produce was not executed: no region acts",
    ]
    clock.now_ms += QUIET_MS
    log.answered("Produce", ["kafka_storage_error"], traced)
    assert caplog.records[-1].left_out == 4  # type: ignore[attr-defined]
    assert traced.asked == 4


def test_nothing_is_made_for_lines_that_are_not_written(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, error_log.__name__)
    traced = Traced()
    ErrorLog(ManualClock()).answered("Metadata", ["unknown_topic_or_partition"], traced)
    assert (caplog.records, traced.asked) == ([], 0)


def test_INV_EL2_a_full_disk_is_one_line_and_not_one_for_each_request(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    log = ErrorLog(clock)
    for at_ms in (0, 1, QUIET_MS):
        clock.now_ms += at_ms
        try:
            Path("/dev/full").write_bytes(b"x")
        except OSError:
            log.disk("OffsetDelete", "10.0.0.1:5")
    assert [record.getMessage() for record in caplog.records] == [
        "OffsetDelete from 10.0.0.1:5 met an error of the disk"
    ] * 2
    assert all(record.exc_info for record in caplog.records)
