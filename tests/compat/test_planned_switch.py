"""Unmodified clients under transactions while the writes are moved between two regions, there and back (T22).

Goal: a planned switch needs nothing that a client does not hide: no error reaches the application.
Method: a producer at each region's address commits and aborts without a pause; the regions are switched three times;
what a read-committed reader finds is compared with what was committed. The processes are those of `tidemark dev`.
Not here: aiokafka, whose producer ends where a connection breaks while it asks for its coordinator (docs/reference/clients.md).
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from region_broker.workbench import stage
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import request
from tests.compat.clients import Client
from tests.compat.confluent_client import ConfluentClient
from tests.compat.kafka_python_client import KafkaPythonClient
from tests.process.client_fixture import create_topic, open_cluster, read_all

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLIENTS: dict[str, Callable[[], Client]] = {
    "confluent-kafka": ConfluentClient,
    "kafka-python": KafkaPythonClient,
}
TOPICS = ("left", "right")
SWITCHES = ("us", "eu", "us")
LIMIT_S = 60.0
BETWEEN_SWITCHES = 15
"""Transactions of each producer between two switches."""


class Work:
    """One producer that runs transactions until it is told to end."""

    def __init__(self, client: Client, bootstrap: str, name: str) -> None:
        self._client = client
        self._bootstrap = bootstrap
        self._name = name
        self._ends = threading.Event()
        self.count = 0
        self.committed: list[str] = []

    def run(self) -> None:
        """Write to both topics in each transaction; every third one is aborted."""
        writer = self._client.writer(self._bootstrap, self._name)
        while not self._ends.is_set():
            value = f"{self._name}-{self.count}"
            writer.begin()
            for topic in TOPICS:
                writer.send(topic, value.encode())
            if self.count % 3 == 2:
                writer.abort()
            else:
                writer.commit()
                self.committed.append(value)
            self.count += 1
        writer.close()

    def end(self) -> None:
        """Let it end behind its transaction."""
        self._ends.set()


def switch(cluster: LocalCluster, target: str) -> None:
    """Move the writes to a region, and wait until it takes them."""
    request(cluster.place(target).http, "POST", "/v1/region/switch", {"to": target})
    stage.wait_until(
        f"{target} to act", LIMIT_S, lambda: bool(stage.view(cluster, target)["acting"])
    )


def wait_for_more(works: list[Work], running: list[Future[None]]) -> None:
    """Wait until each producer has run some transactions; raises what ended one."""
    goals = [work.count + BETWEEN_SWITCHES for work in works]
    until = time.monotonic() + LIMIT_S
    while any(work.count < goal for work, goal in zip(works, goals, strict=True)):
        for each in running:
            if each.done():
                each.result()
        assert time.monotonic() < until, [work.count for work in works]
        time.sleep(0.05)


@pytest.mark.parametrize("name", CLIENTS)
def test_T22_a_planned_switch_needs_nothing_that_a_client_does_not_hide(
    tmp_path: Path, name: str
) -> None:
    with open_cluster(tmp_path, 2) as cluster, ThreadPoolExecutor() as threads:
        cluster.start()
        for topic in TOPICS:
            create_topic(cluster.place("eu").bootstrap, topic, 1)
        works = [
            Work(CLIENTS[name](), cluster.place(region).bootstrap, f"at-{region}")
            for region in ("eu", "us")
        ]
        running = [threads.submit(work.run) for work in works]
        try:
            wait_for_more(works, running)
            for target in SWITCHES:
                switch(cluster, target)
                wait_for_more(works, running)
        finally:
            for work in works:
                work.end()
        for each in running:
            each.result(LIMIT_S)
        committed = sorted(value for work in works for value in work.committed)
        for topic in TOPICS:
            found = read_all(cluster.place("us").bootstrap, topic, partition_count=1)
            assert sorted(found) == committed
