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
from confluent_kafka import Consumer, KafkaException, Producer

from region_broker.workbench.stage import wait_until
from tests.fixtures.tidemark_forks import run_tidemark

pytestmark = [pytest.mark.process, pytest.mark.slow]

TIDEMARK = (sys.executable, "-m", "region_broker")
TIMEOUT_S = 60
DEAD = "127.0.0.1:1"


class Dev:
    """A running `tidemark dev`."""

    def __init__(self, *arguments: str, port: int | None = 0) -> None:
        given = () if port is None else ("--port", str(port))
        self.process = subprocess.Popen(
            [*TIDEMARK, "dev", *given, "-o", "json", *arguments],
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


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """Two regions for tests that end none of them, with topics of their own."""
    running = Dev("--data-dir", str(tmp_path_factory.mktemp("pair") / "cluster"))
    yield running
    running.stop()


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    """One region for tests with topics of their own, stopped whatever becomes of them."""
    running = Dev("--regions", "1", "--data-dir", str(tmp_path_factory.mktemp("lone") / "cluster"))
    yield running
    if running.process.poll() is None:
        running.stop()


def run(*arguments: str, stdin: str = "", code: int = 0, **environment: str) -> str:
    """Run a command, check its exit code, and return what it printed (stderr where it failed)."""
    done = run_tidemark(*arguments, stdin=stdin, environment=environment)
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


def test_each_node_is_announced_with_its_region(lone: Dev) -> None:
    (region,) = lone.regions
    (pid,) = region["pids"]
    assert region["nodes"] == [
        {"id": 1, "kafka": region["bootstrap"], "http": region["http"], "pid": pid}
    ]
    assert list(region) == ["name", "bootstrap", "http", "pids", "nodes"]


def test_every_command_against_a_live_pair_before_and_after_a_failover(dev: Dev) -> None:
    where = ("--bootstrap", dev.bootstrap)
    run("topic", "create", "orders", "--partitions", "2", "--dry-run", *where)
    assert document("topic", "list", *where) == []
    run("topic", "create", "orders", "--partitions", "2", *where)
    (listed,) = document("topic", "list", *where)
    assert listed == {"topic": "orders", "partitions": 2, "acting": True}
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
    # The marker behind the last record; the transaction may have written to either partition, or to both.
    assert all(each["lag"] <= 1 for each in rows)
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
        anothers = ("--region-epoch", "8", "--producer-id", "5", "--producer-epoch", "0")
        told = run(*verdict, offset, *anothers, "--url", dev.url, code=3)
        assert "holds nothing of producer id 5" in told
    else:
        assert document(*late)["verdict"] == "lost"


def fail_over(dev: Dev, rows: Sequence[Any]) -> None:
    mirror = ("--bootstrap", str(dev.regions[1]["bootstrap"]))

    def reached() -> bool:
        return len(run("consume", "orders", *mirror).split()) == 5

    assert len(rows) == 2
    wait_until("the mirror shows everything", TIMEOUT_S, reached)
    (listed,) = document("topic", "list", *mirror)
    assert listed["acting"] is False
    told = subprocess.run(
        [*TIDEMARK, "topic", "describe", "orders", *mirror],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "whose region does not act: it shows what it has reached" in told.stderr
    (primary,) = dev.regions[0]["pids"]
    os.kill(primary, signal.SIGKILL)
    assert dev.process.stderr is not None
    ended = dev.process.stderr.readline()
    assert "region eu was ended by signal 9" in ended
    assert "tidemark broker --config " in ended
    assert "/eu/node.json" in ended
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


def test_topics_are_altered_at_the_primary_and_at_the_mirror(pair: Dev) -> None:
    primary, mirror = (("--bootstrap", str(region["bootstrap"])) for region in pair.regions)

    def setting(where: tuple[str, str], key: str) -> Any:
        rows = document("topic", "describe", "bills", "--configs", *where)
        return next((row["value"], row["default"]) for row in rows if row["config"] == key)

    run("topic", "create", "bills", "--partitions", "2", *primary)
    alter = ("topic", "alter", "bills", "--config", "retention.ms=5000000", "--partitions", "3")
    altered = [
        {"setting": "retention.ms", "before": "604800000 (default)", "after": "5000000"},
        {"setting": "partitions", "before": "2", "after": "3"},
    ]
    assert document(*alter, "--dry-run", *primary) == altered
    assert setting(primary, "retention.ms") == ("604800000", True)
    assert len(document("topic", "describe", "bills", *primary)) == 2
    # What the broker refuses in part is not done in part.
    assert "never shrinks" in run(*alter[:-1], "1", *primary, code=2)
    assert setting(primary, "retention.ms") == ("604800000", True)
    assert document(*alter, *primary) == altered
    assert setting(primary, "retention.ms") == ("5000000", False)
    assert len(document("topic", "describe", "bills", *primary)) == 3
    # The mirror passes it on, and follows.
    wait_until("the mirror follows", TIMEOUT_S, lambda: setting(mirror, "retention.ms")[1] is False)
    back = document("topic", "alter", "bills", "--delete-config", "retention.ms", *mirror)
    assert back == [
        {"setting": "retention.ms", "before": "5000000", "after": "604800000 (default)"}
    ]
    assert setting(primary, "retention.ms") == ("604800000", True)
    assert "not a whole number" in run(
        "topic", "alter", "bills", "--config", "retention.ms=soon", *mirror, code=2
    )
    assert "nothing to change" in run("topic", "alter", "bills", *primary, code=2)
    assert "none" in run("topic", "alter", "none", "--partitions", "2", *primary, code=3)
    ledger = ("topic", "alter", "__tidemarks", "--config", "retention.ms=1", *primary)
    assert "ledger" in run(*ledger, code=1)


def check_refused_while(dev: Dev, protocol: str, bootstrap: str) -> None:
    """Nobody moves the offsets of a group that has members, whatever its protocol is."""
    where = ("--bootstrap", bootstrap)
    member = Consumer(
        {"bootstrap.servers": dev.bootstrap, "group.id": "g", "group.protocol": protocol}
    )
    member.subscribe(["orders"])

    def joined() -> bool:
        member.poll(0.2)
        return bool(member.assignment())

    wait_until("it has joined", TIMEOUT_S, joined)
    reset = ("group", "reset-offsets", "g", "--topic", "orders", "--to-earliest")
    for words in ((*reset, "--execute"), reset, ("group", "delete", "g", "--yes")):
        assert "has members" in run(*words, *where, code=1)
    member.close()


def test_offsets_are_reset_at_the_primary_and_at_the_mirror(pair: Dev) -> None:
    primary, mirror = (("--bootstrap", str(region["bootstrap"])) for region in pair.regions)

    def committed(where: tuple[str, str]) -> dict[int, int]:
        rows = document("group", "describe", "g", *where)
        return {row["partition"]: row["committed"] for row in rows}

    run("topic", "create", "orders", *primary)
    run("produce", "orders", *primary, stdin="a\nb\nc\nd\n")
    assert len(run("consume", "orders", "--group", "g", *primary).split()) == 4
    reset = ("group", "reset-offsets", "g")
    row = {"topic": "orders", "partition": 0, "from": 4, "to": 0, "note": ""}
    assert document(*reset, "--topic", "orders", "--to-earliest", *primary) == [row]
    assert committed(primary) == {0: 4}
    run(*reset, "--topic", "orders", "--to-earliest", "--execute", *primary)
    assert committed(primary) == {0: 0}
    assert len(run("consume", "orders", "--group", "g", *primary).split()) == 4
    wait_until(
        "the mirror shows all",
        TIMEOUT_S,
        lambda: len(run("consume", "orders", *mirror).split()) == 4,
    )
    (row,) = document(*reset, "--all-topics", "--shift-by", "-3", "--execute", *mirror)
    assert (row["from"], row["to"]) == (4, 1)
    assert committed(primary) == committed(mirror) == {0: 1}
    (row,) = document(*reset, "--topic", "orders", "--to-offset", "9", "--execute", *mirror)
    assert (row["to"], row["note"]) == (4, "9 is beyond the log's end")
    (row,) = document(*reset, "--topic", "orders", "--by-duration", "PT1H", *primary)
    assert row["to"] == 0
    (row,) = document(*reset, "--topic", "orders", "--to-datetime", "2100-01-01", *primary)
    assert row["to"] == 4
    for protocol in ("classic", "consumer"):
        for where in (primary, mirror):
            check_refused_while(pair, protocol, where[1])
    for words, code in (
        (("--to-earliest",), 2), (("--topic", "orders"), 2), (("--topic", "none", "--to-latest"), 3),
        (("--topic", "orders:1", "--to-latest"), 3),
        (("--topic", "orders", "--to-latest", "--shift-by", "1"), 2),
        (("--topic", "orders", "--to-latest", "--dry-run", "--execute"), 2),
        (("--topic", "orders", "--by-duration", "1h"), 2),
    ):  # fmt: skip
        run(*reset, *words, *primary, code=code)
    run("group", "reset-offsets", "new", "--topic", "orders", "--shift-by", "1", *primary, code=2)
    run("group", "reset-offsets", "new", "--all-topics", "--to-latest", *primary, code=3)
    assert "1 offsets" in run("group", "delete", "g", "--dry-run", *mirror)
    run("group", "delete", "g", "--yes", *mirror)
    run("group", "delete", "g", "--yes", *primary, code=3)
    run("group", "describe", "g", *primary, code=3)


def refuses_what_is_no_record(where: tuple[str, str], folder: Path, dev: Dev) -> None:
    bad = folder / "bad.ndjson"
    bad.write_text('{"value": "ok"}\nnonsense\n')
    text = run(
        "produce",
        "first",
        "--format",
        "json",
        "--file",
        str(bad),
        "--transactional-id",
        "t",
        *where,
        code=2,
    )
    assert "bad.ndjson, line 2: not JSON" in text
    assert "The transaction was aborted: nothing was written" in text
    assert '"ok"' not in run("consume", "first", "-o", "json", *where)
    for words in (("--partition", "9"), ("--offset", "x"), ("--offset", "1", "--from-time", "2023-01-01"),
                  ("--group", "g", "--offset", "1")):  # fmt: skip
        run("consume", "first", *words, *where, code=2)
    run("produce", "first", "--partition", "9", *where, stdin="x", code=2)
    assert "already exists" in run("topic", "create", "first", *where, code=1)
    run("topic", "create", "large", "--partitions", "1000000", *where, code=2)
    assert "does not speak Kafka" in run(
        "topic", "list", "--bootstrap", dev.url.removeprefix("http://"), code=1
    )


def test_T34_a_deleted_topic_comes_back_from_a_mirror_after_the_primary_is_gone(
    dev: Dev, lone: Dev, tmp_path: Path
) -> None:
    where = ("--bootstrap", dev.bootstrap)
    run("topic", "create", "orders", "--partitions", "2", *where)
    run("produce", "orders", "--key-separator", ":", *where, stdin="a:1\nb:2\nc:3\n")
    run("produce", "orders", "--transactional-id", "import", *where, stdin="4\n5\n")
    aborted = Producer({"bootstrap.servers": dev.bootstrap, "transactional.id": "gives-up"})
    aborted.init_transactions(TIMEOUT_S)
    aborted.begin_transaction()
    aborted.produce("orders", b"never", partition=0)
    assert aborted.flush(TIMEOUT_S) == 0
    aborted.abort_transaction(TIMEOUT_S)
    before = run("consume", "orders", "-o", "json", *where).splitlines()
    run("topic", "delete", "orders", "--yes", *where)

    def kept() -> list[dict[str, Any]]:
        listed = document("topic", "deleted", url=dev.url)["deleted"]
        return sorted(listed, key=lambda each: str(each["region"]))

    wait_until("both regions keep it", TIMEOUT_S, lambda: len(kept()) == 2)
    assert {(each["name"], each["partition_count"]) for each in kept()} == {("orders", 2)}
    assert [each["region"] for each in kept()] == [each["name"] for each in dev.regions]
    folder = kept()[1]["folder"]  # the mirror's
    assert "orders" in run("topic", "deleted", TIDEMARK_URL=dev.url)
    assert dev.stop()[0] == 0  # no node is needed to read it
    file = tmp_path / "orders.ndjson"
    file.write_text(run("log", "export", folder))
    assert sorted(file.read_text().splitlines()) == sorted(before)

    where = ("--bootstrap", lone.bootstrap)  # another cluster
    run("topic", "create", "orders", "--partitions", "2", *where)
    run("produce", "orders", "--format", "json", "--file", str(file), *where)
    back = run("consume", "orders", "-o", "json", *where).splitlines()
    assert sorted(map(without_offset, back)) == sorted(map(without_offset, before))


def without_offset(line: str) -> str:
    record = json.loads(line)
    del record["offset"]
    return json.dumps(record)


def test_records_travel_through_files_whole(tmp_path: Path, lone: Dev) -> None:
    """Key, headers, partition, time and bytes of a record survive consume, a file, and produce."""
    where = ("--bootstrap", lone.bootstrap)
    for topic in ("first", "second"):
        run("topic", "create", topic, "--partitions", "3", *where)
    producer = Producer({"bootstrap.servers": lone.bootstrap})
    for partition, value in ((2, b"\xff\x00"), (0, b"plain"), (0, None), (1, b"line\nbreak")):
        producer.produce(
            "first", value, key=b"\xfek" if partition else b"k", partition=partition,
            headers=[("h", b"1"), ("h", b"\xff"), ("none", None)], timestamp=1_700_000_000_000,
        )  # fmt: skip
    assert producer.flush(TIMEOUT_S) == 0
    copied = run("consume", "first", "-o", "json", *where)
    file = tmp_path / "copied.ndjson"
    file.write_text(copied)
    run("produce", "second", "--format", "json", "--file", str(file), *where)
    again = run("consume", "second", "-o", "json", *where)
    assert sorted(copied.replace('"first"', '"second"').splitlines()) == sorted(again.splitlines())

    run("produce", "second", "--file", str(file), "--file", str(file), "--whole", "--key", "all",
        "--header", "type=x", "--partition", "1", *where)  # fmt: skip
    (line,) = run(
        "consume", "second", "--partition", "1", "--offset", "-1", "-o", "json", *where
    ).splitlines()
    last = json.loads(line)
    assert (last["value"], last["key"], last["headers"]) == (copied, "all", [["type", "x"]])
    assert (
        len(
            run(
                "consume", "first", "--from-time", "2023-11-14T22:13:20Z", "-o", "json", *where
            ).splitlines()
        )
        == 4
    )
    assert run("consume", "first", "--from-time", "2023-11-14T22:13:21Z", *where) == ""
    assert run("consume", "first", "--offset", "latest", *where) == ""
    shown = run(
        "consume",
        "first",
        "--partition",
        "0",
        "--max",
        "1",
        "--times",
        "--offsets",
        "--headers",
        *where,
    )
    assert shown.startswith("2023-11-14T22:13:20.000Z\t0@0\t")
    assert shown.endswith("\tplain\n")
    refuses_what_is_no_record(where, tmp_path, lone)


def test_a_development_cluster_makes_topics_that_clients_ask_for(lone: Dev) -> None:
    producer = Producer({"bootstrap.servers": lone.bootstrap})
    producer.produce("asked-for", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    where = ("--bootstrap", lone.bootstrap)
    assert run("consume", "asked-for", *where) == "x\n"
    run("consume", "looked-for", *where, code=3)
    listed = {row["topic"]: row["partitions"] for row in document("topic", "list", *where)}
    assert listed["asked-for"] == 1
    assert "looked-for" not in listed
    waiting = Consumer({"bootstrap.servers": lone.bootstrap, "group.id": "g", "client.id": "idle"})
    waiting.subscribe(["asked-for"])
    wait_until(
        "the consumer has its partition",
        TIMEOUT_S,
        lambda: bool(waiting.poll(0.1) or waiting.assignment()),
    )
    (row,) = document("group", "describe", "g", *where)
    assert (row["member"], row["topic"], row["committed"], row["lag"]) == (
        "idle",
        "asked-for",
        None,
        None,
    )
    waiting.close()
    follow_and_be_ended(where)


def follow_and_be_ended(where: Sequence[str]) -> None:
    """INV-CCO4: what a member that follows has printed is committed while it reads, and SIGTERM leaves the group."""
    command = [*TIDEMARK, "consume", "asked-for", "--group", "followed", "--follow", *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "x\n"
        wait_until("the record is committed", TIMEOUT_S,
                   lambda: document("group", "describe", "followed", *where)[0]["lag"] == 0)  # fmt: skip
        following.send_signal(signal.SIGTERM)
        assert following.wait(TIMEOUT_S) == 0
    (left,) = document("group", "describe", "followed", *where)
    assert (left["state"], left["committed"]) == ("empty", 1)


def test_nobody_listens() -> None:
    for words in (("topic", "list"), ("consume", "t"), ("produce", "t"), ("group", "list")):
        text = run(*words, "--bootstrap", DEAD, code=1)
        assert "no broker answers" in text
        assert "tidemark dev" in text
        assert "not host:port" in run(*words, "--bootstrap", "nonsense", code=2)
    for words in (("txn", "list"), ("region", "status")):
        assert "TIDEMARK_URL" in run(*words, "--url", f"http://{DEAD}", code=1)
        run(*words, "--url", "nonsense", code=2)


@pytest.mark.parametrize(
    ("number", "port"), [(signal.SIGTERM, 0), (signal.SIGINT, None)], ids=["SIGTERM", "SIGINT"]
)
def test_dev_announces_stops_cleanly_and_comes_up_again(
    tmp_path: Path, number: int, port: int | None
) -> None:
    """With free ports where it is to take them, with those that it had where nothing is said."""
    folder = str(tmp_path)
    first = Dev("--regions", "1", "--data-dir", folder)
    assert set(first.regions[0]) == {"name", "bootstrap", "http", "pids", "nodes"}
    assert first.line.count("\n") == 1
    run("topic", "create", "kept", "--bootstrap", first.bootstrap)
    run("produce", "kept", "--bootstrap", first.bootstrap, stdin="x\n")
    code, out, err = first.stop(number)
    assert (code, out, err) == (0, "", "stopping\n")
    assert not any(map(alive, first.pids))
    again = Dev("--regions", "1", "--data-dir", folder, port=port)
    assert port == 0 or again.bootstrap == first.bootstrap
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
