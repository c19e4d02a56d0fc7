"""What `tidemark consume` counts as printed, and what it says while nothing comes.

Played: confluent-kafka's Consumer with one partition of three records.
"""

from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import TopicPartition

from region_broker.cli.records import consume as module


class Printed:
    def __init__(self, offset: int, timestamp_ms: int = 0) -> None:
        self._offset, self._timestamp_ms = offset, timestamp_ms

    def error(self) -> None:
        return None

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, self._timestamp_ms

    def value(self) -> bytes:
        return b"%d" % self._offset


class PlayedConsumer:
    def __init__(self, found: Iterator[Any]) -> None:
        self._found = found
        self._stored: int | None = None
        self.committed: int | None = None

    def poll(self, _timeout_s: float) -> Any:
        return next(self._found)

    def subscribe(self, _topics: list[str]) -> None:
        """Partitions come with a poll."""

    def assignment(self) -> list[TopicPartition]:
        return []

    def store_offsets(self, message: Printed) -> None:
        self._stored = message.offset() + 1

    def commit(self, *, asynchronous: bool) -> None:
        assert not asynchronous
        self.committed = self._stored

    def close(self) -> None:
        """Nothing is open."""


def consume(monkeypatch: pytest.MonkeyPatch, found: Iterator[Any]) -> tuple[PlayedConsumer, Any]:
    played = PlayedConsumer(found)
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda *_args, **_more: played)
    monkeypatch.setattr(module, "client_config", lambda *_args, **_more: {})
    monkeypatch.setattr(module, "check_topic", lambda *_args: [0])
    return played, CliRunner().invoke(module.consume, ["orders", "--group", "g", "--follow"])


def test_INV_CCO1_what_an_interrupt_kept_from_being_printed_is_not_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupted(Printed):
        def value(self) -> bytes:
            raise KeyboardInterrupt

    played, done = consume(monkeypatch, iter([Printed(0), Printed(1), Interrupted(2)]))
    assert done.exit_code == 0, done.output
    assert done.stdout == "0\n1\n"
    assert played.committed == 2


def test_INV_CCO3_a_member_without_partitions_says_why_it_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing() -> Iterator[None]:
        for _ in range(20):
            yield None
        raise KeyboardInterrupt

    _, done = consume(monkeypatch, nothing())
    assert done.stderr.count("no partition is given to this member of group g") == 1


def test_a_time_that_no_calendar_has_is_printed_as_it_is() -> None:
    assert module._time(Printed(0, timestamp_ms=1_700_000_000_000)) == "2023-11-14T22:13:20.000Z"
    assert module._time(Printed(0, timestamp_ms=10**17)) == "100000000000000000ms"
