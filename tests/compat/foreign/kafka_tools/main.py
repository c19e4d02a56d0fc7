"""Kafka's own command line tools: main.py JARS HOST:PORT PREFIX [CHECK ...].

What the scripts of Kafka's `bin` start, started without them. Prints `ok|FAIL <tab> check <tab> reason` a line.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

TOOL_S: Final = 90
TOOLS: Final = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "configs": "kafka.admin.ConfigCommand",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "e2e-latency": "org.apache.kafka.tools.EndToEndLatency",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}


class Tools:
    """Runs the tools of `jars` against `bootstrap`; topics and groups begin with `prefix`."""

    def __init__(self, jars: str, bootstrap: str, prefix: str) -> None:
        """Nothing is run yet."""
        self._java = ("java", "-Xmx256m", "-cp", f"{jars}/*")
        self.bootstrap = bootstrap
        self.prefix = prefix

    def run(self, tool: str, *arguments: str, given: str = "") -> str:
        """Return what a tool printed; raises `AssertionError` where it fails."""
        command = [*self._java, TOOLS[tool], *arguments]
        done = subprocess.run(
            command, input=given, timeout=TOOL_S, text=True, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if os.environ.get("TRACES") == "true":
            print(done.stdout, file=sys.stderr)
        if done.returncode != 0:
            raise AssertionError(f"{tool} ended with {done.returncode}: {done.stdout[-400:]}")
        return done.stdout

    def ask(self, tool: str, *arguments: str, given: str = "") -> str:
        """Run a tool that takes `--bootstrap-server`."""
        return self.run(tool, "--bootstrap-server", self.bootstrap, *arguments, given=given)

    def topic(self, name: str, *arguments: str) -> str:
        """Create a topic of four partitions with all replicas that there are; return its name."""
        topic = f"{self.prefix}-tools-{name}"
        self.ask("topics", "--create", "--topic", topic, "--partitions", "4", *arguments)
        return topic

    def filled(self, name: str, count: int = 100) -> str:
        """Create a topic with `count` records in it; return its name."""
        topic = self.topic(name)
        lines = "".join(f"key-{n}:value-{n}\n" for n in range(count))
        keyed = ("--property", "parse.key=true", "--property", "key.separator=:")
        self.ask("console-producer", "--topic", topic, *keyed, given=lines)
        return topic

    def read(self, topic: str, count: int, *arguments: str) -> list[str]:
        """Return the values that the console's consumer reads from the beginning."""
        end = ("--max-messages", str(count), "--timeout-ms", "30000")
        printed = self.ask("console-consumer", "--topic", topic, "--from-beginning", *end, *arguments)  # fmt: skip
        return sorted(line for line in printed.splitlines() if line.startswith("value-"))


def has(text: str, *wanted: str) -> None:
    """Raise `AssertionError` where one of `wanted` is not in `text`."""
    for each in wanted:
        assert each in text, f"no {each!r} in: {text[-400:]}"


def _values(count: int) -> list[str]:
    return sorted(f"value-{n}" for n in range(count))


def topics(tools: Tools) -> None:
    """Create, list, describe, grow and delete."""
    topic = tools.topic("topics", "--config", "retention.ms=86400000")
    has(tools.ask("topics", "--list"), topic)
    has(tools.ask("topics", "--describe", "--topic", topic), "PartitionCount: 4", "retention.ms=86400000")  # fmt: skip
    tools.ask("topics", "--alter", "--topic", topic, "--partitions", "6")
    has(tools.ask("topics", "--describe", "--topic", topic), "PartitionCount: 6")
    assert topic not in tools.ask("topics", "--describe", "--under-replicated-partitions")
    tools.ask("topics", "--delete", "--topic", topic)
    assert topic not in tools.ask("topics", "--list")


def configs(tools: Tools) -> None:
    """Alter and describe the configs of a topic, and of all nodes."""
    topic = tools.topic("configs")
    of_topic = ("--entity-type", "topics", "--entity-name", topic)
    tools.ask("configs", "--alter", *of_topic, "--add-config", "retention.ms=3600000")
    has(tools.ask("configs", "--describe", *of_topic), "retention.ms=3600000")
    tools.ask("configs", "--alter", *of_topic, "--delete-config", "retention.ms")
    assert "retention.ms=3600000" not in tools.ask("configs", "--describe", *of_topic)
    of_nodes = ("--entity-type", "brokers", "--entity-default")
    tools.ask("configs", "--alter", *of_nodes, "--add-config", "max.connections.per.ip=900")
    has(tools.ask("configs", "--describe", *of_nodes), "max.connections.per.ip=900")
    tools.ask("configs", "--alter", *of_nodes, "--delete-config", "max.connections.per.ip")


