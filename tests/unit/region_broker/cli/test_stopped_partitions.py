"""What commands show of a topic of which one partition has stopped: the others, and that one by name.

Played: confluent-kafka's Consumer, as librdkafka 2.16 answered for a partition that a full disk had stopped.
"""

from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from region_broker.cli.admin import topic as topics
from region_broker.cli.kafka import bounds_of

STOPPED = 1


class Reader:
    """Two partitions, of which one has stopped, or nobody who answers."""

    def __init__(self, error: int = KafkaError._UNKNOWN_PARTITION) -> None:
        self._error = error

    def get_watermark_offsets(self, place: TopicPartition, timeout: float) -> tuple[int, int]:
        assert timeout > 0
        if place.partition == STOPPED:
            raise KafkaException(KafkaError(self._error))
        return 3, 7

    def close(self) -> None:
        """Nothing is open."""


def test_a_stopped_partition_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    partitions = {index: SimpleNamespace(leader=1) for index in (0, STOPPED, 2)}
    listed = SimpleNamespace(topics={"orders": SimpleNamespace(partitions=partitions)})
    client = SimpleNamespace(list_topics=lambda **_: listed)
    monkeypatch.setattr(topics, "admin_client", lambda *_: client)
    monkeypatch.setattr(topics, "tell_if_behind", lambda *_: True)
    monkeypatch.setattr(topics, "client_config", lambda *_args, **_more: {})
    monkeypatch.setattr(confluent_kafka, "Consumer", lambda *_args, **_more: Reader())
    done = CliRunner().invoke(topics.topic, ["describe", "orders"])
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.stdout.splitlines()[-3:]]
    assert rows == [["orders", "0", "1", "3", "7"], ["orders", "1", "1", "-", "-"],
                    ["orders", "2", "1", "3", "7"]]  # fmt: skip
    assert "orders-1 does not say where it begins and ends: it has stopped" in done.stderr


@pytest.mark.parametrize("error", [KafkaError._TRANSPORT, KafkaError._TIMED_OUT])
def test_where_nobody_answers_not_every_partition_is_waited_for(error: int) -> None:
    reader: Any = Reader(error)
    with pytest.raises(KafkaException):
        bounds_of(reader, "orders", STOPPED)
