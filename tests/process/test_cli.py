"""The commands against `tidemark dev`: what they print, how they end, before and after a failover."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from region_broker.cli.demo.stage import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

TIDEMARK = (sys.executable, "-m", "region_broker")
TIMEOUT_S = 60
DEAD = "127.0.0.1:1"


class Dev:
    """A running `tidemark dev`."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*TIDEMARK, "dev", "--port", "0", "-o", "json", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline()
        assert self.line, self.process.communicate(timeout=TIMEOUT_S)
        self.regions: list[dict[str, Any]] = json.loads(self.line)["regions"]

    @property
    def bootstrap(self) -> str:
        return str(self.regions[0]["bootstrap"])

    @property
    def url(self) -> str:
        return ",".join(region["http"] for region in self.regions)

    @property
    def pids(self) -> list[int]:
        return [pid for region in self.regions for pid in region["pids"]]

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Signal it; return exit code, the rest of stdout, stderr."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, out, err


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    running = Dev("--data-dir", str(tmp_path / "cluster"))
    yield running
    if running.process.poll() is None:
        running.stop()


def run(*arguments: str, stdin: str = "", code: int = 0, **environment: str) -> str:
    """Run a command, check its exit code, and return what it printed (stderr where it failed)."""
    done = subprocess.run(
        [*TIDEMARK, *arguments], input=stdin, capture_output=True, text=True, check=False,
        timeout=TIMEOUT_S, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def document(*arguments: str, url: str = "") -> Any:
    environment = {"TIDEMARK_URL": url} if url else {}
    return json.loads(run(*arguments, "-o", "json", code=0, **environment))


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_every_command_against_a_live_pair_before_and_after_a_failover(dev: Dev) -> None:
    where = ("--bootstrap", dev.bootstrap)
    run("topic", "create", "orders", "--partitions", "2", "--dry-run", *where)
    assert document("topic", "list", *where) == []
    run("topic", "create", "orders", "--partitions", "2", *where)
    assert document("topic", "list", *where) == [{"topic": "orders", "partitions": 2}]
    assert len(document("topic", "list", "--internal", *where)) == 4
    run("produce", "orders", "--key-separator", ":", *where, stdin="a:1\nb:2\nc:3\n")
    run("produce", "orders", "--transactional-id", "import", *where, stdin="4\n5\n")
    assert sorted(run("consume", "orders", *where).split()) == ["1", "2", "3", "4", "5"]
    assert len(run("consume", "orders", "--group", "g", *where).split()) == 5
    assert run("consume", "orders", "--group", "g", *where) == ""
    assert "a\t1\n" in run("consume", "orders", "--offsets", *where)
    (row,) = document("group", "list", *where)
    assert row["group"] == "g"
    rows = document("group", "describe", "g", *where)
    assert sum(each["lag"] for each in rows) <= 1  # the marker behind the last record
    rows = document("topic", "describe", "orders", *where)
    assert [each["partition"] for each in rows] == [0, 1]
    check_transactions(dev, region_epoch=8)
    fail_over(dev, rows)
    where = ("--bootstrap", str(dev.regions[1]["bootstrap"]))
    run("produce", "orders", "--transactional-id", "import", *where, stdin="6\n")
    check_transactions(dev, region_epoch=17)
    run("topic", "delete", "orders", "--yes", *where)
    assert document("topic", "list", *where) == []
    check_errors(where)


def check_abort(dev: Dev, bootstrap: str) -> None:
    """A transaction that its producer leaves open is found and ended by an operator."""
    run("txn", "abort", "import", "--url", dev.url, "--yes", code=3)  # known, and nothing is open
    run("txn", "abort", "--topic", "orders", "--url", dev.url, code=2)
    holder = Producer({"bootstrap.servers": bootstrap, "transactional.id": "stuck"})
    holder.init_transactions(20)
    holder.begin_transaction()
    holder.produce("orders", b"held", partition=0)
    assert holder.flush(20) == 0
    (row,) = document("txn", "list", "--state", "ongoing", "--pattern", "stu.k", "--url", dev.url)
    assert row["partitions"] == ["orders-0"]
    assert document("txn", "list", "--longer-than", "3600", "--url", dev.url) == []
    (opened,) = document("txn", "list", "--open", "--url", dev.url)
    assert (opened["topic"], opened["partition"], opened["transactional_id"]) == (
        "orders",
        0,
        "stuck",
    )
    place = ("--topic", "orders", "--partition", "0", "--start-offset", str(opened["start_offset"]))
    assert document("txn", "abort", *place, "--dry-run", "--url", dev.url) == opened
    assert document("txn", "abort", *place, "--yes", "--url", dev.url)["aborted"] is True
    assert document("txn", "list", "--open", "--url", dev.url) == []
    assert document("txn", "describe", "stuck", "--url", dev.url)["state"] == "complete_abort"
    run("txn", "abort", *place, "--yes", "--url", dev.url, code=3)
    with pytest.raises(KafkaException) as fenced:
        holder.commit_transaction(20)
    assert fenced.value.args[0].fatal()


def check_transactions(dev: Dev, region_epoch: int) -> None:
    acting = dev.regions[0 if region_epoch == 8 else 1]
    (row,) = document("txn", "list", "--pattern", "import", "--url", dev.url)
    assert (row["transactional_id"], row["region_epoch"]) == ("import", region_epoch)
    found = document("txn", "describe", "import", url=dev.url)
    assert found["producer_id"] == row["producer_id"]
    run("txn", "describe", "nobody", "--url", dev.url, code=3)
    check_abort(dev, str(acting["bootstrap"]))
    listed = run("consume", "orders", "--offsets", "--bootstrap", str(acting["bootstrap"]))
    (where,) = [line.split("\t")[0] for line in listed.splitlines() if line.endswith("\t4")]
    partition, _, offset = where.partition("@")
    verdict = ("txn", "verdict", "orders", partition)
    for epoch in ((), ("--region-epoch", "8")):
        assert document(*verdict, offset, *epoch, "--url", dev.url)["verdict"] == "committed"
    run("txn", "verdict", "none", "0", "0", "--url", dev.url, code=3)
    late = (*verdict, "100000", "--region-epoch", "8", "--url", dev.url)
    if region_epoch == 8:
        assert "no record was written" in run(*late, code=3)
    else:
        assert document(*late)["verdict"] == "lost"


def fail_over(dev: Dev, rows: Sequence[Any]) -> None:
    mirror = ("--bootstrap", str(dev.regions[1]["bootstrap"]))

    def reached() -> bool:
        return len(run("consume", "orders", *mirror).split()) == 5

    assert len(rows) == 2
    wait_until("the mirror shows everything", TIMEOUT_S, reached)
    (home,) = dev.regions[0]["pids"]
    os.kill(home, signal.SIGKILL)
    assert dev.process.stderr is not None
    assert "region eu was ended by signal 9" in dev.process.stderr.readline()
    assert "no region acts" in run("txn", "list", "--url", dev.url, code=1)
    status = document("region", "status", "--url", dev.url)
    assert [each.get("role", "?") for each in status["regions"]] == ["?", "mirror"]
    run("region", "failover", "--to", "mars", "--yes", "--url", dev.url, code=3)
    done = document("region", "failover", "--to", "us", "--yes", "--url", dev.url)
    assert (done["status"], done["region_epoch"]) == ("succeeded", 17)


def check_errors(where: tuple[str, str]) -> None:
    assert "partitions" in run("topic", "create", "t", "--partitions", "0", *where, code=2)
    assert "retention.sm" in run(
        "topic", "create", "t", "--config", "retention.sm=1", *where, code=2
    )
    assert "KEY=VALUE" in run("topic", "create", "t", "--config", "x", *where, code=2)
    assert "name" in run("topic", "create", "a b", *where, code=2).lower()
    run("topic", "create", "twice", *where)
    run("topic", "create", "twice", *where, code=1)
    for words in (
        ("topic", "describe", "none"), ("topic", "delete", "none", "--yes"),
        ("group", "describe", "none"), ("consume", "none"), ("produce", "none"),
    ):  # fmt: skip
        assert "none" in run(*words, *where, code=3)


def test_nobody_listens() -> None:
    for words in (("topic", "list"), ("consume", "t"), ("produce", "t"), ("group", "list")):
        text = run(*words, "--bootstrap", DEAD, code=1)
        assert "no broker answers" in text
        assert "tidemark dev" in text
        assert "not host:port" in run(*words, "--bootstrap", "nonsense", code=2)
    for words in (("txn", "list"), ("region", "status")):
        assert "TIDEMARK_URL" in run(*words, "--url", f"http://{DEAD}", code=1)
        run(*words, "--url", "nonsense", code=2)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_dev_announces_stops_cleanly_and_comes_up_again(tmp_path: Path, number: int) -> None:
    folder = str(tmp_path)
    first = Dev("--regions", "1", "--data-dir", folder)
    assert set(first.regions[0]) == {"name", "bootstrap", "http", "pids"}
    assert first.line.count("\n") == 1
    run("topic", "create", "kept", "--bootstrap", first.bootstrap)
    run("produce", "kept", "--bootstrap", first.bootstrap, stdin="x\n")
    code, out, err = first.stop(number)
    assert (code, out, err) == (0, "", "stopping\n")
    assert not any(map(alive, first.pids))
    again = Dev("--regions", "1", "--data-dir", folder)
    assert run("consume", "kept", "--bootstrap", again.bootstrap) == "x\n"
    assert again.stop()[0] == 0


def test_regions_end_when_dev_is_killed(tmp_path: Path) -> None:
    running = Dev("--regions", "2", "--data-dir", str(tmp_path))
    running.process.kill()
    running.process.communicate(timeout=TIMEOUT_S)
    wait_until("the regions end", TIMEOUT_S, lambda: not any(map(alive, running.pids)))


def test_dev_says_why_it_cannot_start(tmp_path: Path) -> None:
    assert "1<=x<=8" in run("dev", "--regions", "9", code=2)
    assert "no room" in run("dev", "--port", "65530", code=2)
    (tmp_path / "one").mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        text = run("dev", "--regions", "1", "--port", port, "--data-dir", f"{tmp_path}/one", code=1)
    assert f"127.0.0.1:{port}" in text
    assert "cannot be bound" in text
    assert "holds a cluster of 1 regions" in run(
        "dev", "--regions", "2", "--port", "0", "--data-dir", f"{tmp_path}/one", code=2
    )
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "cluster.json").write_text("{}")
    assert "does not describe" in run("dev", "--data-dir", f"{tmp_path}/bad", code=2)