def quotas(tools: Tools) -> None:
    """Set, describe and remove quotas of a client id, a user, both, their defaults, and an address; a producer is throttled."""
    client, user = f"{tools.prefix}-perf", f"{tools.prefix}-user"
    for entity, limit in (
        (("--entity-type", "clients", "--entity-name", client), "producer_byte_rate=100000"),
        (("--entity-type", "users", "--entity-name", user), "request_percentage=50.5"),
        (("--entity-type", "users", "--entity-name", user, "--entity-type", "clients", "--entity-default"), "consumer_byte_rate=2000000"),
        (("--entity-type", "ips", "--entity-name", "10.99.99.99"), "connection_creation_rate=5"),
    ):  # fmt: skip
        tools.ask("configs", "--alter", *entity, "--add-config", limit)
        key, _, value = limit.partition("=")
        has(tools.ask("configs", "--describe", *entity), f"{key}={float(value)}")
        if "clients" not in entity[1]:
            tools.ask("configs", "--alter", *entity, "--delete-config", key)
            assert key not in tools.ask("configs", "--describe", *entity)
    topic = tools.topic("quotas")
    perf = ("--topic", topic, "--num-records", "500", "--record-size", "1000", "--throughput", "-1",
            "--producer-props", f"bootstrap.servers={tools.bootstrap}", f"client.id={client}", "--print-metrics")  # fmt: skip
    told = tools.run("producer-perf-test", *perf)
    waits = [line for line in told.splitlines() if "produce-throttle-time-max" in line]
    assert waits, told[-400:]
    assert any(float(line.rsplit(":", 1)[1]) > 100 for line in waits), waits
    of_client = ("--entity-type", "clients", "--entity-name", client)
    tools.ask("configs", "--alter", *of_client, "--delete-config", "producer_byte_rate")


def console(tools: Tools) -> None:
    """Write lines, and read them from the beginning, with both isolation levels."""
    topic = tools.filled("console")
    assert tools.read(topic, 100) == _values(100)
    assert tools.read(topic, 100, "--isolation-level", "read_committed") == _values(100)


def _groups(tools: Tools, protocol: str) -> None:
    topic, group = tools.filled(f"groups-{protocol}"), f"{tools.prefix}-tools-{protocol}"
    property_of = ("--consumer-property", f"group.protocol={protocol}")
    assert len(tools.read(topic, 100, "--group", group, *property_of)) == 100
    has(tools.ask("consumer-groups", "--list"), group)
    has(tools.ask("groups", "--list"), group)
    described = tools.ask("consumer-groups", "--describe", "--group", group)
    rows = [line.split() for line in described.splitlines() if topic in line]
    assert sum(int(row[3]) for row in rows) == 100, described[-400:]
    has(tools.ask("consumer-groups", "--describe", "--group", group, "--state"), group)
    reset = ("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute")
    tools.ask("consumer-groups", *reset)
    assert len(tools.read(topic, 100, "--group", group, *property_of)) == 100
    tools.ask("consumer-groups", "--delete-offsets", "--group", group, "--topic", topic)
    tools.ask("consumer-groups", "--delete", "--group", group)
    assert group not in tools.ask("consumer-groups", "--list")


def classic_groups(tools: Tools) -> None:
    """Read in a classic group; list, describe, reset and delete it."""
    _groups(tools, "classic")


def new_groups(tools: Tools) -> None:
    """The same with `group.protocol=consumer`."""
    _groups(tools, "consumer")


def offsets(tools: Tools) -> None:
    """Ask for ends, delete records, ask for beginnings."""
    topic = tools.filled("offsets")

    def total(time: str) -> int:
        told = tools.ask("get-offsets", "--topic", topic, "--time", time)
        return sum(int(line.rsplit(":", 1)[1]) for line in told.splitlines() if line.startswith(topic))  # fmt: skip

    assert (total("-2"), total("-1")) == (0, 100)
    order = Path(tempfile.gettempdir()) / f"{topic}.json"
    rows = ",".join(f'{{"topic":"{topic}","partition":{n},"offset":-1}}' for n in range(4))
    order.write_text(f'{{"partitions":[{rows}],"version":1}}')
    try:
        has(tools.ask("delete-records", "--offset-json-file", str(order)), "low_watermark")
        assert total("-2") == 100
    finally:
        order.unlink()


