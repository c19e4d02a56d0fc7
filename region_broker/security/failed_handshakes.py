"""Handshakes of TLS that failed: counted by port and reason, and told in the log, each kind once in a while.

INV-FHS1  a storm of failures is no storm of log lines: one line a kind in `SAY_EVERY_MS`, which says how many it stands for
Not here: what a reason is (`ports.handshakes`).
"""

import logging
from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from idempotency.ports import Clock
from region_broker.ports.handshakes import GONE
from region_broker.ports.network import FailedHandshake, OnFailedHandshake

SAY_EVERY_MS: Final = 10_000
_log: Final = logging.getLogger("tidemark.tls")


class FailedHandshakes(Collector):
    """Those of all ports of a node."""

    def __init__(self, clock: Clock) -> None:
        """Count from 0."""
        self._clock = clock
        self._counts: dict[tuple[str, str], int] = {}
        self._said: dict[tuple[str, str], tuple[int, int]] = {}
        """When a kind was told last, and how many there were then."""
        self.heard: Callable[[str, FailedHandshake], None] = lambda _port, _failed: None
        """Told of each one, with the port; set where there is an audit trail."""

    def on_port(self, port: str) -> OnFailedHandshake:
        """Return what a port is to call."""
        return lambda failed: self._note(port, failed)

    def count(self, port: str, reason: str) -> int:
        """Return how many there were."""
        return self._counts.get((port, reason), 0)

    def _note(self, port: str, failed: FailedHandshake) -> None:
        self.heard(port, failed)
        kind = port, failed.reason
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        now_ms = self._clock.monotonic_ms()
        said_ms, said_count = self._said.get(kind, (now_ms - SAY_EVERY_MS, 0))
        if now_ms - said_ms < SAY_EVERY_MS:
            return
        self._said[kind] = now_ms, count
        more = count - said_count - 1
        # Who only connects and leaves is a probe, as load balancers make them.
        level = logging.INFO if failed.reason == GONE else logging.WARNING
        _log.log(
            level, "no TLS with %s on the %s port: %s%s", failed.peer, port, failed.text,
            f" (and {more} others since the last such line)" if more else "",
        )  # fmt: skip

    def describe(self) -> list[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return the counts of now."""
        family = CounterMetricFamily(
            "tidemark_tls_handshakes_failed",
            "Connections that came in and ended before TLS stood",
            labels=["port", "reason"],
        )
        for kind, count in self._counts.items():
            family.add_metric(list(kind), count)
        yield family
