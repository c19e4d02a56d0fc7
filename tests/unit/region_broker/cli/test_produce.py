"""What `tidemark produce` counts, when the broker stops answering and goes on again.

Played: librdkafka's producer, whose queue is full for a while; the counting is the command's.
"""

import logging
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest

from region_broker.cli.records import produce as module
from region_broker.cli.records.lines import Outgoing


class FullQueue:
    """A producer that has room for `room` records, and acknowledges them when it is flushed."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._waiting: list[Callable[[Any, Any], None]] = []

    def produce(
        self, _topic: str, *, on_delivery: Callable[[Any, Any], None], **_record: Any
    ) -> None:
        if len(self._waiting) == self._room:
            raise BufferError
        self._waiting.append(on_delivery)

    def poll(self, _timeout_s: float) -> None:
        """Nothing is answered."""

    def flush(self, _timeout_s: float) -> None:
        for delivered in self._waiting:
            delivered(None, None)


def test_INV_CPR1_a_record_that_found_no_room_is_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", lambda *_args, **_more: FullQueue(room=2))
    monkeypatch.setattr(module, "client_config", lambda *_args, **_more: {})
    monkeypatch.setattr(module, "check_topic", lambda *_args: [0])
    monkeypatch.setattr(module, "_ANSWER_TIMEOUT_S", -1.0)
    sender = module._Sender("orders", "nowhere:1", None, None)
    sender.send(Outgoing(value=b"%d" % number) for number in range(5))
    with pytest.raises(SystemExit) as ended:
        sender.conclude()
    assert ended.value.code != 0
    said = capsys.readouterr().err
    assert "1 of 3 records were not acknowledged" in said
    assert "2 were written to orders. What came behind them was not read any more" in said


def test_INV_CPR1_what_the_disk_answered_is_told_whatever_a_forwarding_mirror_said_in_between() -> (
    None
):
    refusals = module._Refusals()
    leader, disk = "Broker: Not leader for partition", "Broker: Disk error when trying to access"
    for why in (disk, leader, leader):
        text = f"MessageSet with 1 message(s) encountered error: {why} (actions Retry)"
        refusals.emit(logging.LogRecord("rdkafka", logging.DEBUG, "", 0, text, (), None))
    assert refusals.why == disk