def performance(tools: Tools) -> None:
    """Write with idempotence and in transactions, read all of it."""
    topic = tools.topic("performance")
    rest = ("--record-size", "100", "--throughput", "-1", "--topic", topic)
    to = ("--producer-props", f"bootstrap.servers={tools.bootstrap}", "acks=all")
    has(tools.run("producer-perf-test", "--num-records", "50000", *rest, *to), "50000 records sent")
    transactional = ("--transaction-duration-ms", "100", "--transactional-id", topic)
    has(tools.run("producer-perf-test", "--num-records", "20000", *rest, *to, *transactional), "20000 records sent")  # fmt: skip
    told = tools.ask("consumer-perf-test", "--topic", topic, "--messages", "70000", "--timeout", "30000")  # fmt: skip
    counts = [line.split(", ")[4] for line in told.splitlines() if line[:2].isdigit()]
    assert counts, told[-400:]
    assert int(counts[-1]) >= 70_000, told[-400:]


def latency(tools: Tools) -> None:
    """From end to end."""
    topic = tools.topic("latency")
    has(tools.run("e2e-latency", tools.bootstrap, topic, "200", "all", "100"), "Avg latency")


def transactions(tools: Tools) -> None:
    """List and describe transactions, describe the producers of a partition, find those that hang."""
    topic = tools.topic("transactions")
    props = ("--producer-props", f"bootstrap.servers={tools.bootstrap}", "acks=all")
    tools.run(
        "producer-perf-test", "--num-records", "1000", "--record-size", "100", "--throughput", "-1",
        "--topic", topic, *props, "--transaction-duration-ms", "50", "--transactional-id", topic,
    )  # fmt: skip
    has(tools.ask("transactions", "list"), topic)
    has(tools.ask("transactions", "describe", "--transactional-id", topic), "CompleteCommit")
    told = tools.ask("transactions", "describe-producers", "--topic", topic, "--partition", "0")
    has(told, "ProducerId")
    tools.ask("transactions", "find-hanging", "--topic", topic)


def cluster(tools: Tools) -> None:
    """Id and endpoints, versions of APIs of all nodes, log folders, features, quorum."""
    has(tools.run("cluster", "cluster-id", "--bootstrap-server", tools.bootstrap), "Cluster ID")
    tools.run("cluster", "list-endpoints", "--bootstrap-server", tools.bootstrap)
    versions = tools.ask("broker-api-versions")
    has(versions, "Produce(0)")
    assert "ERROR" not in versions, versions[-400:]
    has(tools.ask("log-dirs", "--describe"), '"error":null')
    has(tools.ask("features", "describe"), "transaction.version")


def quorum(tools: Tools) -> None:
    """Status and replication of the quorum."""
    has(tools.ask("metadata-quorum", "describe", "--status"), "LeaderId")
    has(tools.ask("metadata-quorum", "describe", "--replication"), "Leader")


def leaders(tools: Tools) -> None:
    """Elect preferred leaders, list reassignments."""
    topic = tools.topic("leaders")
    elected = ("--election-type", "preferred", "--topic", topic, "--partition", "0")
    tools.ask("leader-election", *elected)
    has(tools.ask("reassign-partitions", "--list"), "No partition reassignments found")


def verifiable(tools: Tools) -> None:
    """Verifiable producer and consumer."""
    topic = tools.topic("verifiable")
    sent = tools.ask("verifiable-producer", "--topic", topic, "--max-messages", "500")
    assert sent.count('"name":"producer_send_success"') == 500, sent[-400:]
    group = ("--group-id", f"{tools.prefix}-tools-verifiable", "--max-messages", "500")
    read = tools.ask("verifiable-consumer", "--topic", topic, "--reset-policy", "earliest", *group)
    has(read, '"name":"shutdown_complete"', '"name":"offsets_committed"')


CHECKS: Final[dict[str, Callable[[Tools], None]]] = {
    "topics: create, list, describe, alter, delete": topics,
    "configs of topics and of all nodes": configs,
    "quotas": quotas,
    "console producer and consumer": console,
    "consumer-groups, group.protocol=classic": classic_groups,
    "consumer-groups, group.protocol=consumer": new_groups,
    "get-offsets, delete-records": offsets,
    "producer-perf-test, also with transactions; consumer-perf-test": performance,
    "end-to-end latency": latency,
    "transactions: list, describe, describe-producers, find-hanging": transactions,
    "cluster, broker-api-versions, log-dirs, features": cluster,
    "metadata-quorum": quorum,
    "leader-election, reassign-partitions --list": leaders,
    "verifiable producer and consumer": verifiable,
}


def main(arguments: list[str]) -> int:
    """Run all checks, or some; returns the exit code."""
    jars, bootstrap, prefix, *wanted = arguments
    tools = Tools(jars, bootstrap, prefix)
    failed = False
    for name, check in CHECKS.items():
        if wanted and name not in wanted:
            continue
        try:
            check(tools)
        except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
            failed = True
            print(f"FAIL\t{name}\t{' '.join(str(error).split())[:400]}", flush=True)
        else:
            print(f"ok\t{name}\t", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
