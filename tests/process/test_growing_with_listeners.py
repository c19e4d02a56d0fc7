"""A region of one real node that has a further listener gets a second one: clients by the listener hear of it once the files say where it is met."""

import json
import signal
import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient

from region_broker.cli.main import main
from region_broker.workbench.cluster_plan import free_ports
from region_broker.workbench.local_cluster import LocalCluster
from tests.process.client_fixture import CALL_S
from tests.process.test_cluster_operations import _until_ready, region_of
from tests.process.test_growing import CLUSTER_ID, start

pytestmark = [pytest.mark.process, pytest.mark.slow]


def told_at(bootstrap: str) -> dict[int, str]:
    brokers = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0}).list_topics(timeout=CALL_S).brokers.values()  # fmt: skip
    return {broker.id: f"{broker.host}:{broker.port}" for broker in brokers}


def said_by_doctor(path: Path) -> Any:
    done = CliRunner().invoke(main, ["doctor", "--config", str(path), "-o", "json"])
    return next(row for row in json.loads(done.stdout) if row["check"] == "listeners")


def run(*arguments: str) -> Any:
    done = CliRunner().invoke(main, list(arguments))
    assert done.exit_code == 0, done.output
    return done


def test_a_node_that_was_added_is_met_by_a_listener_once_the_files_say_where(
    tmp_path: Path,
) -> None:
    with LocalCluster.open(
        tmp_path / "plan", region_count=1, node_count=2, port=0, new_cluster_id=CLUSTER_ID
    ) as planned, ExitStack() as running:  # fmt: skip
        places = planned.plan.nodes
        nodes = [place.as_config(None) for place in places]
        met = {place.node_id: f"localhost:{port}" for place, port in zip(places, free_ports(2, running), strict=True)}  # fmt: skip
        files = [tmp_path / "1.json", tmp_path / "2.json"]

        def listeners(node_id: int) -> Any:
            return [{"name": "OUTSIDE", "bind": met[node_id], "advertised": met[node_id], "security_protocol": "PLAINTEXT"}]  # fmt: skip

        alone = {
            "region": "eu", "cluster_id": str(CLUSTER_ID), "data_dir": str(tmp_path / "1"), "initial_primary_region": "eu",
            "listeners": listeners(1), "regions": [{"name": "eu", "ordinal": 0, **nodes[0]}],
        }  # fmt: skip
        files[0].write_text(json.dumps(alone))
        run("init", "--config", str(files[0]), "--no-history-elsewhere")
        one = start(running, files[0])
        _until_ready(one)
        assert said_by_doctor(files[0])["state"] == "ok"
        added = run(
            "cluster", "node", "add", "2", "--peer", nodes[1]["peer"], "--kafka", nodes[1]["kafka"], "--http", nodes[1]["http"],
            "--data-dir", str(tmp_path / "2"), "--url", places[0].http,
        )  # fmt: skip
        assert "(OUTSIDE) are not told of node 2 yet" in added.stderr
        second = tomllib.loads(added.stdout)
        files[1].write_text(json.dumps(second))
        two = start(running, files[1])
        _until_ready(two)
        region = region_of(places)
        region.in_sync(1, 2)
        assert told_at(met[1]) == {1: met[1]}
        assert told_at(places[0].bootstrap) == {place.node_id: place.bootstrap for place in places}
        row = said_by_doctor(files[0])
        assert (row["state"], row["found"]) == ("optional", "OUTSIDE does not reach node 2")
        assert "by listener OUTSIDE are not told of node 2: " in (tmp_path / "1.log").read_text()
        files[1].write_text(json.dumps(second | {"listeners": listeners(2)}))
        both = [nodes[0], {**nodes[1], "advertised": {"OUTSIDE": met[2]}}]
        regions = [{"name": "eu", "ordinal": 0, "nodes": both}]
        files[0].write_text(json.dumps(alone | {"node_id": 1, "regions": regions}))
        for process in (two, one):
            process.send_signal(signal.SIGTERM)
            process.wait(CALL_S)
        for process in [start(running, path) for path in files]:
            _until_ready(process)
        region.in_sync(1, 2)
        assert told_at(met[1]) == told_at(met[2]) == met
        assert said_by_doctor(files[0])["state"] == "ok"
