"""The door of a node's HTTP port, made from its configuration and the users that its metadata have.

INV-NHD1  whatever identifies callers of the Kafka port closes the HTTP port, too: a node is never half open
Not here: what the door does (`http_api.doors`), which ports are open beyond what they should be (`config.exposure`).
"""

import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from region_broker.config.exposure import asks_who_calls, open_ports, warning_of
from region_broker.config.node_config import NodeConfig
from region_broker.http_api.doors import Doors, Passed
from region_broker.http_api.password_checks import PasswordChecks
from region_broker.node.authorizer import authorizer_of
from region_broker.node.logins import compose_logins
from region_broker.node.node_ports import Ports
from region_broker.ports.system.watched_file import WatchedFile
from region_broker.security.access import Access
from region_broker.security.audit.trail import AuditTrail
from region_broker.security.http_tokens import FILE_BYTES_MAX, HttpTokens
from region_broker.security.identity import ANONYMOUS_PRINCIPAL
from region_broker.security.sasl.desk import LoginDesk, LoginSettings
from region_broker.security.sasl.scram import HASHES
from region_broker.wire.listening import NoIdentity

REASONS: Final = ("unknown", "forbidden", "cross-site", "too-many-logins")
_log: Final = logging.getLogger("tidemark.http")


def doors_of(config: NodeConfig, ports: Ports, access: Callable[[], Access]) -> Doors:
    """Return the door of a node; `access` is asked for users and ACLs whenever one comes. Raises `NodeRefused`."""
    tokens = None
    if path := config.http_tokens_file:
        tokens = HttpTokens(WatchedFile(Path(path), FILE_BYTES_MAX).look, _tell_unusable(path))
        tokens.look()
    is_closed = asks_who_calls(config)
    desk = compose_logins(config, ports, access) or LoginDesk(
        LoginSettings(mechanisms=tuple(HASHES)), access, ports.clock, ports.chance
    )
    return Doors(
        clock=ports.clock,
        is_closed=is_closed,
        tokens=tokens,
        principal_of=_principal_of(ports),
        authorizer=authorizer_of(config, access),
        passwords=PasswordChecks(desk.keys_for_password, ports.chance) if is_closed else None,
    )


def told_to(trail: AuditTrail) -> Callable[[Passed], None]:
    """Return what records refusals and wrong logins at the door; orders are recorded by themselves (`http_api.audited_orders`)."""

    def tell(passed: Passed) -> None:
        if not passed.refused:
            return
        if passed.refused == "too-many-logins":
            trail.login(passed.identity, right=False, reason=passed.refused)
        elif passed.refused == "unknown" and passed.identity.mechanism:
            trail.login(passed.identity, right=False, reason="wrong-credentials")
        else:
            operation = f"{passed.method} {passed.path}"
            trail.refused(passed.identity, operation, "HTTP", passed.path, reason=passed.refused)

    return tell


def _principal_of(ports: Ports) -> Callable[[bytes], str]:
    def principal_of(certificate: bytes) -> str:
        try:
            return ports.speaks.kafka.principal_of(certificate)
        except NoIdentity:
            return ANONYMOUS_PRINCIPAL

    return principal_of


def _tell_unusable(path: str) -> Callable[[str], None]:
    def tell(why: str) -> None:
        _log.error(
            "http_tokens_file %s cannot be used: %s; the tokens that were read before go on",
            path,
            why,
        )

    return tell


class DoorCollector(Collector):
    """Offers who was refused at the HTTP port, and which ports are open beyond what they should be."""

    def __init__(self, config: NodeConfig, doors: Doors) -> None:
        """Count what `doors` refuse from now on."""
        self._is_insecure = bool(warning_of(config))
        self._open = {port.port for port in open_ports(config)} if self._is_insecure else set()
        self._refused = dict.fromkeys(REASONS, 0)
        doors.on_refused = self._note

    def _note(self, reason: str) -> None:
        self._refused[reason] += 1

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand."""
        return []

    @override
    def collect(self) -> Iterable[Metric]:
        """Return the figures of now."""
        refused = CounterMetricFamily(
            "tidemark_http_refused", "Requests that were refused at the door of the HTTP port.", labels=["reason"]
        )  # fmt: skip
        for reason, count in self._refused.items():
            refused.add_metric([reason], count)
        yield refused
        insecure = GaugeMetricFamily(
            "tidemark_insecure_port", "1 while a port is open to others without TLS or without callers that say who they are.", labels=["port"]
        )  # fmt: skip
        for key in ("kafka", "peer", "http"):
            insecure.add_metric([key], float(key in self._open))
        yield insecure
