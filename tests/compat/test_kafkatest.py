"""The verifiable producer and consumer of confluent-kafka (`confluent_kafka.kafkatest`), which Kafka's system tests use.

Their own events are judged: what the producer says was acknowledged must be exactly what the consumers say they read.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.compat.confluent_client import ConfluentClient

pytestmark = [pytest.mark.process, pytest.mark.slow]

COUNT = 2_000
PARTITIONS = 4


def command(client: str, bootstrap: str, topic: str, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "tests.compat.verifiable", client, "--topic", topic),
        *("--broker-list", bootstrap, *more),
    ]


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the events of a client; it mixes them with remarks."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)


@contextmanager
def started(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def produced(arguments: list[str]) -> dict[int, list[int]]:
    """Run a producer to its end; return the offsets that it was told, by partition."""
    done = subprocess.run(arguments, stdout=subprocess.PIPE, timeout=60, text=True, check=True)
    found: dict[int, list[int]] = {}
    for event in events(iter(done.stdout.splitlines())):
        assert event["name"] != "producer_send_error", event
        if event["name"] == "producer_send_success":
            found.setdefault(event["partition"], []).append(event["offset"])
    return found


def consumed(process: subprocess.Popen[str], count: int) -> dict[int, list[int]]:
    """Return the offsets that a consumer reports, by partition, once it has told of `count`."""
    assert process.stdout is not None
    found: dict[int, list[int]] = {}
    told = 0
    for event in events(process.stdout):
        if event["name"] == "record_data":
            found.setdefault(event["partition"], []).append(event["offset"])
            told += 1
        elif event["name"] == "offsets_committed":
            assert event["success"], event
        if told >= count:
            break
    return found


@pytest.mark.parametrize("options", [(), ("-X", "enable.idempotence=true")])
def test_what_is_acknowledged_is_consumed_once(
    bootstrap: str, fresh: Callable[[str], str], options: tuple[str, ...]
) -> None:
    topic = fresh("verifiable" + ("-idempotent" if options else ""))
    ConfluentClient().create_topic(bootstrap, topic, PARTITIONS, {})
    told = produced(command("producer", bootstrap, topic, "--max-messages", str(COUNT), *options))
    assert sum(map(len, told.values())) == COUNT
    assert {p: sorted(offsets) for p, offsets in told.items()} == {
        p: list(range(len(offsets))) for p, offsets in told.items()
    }
    options = ("--group-id", topic, "--verbose", "-X", "isolation.level=read_committed")
    with started(command("consumer", bootstrap, topic, *options)) as consumer:
        found = consumed(consumer, COUNT)
    assert found == {p: sorted(offsets) for p, offsets in told.items()}
