"""A region of one real node becomes three by `tidemark cluster node add`, while a client of librdkafka writes all the time."""

import json
import signal
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from region_broker.cli.main import main
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_until
from tests.process.test_cluster_operations import (
    TIDEMARK,
    TOPIC,
    WITHIN_S,
    _end,
    _until_ready,
    region_of,
)

pytestmark = [pytest.mark.process, pytest.mark.slow]

CLUSTER_ID = UUID(int=78)


class Writer(threading.Thread):
    """Writes 0, 1, 2, ... until it is closed; `heard` is what librdkafka says of its connections."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(name="writer")
        self.acknowledged: list[int] = []
        self.failed: list[str] = []
        self.heard: list[str] = []
        self.closed = threading.Event()
        settings = {
            "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0, "log_level": 0,
            "error_cb": lambda error: self.heard.append(str(error)),
        }  # fmt: skip
        self.producer = Producer(settings)

    def run(self) -> None:
        producer = self.producer
        number = 0
        while not self.closed.is_set():
            producer.produce(TOPIC, b"%d" % number, partition=0, on_delivery=self._delivered)
            number += 1
            producer.poll(0.005)
        assert producer.flush(WITHIN_S) == 0

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failed.append(str(error))
        else:
            self.acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

    def until_more(self, count: int = 20) -> None:
        wanted = len(self.acknowledged) + count
        wait_until("more is acknowledged", WITHIN_S, lambda: len(self.acknowledged) >= wanted)


def start(running: ExitStack, path: Path) -> "subprocess.Popen[str]":
    log = running.enter_context(path.with_suffix(".log").open("a"))
    process = subprocess.Popen(
        [*TIDEMARK, "broker", "--config", str(path)], stdout=subprocess.PIPE, stderr=log, text=True
    )
    running.callback(_end, process)
    return process


def test_a_region_of_one_node_becomes_three_under_a_client_that_writes(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path / "plan", region_count=1, node_count=3, port=0, new_cluster_id=CLUSTER_ID
    ) as planned, ExitStack() as running:  # fmt: skip
        places = planned.plan.nodes
        nodes = [place.as_config(None) for place in places]
        files = [tmp_path / "1.json", tmp_path / "2.toml", tmp_path / "3.toml"]
        files[0].write_text(
            json.dumps(
                {"region": "eu", "cluster_id": str(CLUSTER_ID), "data_dir": str(tmp_path / "1"), "auto_create_topics": True,
                 "initial_primary_region": "eu", "regions": [{"name": "eu", "ordinal": 0, **nodes[0]}]}
            )
        )  # fmt: skip
        subprocess.run(
            [*TIDEMARK, "init", "--config", str(files[0]), "--no-history-elsewhere"], check=True, capture_output=True
        )  # fmt: skip
        one = start(running, files[0])
        _until_ready(one)
        region = region_of(places)
        writer = Writer(places[0].bootstrap)
        writer.start()
        running.callback(writer.join)
        running.callback(writer.closed.set)
        writer.until_more()
        writer.heard.clear()  # that the topic was not there yet

        def add(at: int) -> None:
            node = nodes[at]
            done = CliRunner().invoke(
                main,
                ["cluster", "node", "add", str(node["node_id"]), "--peer", node["peer"], "--kafka", node["kafka"], "--http",
                 node["http"], "--data-dir", str(tmp_path / str(at + 1)), "--url", places[0].http],
            )  # fmt: skip
            assert done.exit_code == 0, done.output
            files[at].write_text(done.stdout)

        add(1)
        writer.until_more()
        add(2)
        assert writer.heard == [], "its connection was never closed"
        assert one.poll() is None, "it is the process that it was"
        for process in [start(running, file) for file in files[1:]]:
            _until_ready(process)
        region.in_sync(1, 2, 3)
        region.until("three vote", lambda view: view["quorum"]["voters"] == [1, 2, 3])
        writer.until_more()
        writer.producer.list_topics(
            timeout=WITHIN_S
        )  # else it hears of the others once its metadata are five minutes old
        one.send_signal(signal.SIGKILL)
        writer.until_more()
        _until_ready(start(running, files[0]))  # its file still names it alone
        region.in_sync(1, 2, 3)
        writer.closed.set()
        writer.join()
        assert writer.failed == []
        assert writer.acknowledged == region.read() == list(range(len(writer.acknowledged)))
