"""A region of three real nodes, operated by the commands that an operator has; and one of one node that grows to three."""

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.main import main
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.workbench.cluster_plan import NodePlace
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.stage import StageError, wait_until
from tests.fixtures.tidemark_forks import run_tidemark

pytestmark = [pytest.mark.process, pytest.mark.slow]

TIDEMARK = (sys.executable, "-m", "region_broker")
CLUSTER_ID = UUID(int=77)
TOPIC = "orders"
WITHIN_S = 60.0


class Region:
    """What an operator has in hands: HTTP addresses, and the command line."""

    def __init__(self, https: Sequence[str], bootstrap: str) -> None:
        self.https = list(https)
        self.bootstrap = bootstrap

    def run(self, *words: str) -> Any:
        """Run a command of `tidemark`, which succeeds; return its JSON."""
        done = CliRunner().invoke(main, [*words, "--url", ",".join(self.https), "-o", "json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    def refused(self, *words: str) -> str:
        done = CliRunner().invoke(main, [*words, "--url", ",".join(self.https)])
        assert done.exit_code == 1, done.output
        return done.output

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.run("cluster", "status")
        return found

    def until(self, what: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        def look() -> bool:
            done = CliRunner().invoke(
                main, ["cluster", "status", "--url", ",".join(self.https), "-o", "json"]
            )
            return done.exit_code == 0 and holds(json.loads(done.stdout))

        wait_until(what, WITHIN_S, look)
        return self.status()

    def in_sync(self, *node_ids: int) -> dict[str, Any]:
        """Return the status once these, and no others, are in sync and one of them leads."""
        return self.until(
            f"nodes {node_ids} are in sync",
            lambda view: (
                view["leadership"]["in_sync"] == list(node_ids)
                and view["leadership"]["leader"] is not None
                and view["quorum"]["leader"] is not None
            ),
        )

    def ready(self, http: str) -> bool:
        try:
            return bool(request(http, "GET", "/readyz")["status"] == "ready")
        except (ApiError, OSError):
            return False

    def write(self, first: int, count: int) -> None:
        """Have `count` records acknowledged by all that are in sync."""
        failed: list[object] = []
        producer = Producer(
            {"bootstrap.servers": self.bootstrap, "acks": "all", "enable.idempotence": True, "log_level": 0,
             "retry.backoff.ms": 50}
        )  # fmt: skip
        for number in range(first, first + count):
            producer.produce(
                TOPIC, b"%d" % number, partition=0,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        assert producer.flush(WITHIN_S) == 0
        assert failed == []

    def read(self) -> list[int]:
        consumer = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0,
             "enable.partition.eof": True}
        )  # fmt: skip
        found: list[int] = []
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            while (message := consumer.poll(WITHIN_S)) is not None and message.error() is None:
                value = message.value()
                assert value is not None
                found.append(int(value))
        except KafkaException as error:
            raise StageError(str(error)) from error
        finally:
            consumer.close()
        return found


def region_of(nodes: Sequence[NodePlace]) -> Region:
    return Region([node.http for node in nodes], ",".join(node.bootstrap for node in nodes))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.open(
        tmp_path, region_count=1, node_count=3, port=0, new_cluster_id=CLUSTER_ID,
        settings={"auto_create_topics": True},
    ) as opened:  # fmt: skip
        opened.start()
        yield opened


def test_three_nodes_are_moved_drained_replaced_and_removed(cluster: LocalCluster) -> None:
    region = region_of(cluster.plan.nodes)
    region.in_sync(1, 2, 3)
    assert all(region.ready(http) for http in region.https)
    region.write(0, 100)

    chosen = 2 if region.status()["leadership"]["leader"] != 2 else 3
    assert region.run("cluster", "move", "--to", str(chosen), "--dry-run")["changed"]
    assert region.run("cluster", "move", "--to", str(chosen))["leadership"]["leader"] == chosen
    region.in_sync(1, 2, 3)
    assert region.run("cluster", "drain", str(chosen))["leadership"]["leader"] != chosen
    region.in_sync(*sorted({1, 2, 3} - {chosen}))
    region.write(100, 100)
    assert "holds all that was committed" in region.refused("cluster", "unclean-elect", "1", "--confirm")  # fmt: skip

    name = f"eu/{chosen}"
    cluster.kill(name)  # and its disk is lost with it
    shutil.rmtree(cluster.data_dir(name))
    cluster.start([name])
    region.in_sync(1, 2, 3)
    voters = region.until("three vote", lambda view: view["quorum"]["voters"] == [1, 2, 3])
    assert not any(row["draining"] for row in voters["nodes"])
    ends = {
        row["log_end_offset"]
        for node in (1, 2, 3)
        for row in region.run("cluster", "partitions", "--topic", TOPIC, "--node", str(node))
    }
    assert ends == {200}

    region.until("it is let in", lambda view: not view["nodes"][chosen - 1]["fenced"])
    assert "is heard" in region.refused("cluster", "node", "remove", str(chosen))
    cluster.stop([name])
    left = sorted({1, 2, 3} - {chosen})
    region.until("it is not heard", lambda view: view["nodes"][chosen - 1]["fenced"])
    region.in_sync(*left)
    region.run("cluster", "node", "remove", str(chosen))
    assert [row["node_id"] for row in region.run("cluster", "node", "list")] == left
    assert region.run("cluster", "quorum")["voters"] == left
    region.write(200, 100)
    assert region.read() == list(range(300))
    shutil.rmtree(cluster.data_dir(name))  # and a new one comes in its place
    cluster.start([name])
    region.in_sync(1, 2, 3)
    assert {
        row["log_end_offset"]
        for row in region.run("cluster", "partitions", "--topic", TOPIC, "--node", str(chosen))
    } == {300}


def first_segment(cluster: LocalCluster, node_id: int) -> Path:
    """Return the first file of the topic's log at a node; others are behind it."""
    for described in cluster.data_dir(f"eu/{node_id}").glob("logs/*/topic.json"):
        if json.loads(described.read_text())["name"] == TOPIC:
            first, *others = sorted(described.parent.glob("0/*.log"))
            assert others
            return first
    raise AssertionError("the topic has no folder")


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        held = file.read(1)[0]
        file.seek(at)
        file.write(bytes([held ^ 1]))


def test_damage_of_the_leader_and_a_log_that_does_not_open_are_mended_from_the_other_nodes(
    cluster: LocalCluster,
) -> None:
    region = region_of(cluster.plan.nodes)
    region.in_sync(1, 2, 3)
    topic = NewTopic(TOPIC, 1, 3, config={"segment.bytes": "4096"})
    admin = AdminClient({"bootstrap.servers": region.bootstrap})
    admin.create_topics([topic])[TOPIC].result(WITHIN_S)
    for first in range(0, 1_000, 100):
        region.write(first, 100)

    leader = region.in_sync(1, 2, 3)["leadership"]["leader"]
    path = first_segment(cluster, leader)
    sound = path.read_bytes()
    flip(path, len(sound) // 2)
    region.read()  # whoever meets the damage is told, and the node looks at once: else in its next pass
    region.until(
        "another one leads", lambda view: view["leadership"]["leader"] not in {None, leader}
    )
    moved = region.in_sync(1, 2, 3)["leadership"]["leader"]
    wait_until("the bytes are as they were", WITHIN_S, lambda: path.read_bytes() == sound)
    wait_until("it is ready", WITHIN_S, lambda: region.ready(region.https[leader - 1]))
    assert region.read() == list(range(1_000))

    name = f"eu/{leader}"
    cluster.kill(name)
    path.write_bytes(sound[: len(sound) // 2])
    region.write(1_000, 20)
    cluster.start([name])
    region.in_sync(1, 2, 3)
    assert path.read_bytes() == sound
    kept = path.parent.with_name("0.damaged") / path.name
    assert kept.read_bytes() == sound[: len(sound) // 2]
    assert region.status()["leadership"]["leader"] == moved
    assert region.read() == list(range(1_020))

    cluster.stop([name])  # cleanly: nothing but names and sizes speaks of what goes then
    second = sorted(path.parent.glob("*.log"))[1]
    sound = second.read_bytes()
    second.unlink()
    cluster.start([name])
    region.in_sync(1, 2, 3)
    assert second.read_bytes() == sound
    assert not (path.parent.with_name("0.1.damaged") / second.name).exists()
    assert (path.parent.with_name("0.1.damaged") / path.name).exists()


def test_the_leading_node_is_stopped_cleanly_and_the_next_one_goes_on(
    cluster: LocalCluster,
) -> None:
    region = region_of(cluster.plan.nodes)
    region.in_sync(1, 2, 3)
    region.write(0, 10)
    leader = region.status()["leadership"]["leader"]
    cluster.signal(f"eu/{leader}", signal.SIGTERM)
    region.write(10, 10)
    region.until(
        "another one leads", lambda view: view["leadership"]["leader"] not in {None, leader}
    )
    region.until("and the quorum", lambda view: view["quorum"]["leader"] not in {None, leader})
    wait_until("its end", WITHIN_S, lambda: f"eu/{leader}" in cluster.dead())
    cluster.start([f"eu/{leader}"])
    region.in_sync(1, 2, 3)
    assert region.read() == list(range(20))
    acting = region.run("region", "status")["regions"][0]
    assert acting["acting"]


def test_a_region_of_one_node_grows_to_three_with_what_it_holds(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path / "plan", region_count=1, node_count=3, port=0, new_cluster_id=CLUSTER_ID
    ) as planned, ExitStack() as running:  # fmt: skip
        places = planned.plan.nodes
        nodes = [place.as_config(None) for place in places]

        def config(at: int, *, several: bool) -> Path:
            region = {"name": "eu", "ordinal": 0, **({"nodes": nodes} if several else nodes[at])}
            path = tmp_path / f"{at}.json"
            path.write_text(
                json.dumps(
                    {"region": "eu", "cluster_id": str(CLUSTER_ID), "data_dir": str(tmp_path / str(at)),
                     "initial_primary_region": "eu", "auto_create_topics": True, "regions": [region],
                     **({"node_id": nodes[at]["node_id"]} if several else {})}
                )
            )  # fmt: skip
            return path

        def start(at: int, *, several: bool) -> "subprocess.Popen[str]":
            log = running.enter_context((tmp_path / f"{at}.log").open("a"))
            process = subprocess.Popen(
                [*TIDEMARK, "broker", "--config", str(config(at, several=several))],
                stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
            running.callback(_end, process)
            return process

        born = run_tidemark(
            "init", "--config", str(config(0, several=False)), "--no-history-elsewhere"
        )
        assert born.returncode == 0, born.stderr
        one = start(0, several=False)
        _until_ready(one)
        region = region_of(places)
        region.write(0, 50)
        assert region.run("cluster", "upgrade")["finalized"] == SUPPORTED[-1]
        one.send_signal(signal.SIGTERM)
        assert one.wait(WITHIN_S) == 0
        _until_ready(start(0, several=True))
        region.in_sync(1)
        region.write(50, 25)  # INV-MH7: nobody waits for copies that were never there
        for process in [start(at, several=True) for at in (1, 2)]:
            _until_ready(process)
        region.in_sync(1, 2, 3)
        region.write(75, 25)
        region.until("three vote", lambda view: view["quorum"]["voters"] == [1, 2, 3])
        told = region.run("cluster", "upgrade", "--finalize")
        assert (told["changed"], told["finalized"]) == (False, SUPPORTED[-1])
        assert region.read() == list(range(100))


def _until_ready(process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith("ready")


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()
