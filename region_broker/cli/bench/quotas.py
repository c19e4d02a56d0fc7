"""`tidemark bench quotas`: what one client notices of another one at full speed, with and without a quota on that one.

A producer of librdkafka writes small records at a steady rate (acks=all) all the time, and each counts from when it was due. Beside it another one, in a
process and under a client id of its own, writes as fast as it can: not at all, without a quota, with one. The three come in turn, run by
run, so that what else the machine does meets all of them; the median over the runs is shown, and ratios within the same runs.
Not here: how a quota is enforced, how figures are printed (`command`).
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.admin.node_requests import NodeConnection, NodeError
from region_broker.cli.bench.figures import MEGA, BenchFailed, percentile
from region_broker.cli.bench.grow import GrowPlan, Load
from region_broker.cli.bench.size import Figure, Say
from region_broker.cli.bench.stage import TIMEOUT_S, client
from region_broker.workbench.local_cluster import LocalCluster

AIM: Final = 2.0
"""Of the p99 beside a client with a quota, over the p99 alone."""
QUOTA_BYTES_PER_S: Final = 1_000_000.0
_TOPIC: Final = "bench-quotas"
_CLIENT_ID: Final = "full-speed"
_SETTLE_S: Final = 2.0
"""Until what was saved up is used, and the machine's caches are as they stay."""
_ALONE, _FREE, _LIMITED = "alone", "beside one without quota", "beside one with a quota"


@dataclass(slots=True)
class _Seen:
    """What was measured of one way, run by run."""

    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    other_mb_per_s: list[float] = field(default_factory=list)
    other_quiet: list[float] = field(default_factory=list)


class QuotaBench:
    """Measures a cluster that was started for that, and of which nobody else knows."""

    def __init__(self, cluster: LocalCluster, plan: GrowPlan, run_count: int, say: Say) -> None:
        """Measure the first region of `cluster`; of `plan` the rate, the size and the seconds of one run count."""
        self._bootstrap = cluster.plan.regions[0].bootstrap
        self._plan = plan
        self._run_count = run_count
        self._say = say

    def figures(self) -> Iterator[Figure]:
        """Measure. Raises `BenchFailed`."""
        try:
            with ExitStack() as stack:
                yield from self._all(stack)
        except KafkaException as error:
            raise BenchFailed(f"the region did not do it: {error.args[0].str()}") from error
        except (NodeError, OSError) as error:
            raise BenchFailed(f"a node did not answer, or refused: {error}") from error

    def _all(self, stack: ExitStack) -> Iterator[Figure]:
        admin = AdminClient(client(self._bootstrap))  # which must outlive what it is asked
        made = admin.create_topics([NewTopic(_TOPIC, 2, 1)])
        made[_TOPIC].result(TIMEOUT_S)
        load = Load(self._bootstrap, [(_TOPIC, 0)], self._plan)
        writing = threading.Thread(target=load.run, daemon=True)
        stack.callback(writing.join, 2 * TIMEOUT_S)
        stack.callback(load.ends.set)
        writing.start()
        seen = {way: _Seen() for way in (_ALONE, _FREE, _LIMITED)}
        for number in range(self._run_count):
            self._say(f"run {number + 1} of {self._run_count}")
            for way, found in seen.items():
                self._run(way, found, load)
        if load.errors:
            raise BenchFailed(load.errors[0])
        yield from _told(seen)

    def _run(self, way: str, found: _Seen, load: Load) -> None:
        self._limit(QUOTA_BYTES_PER_S if way == _LIMITED else None)
        other = None if way == _ALONE else self._other()
        try:
            time.sleep(_SETTLE_S)
            from_s = time.monotonic()
            time.sleep(self._plan.seconds)
            until_s = time.monotonic()
        finally:
            told = None if other is None else _end(other)
        took_ms = load.between(from_s, until_s)
        if not took_ms:
            raise BenchFailed(f"nothing was acknowledged within {self._plan.seconds:g} s")
        found.p50_ms.append(percentile(took_ms, 0.5))
        found.p99_ms.append(percentile(took_ms, 0.99))
        if told is not None:
            found.other_mb_per_s.append(told["bytes"] / MEGA / told["seconds"])
            found.other_quiet.append(told["quiet_ms"])

    def _limit(self, bytes_per_s: float | None) -> None:
        with NodeConnection(self._bootstrap.split(",")[0]) as node:
            node.alter_quota(
                {"client-id": _CLIENT_ID}, {"producer_byte_rate": bytes_per_s}, dry=False
            )

    def _other(self) -> "subprocess.Popen[str]":
        command = (sys.executable, "-m", "region_broker.cli.bench.full_speed")
        other = subprocess.Popen(  # noqa: S603 - our own command
            [*command, self._bootstrap, _TOPIC, _CLIENT_ID], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        assert other.stdout is not None
        if other.stdout.readline() != "writing\n":
            _end(other)
            raise BenchFailed("the producer at full speed did not begin")
        return other


def _end(other: "subprocess.Popen[str]") -> dict[str, float]:
    """Let the other producer end, and return what it tells."""
    try:
        text, _ = other.communicate(timeout=TIMEOUT_S)
        told: dict[str, float] = json.loads(text)
    except (subprocess.TimeoutExpired, ValueError) as error:
        other.kill()
        raise BenchFailed("the producer at full speed did not end as it should") from error
    return told


def _told(seen: dict[str, _Seen]) -> Iterator[Figure]:
    for way, found in seen.items():
        yield Figure("p50", way, median(found.p50_ms), "ms")
        yield Figure("p99", way, median(found.p99_ms), "ms")
        if found.other_mb_per_s:
            yield Figure("the other one", way, median(found.other_mb_per_s), "MB/s")
            yield Figure("it was told to be quiet", way, median(found.other_quiet), "ms")
    for way in (_FREE, _LIMITED):
        pairs = zip(seen[way].p99_ms, seen[_ALONE].p99_ms, strict=True)
        ratio = median(there / alone for there, alone in pairs)
        yield Figure("p99 over p99 alone", way, ratio, "x", AIM if way == _LIMITED else None)
