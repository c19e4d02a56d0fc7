"""The broker under measurement: its address, topics that go away again, and what its process uses.

Every topic that is made is removed again, also when a measurement fails. CPU and memory are read only of processes that
this command started, or was told of.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import BenchFailed, Cost, NodeCost
from region_broker.workbench.credentials import kafka_login
from region_broker.workbench.local_cluster import LocalCluster

CONNECT_TIMEOUT_S: Final = 10.0
TIMEOUT_S: Final = 30.0
IN_SYNC_MIN: Final = 2
"""Of topics with more replicas than this."""
_LOOK_S: Final = 0.05
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def client(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return a quiet client configuration."""
    return {"bootstrap.servers": bootstrap, "log_level": 0, **kafka_login(), **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where to measure; `pids` are the processes of its nodes if they run here, in the order of the nodes' ids; `mark` names
    what we make.

    `replica_count`: of each topic that is made. `mirror` is the bootstrap address of a region that mirrors this one, empty without; `cluster` is what was
    started for this measurement, if anything was.
    """

    bootstrap: str
    pids: Sequence[int]
    mark: str
    name: str
    mirror: str = ""
    cluster: LocalCluster | None = None
    replica_count: int = 1
    login: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What librdkafka is told of TLS there, beyond what this command was given for all that it asks."""
    led: dict[int, int] = field(default_factory=dict, compare=False)
    """By node id: how many partitions of the topic that was made last it leads."""

    def client(self, **more: Any) -> dict[str, Any]:
        """Return a quiet client configuration for this broker."""
        return client(self.bootstrap, **{**self.login, **more})

    @contextlib.contextmanager
    def topic(self, purpose: str, partition_count: int) -> Iterator[str]:
        """Make a topic; it is removed on leaving. Raises `BenchFailed`."""
        name = f"tidemark-bench-{self.mark}-{purpose}"
        admin = AdminClient(self.client())
        configs = (
            {"min.insync.replicas": str(IN_SYNC_MIN)} if self.replica_count > IN_SYNC_MIN else {}
        )
        wanted = NewTopic(name, partition_count, self.replica_count, config=configs)
        try:
            admin.list_topics(timeout=CONNECT_TIMEOUT_S)
            admin.create_topics([wanted])[name].result(TIMEOUT_S)
        except KafkaException as error:
            raise BenchFailed(
                f"topic {name} cannot be made at {self.bootstrap}: {error.args[0].str()}; is a broker"
                " running there, and may this client create topics?"
            ) from error
        try:
            self._await_replicas(admin, name)
            yield name
        finally:
            self._remove(admin, name)

    def _await_replicas(self, admin: AdminClient, name: str) -> None:
        """Return once each partition has a leader and all of its replicas in sync, and note who leads."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            found = admin.list_topics(timeout=TIMEOUT_S)
            partitions = found.topics[name].partitions.values() if name in found.topics else ()
            if partitions and all(
                each.leader in found.brokers and len(each.isrs) >= self.replica_count for each in partitions
            ):  # fmt: skip
                leaders = [each.leader for each in partitions]
                self.led.clear()
                self.led.update(
                    (node_id, leaders.count(node_id)) for node_id in sorted(found.brokers)
                )
                return
            if time.monotonic() > deadline_s:
                raise BenchFailed(
                    f"topic {name} at {self.bootstrap} has not {self.replica_count} replicas in sync after"
                    f" {TIMEOUT_S:.0f} s: look at the logs of its nodes"
                )
            time.sleep(_LOOK_S)

    def _remove(self, admin: AdminClient, name: str) -> None:
        try:
            admin.delete_topics([name])[name].result(TIMEOUT_S)
        except KafkaException as error:
            raise BenchFailed(
                f"topic {name} is left at {self.bootstrap}, remove it: {error.args[0].str()}"
            ) from error

    def cost(self) -> Cost:
        """Return CPU used so far, also by this client, and memory of all processes of the broker, together and by node."""
        return cost_of(self.pids, self.led)

    def cost_since(self, before: Cost) -> Cost:
        """Return CPU used since `before`, and memory resident now."""
        return cost_between(before, self.cost())


def check(bootstrap: str, node_count: int, pids: Sequence[int]) -> None:
    """Raise `BenchFailed` where nobody answers, fewer nodes than asked do, or processes are named that are not theirs in number."""
    try:
        found = len(AdminClient(client(bootstrap)).list_topics(timeout=CONNECT_TIMEOUT_S).brokers)
    except KafkaException as error:
        raise BenchFailed(
            f"no broker answers at {bootstrap} within {CONNECT_TIMEOUT_S:.0f} s ({error.args[0].str()}): is this the"
            " port of its Kafka protocol, and does it run?"
        ) from error
    if found < node_count:
        raise BenchFailed(
            f"{found} {'node answers' if found == 1 else 'nodes answer'} at {bootstrap}, and --nodes asks for"
            f" {node_count}: start as many there (an Apache Kafka: `python -m tests.compat.apache_kafka --nodes"
            f" {node_count}`), or give --nodes {found}"
        )
    if pids and len(pids) != found:
        raise BenchFailed(
            f"{found} {'node answers' if found == 1 else 'nodes answer'} at {bootstrap}, and --against-pid names"
            f" {len(pids)} processes: give one for each, in the order of the nodes' ids"
        )
    cost_of(pids)


def cost_of(pids: Sequence[int], led: Mapping[int, int] | None = None) -> Cost:
    """Return CPU used so far and memory of all of these processes, and CPU of this one; by node, where `led` has them.

    Raises `BenchFailed`.
    """
    client_cpu_s = time.process_time()
    if not pids:
        return Cost(client_cpu_s=client_cpu_s)
    used = [_process_cost(pid) for pid in pids]
    by_node = led.items() if led and len(led) == len(pids) > 1 else ()
    return Cost(
        cpu_s=sum(cpu_s for cpu_s, _ in used),
        rss_bytes=sum(rss_bytes for _, rss_bytes in used),
        client_cpu_s=client_cpu_s,
        nodes=[
            NodeCost(node_id=node_id, led_count=led_count, cpu_s=cpu_s, rss_bytes=rss_bytes)
            for (node_id, led_count), (cpu_s, rss_bytes) in zip(by_node, used, strict=False)
        ],
    )


def cost_between(before: Cost, now: Cost) -> Cost:
    """Return CPU used since `before`, and the memory of now."""
    cpu_s = None
    if now.cpu_s is not None and before.cpu_s is not None:
        cpu_s = now.cpu_s - before.cpu_s
    client_cpu_s = now.client_cpu_s - before.client_cpu_s
    nodes = [
        replace(after, cpu_s=after.cpu_s - earlier.cpu_s)
        for earlier, after in zip(before.nodes, now.nodes, strict=True)
    ]
    return Cost(cpu_s=cpu_s, rss_bytes=now.rss_bytes, client_cpu_s=client_cpu_s, nodes=nodes)


def _process_cost(pid: int) -> tuple[float, int]:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError as error:
        raise BenchFailed(
            f"there is no process {pid} of a broker (any more); run `tidemark dev` and measure with"
            " --bootstrap to see its log"
        ) from error
    fields = stat.rpartition(")")[2].split()  # from field 3 (state) on: see proc(5)
    cpu_ticks = int(fields[11]) + int(fields[12])
    return cpu_ticks / _TICKS_PER_S, int(fields[21]) * _PAGE_BYTES
