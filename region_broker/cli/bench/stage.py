"""The broker under measurement: its address, topics that go away again, and what its process uses.

Every topic that is made is removed again, also when a measurement fails. CPU and memory are read only of processes that
this command started, or was told of.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import BenchFailed, Cost
from region_broker.workbench.local_cluster import LocalCluster

CONNECT_TIMEOUT_S: Final = 10.0
TIMEOUT_S: Final = 30.0
_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def client(bootstrap: str, **more: Any) -> dict[str, Any]:
    """Return a quiet client configuration."""
    return {"bootstrap.servers": bootstrap, "log_level": 0, **more}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Where to measure; `pids` are the broker's processes if they run here, `mark` names what we make.

    `mirror` is the bootstrap address of a region that mirrors this one, empty without; `cluster` is what was
    started for this measurement, if anything was.
    """

    bootstrap: str
    pids: Sequence[int]
    mark: str
    name: str
    mirror: str = ""
    cluster: LocalCluster | None = None

    @contextlib.contextmanager
    def topic(self, purpose: str, partition_count: int) -> Iterator[str]:
        """Make a topic; it is removed on leaving. Raises `BenchFailed`."""
        name = f"tidemark-bench-{self.mark}-{purpose}"
        admin = AdminClient(client(self.bootstrap))
        try:
            admin.list_topics(timeout=CONNECT_TIMEOUT_S)
            admin.create_topics([NewTopic(name, partition_count, 1)])[name].result(TIMEOUT_S)
        except KafkaException as error:
            raise BenchFailed(
                f"topic {name} cannot be made at {self.bootstrap}: {error.args[0].str()}; is a broker"
                " running there, and may this client create topics?"
            ) from error
        try:
            yield name
        finally:
            self._remove(admin, name)

    def _remove(self, admin: AdminClient, name: str) -> None:
        try:
            admin.delete_topics([name])[name].result(TIMEOUT_S)
        except KafkaException as error:
            raise BenchFailed(
                f"topic {name} is left at {self.bootstrap}, remove it: {error.args[0].str()}"
            ) from error

    def cost(self) -> Cost:
        """Return CPU used so far, also by this client, and memory of all processes of the broker."""
        return cost_of(self.pids)

    def cost_since(self, before: Cost) -> Cost:
        """Return CPU used since `before`, and memory resident now."""
        return cost_between(before, self.cost())


def cost_of(pids: Sequence[int]) -> Cost:
    """Return CPU used so far and memory of all of these processes, and CPU of this one. Raises `BenchFailed`."""
    client_cpu_s = time.process_time()
    if not pids:
        return Cost(client_cpu_s=client_cpu_s)
    used = [_process_cost(pid) for pid in pids]
    return Cost(
        cpu_s=sum(cpu_s for cpu_s, _ in used),
        rss_bytes=sum(rss_bytes for _, rss_bytes in used),
        client_cpu_s=client_cpu_s,
    )


def cost_between(before: Cost, now: Cost) -> Cost:
    """Return CPU used since `before`, and the memory of now."""
    cpu_s = None
    if now.cpu_s is not None and before.cpu_s is not None:
        cpu_s = now.cpu_s - before.cpu_s
    client_cpu_s = now.client_cpu_s - before.client_cpu_s
    return Cost(cpu_s=cpu_s, rss_bytes=now.rss_bytes, client_cpu_s=client_cpu_s)


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
