"""Which ports of a node others may reach although nobody there has to say who it is, or everybody on the way can read along.

INV-EXP1  a port that is bound beyond this machine needs both: TLS, and callers that prove who they are. Else the node does not
          start, unless its file says `insecure = true`; then it tells so at each start, in `/readyz`, and in a metric
A host counts as this machine by its very name only: `localhost`, or a loopback address. Names are not looked up: what they mean
may be another thing tomorrow.
Pure. Not here: who is told (`node.start_checks`, `cli.doctor`), what a port does with a caller.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from region_broker.config.node_config import ListenerConfig, NodeConfig
from region_broker.config.rules import Problem, split
from region_broker.config.tls_relations import ENCRYPTED
from region_broker.security.login import is_this_machine

_WAY_OUT: Final = (
    "docs/reference/security.md says how to give it TLS and logins (`tidemark cert init` makes certificates); for this machine alone:"
    ' listen_host = "127.0.0.1"; where everybody who can reach it may do everything: insecure = true'
)


class OpenPort(NamedTuple):
    """A port that is open to more than it should be: `lacks` is what it has not; `port`: kafka, peer or http."""

    port: str
    key: str
    bound: str
    lacks: str

    def __str__(self) -> str:
        """Return it as a part of a sentence."""
        return f"{self.key} ({self.bound}) lacks {self.lacks}"


def asks_who_calls(config: NodeConfig) -> bool:
    """Return whether the HTTP port lets in nobody whom it does not know: where anything says who somebody is."""
    return bool(config.http_tokens_file) or any(
        _proves(port.security_protocol, port.tls_client_auth) for port in _kafka_ports(config)
    )


def knows_its_clients(config: NodeConfig) -> bool:
    """Return whether clients prove who they are at some address of the Kafka port: then who proves nothing may do nothing by that."""
    return _proves(config.security_protocol, config.tls_client_auth) or any(
        _proves(each.security_protocol, each.tls_client_auth) for each in config.listeners
    )


def open_ports(config: NodeConfig) -> list[OpenPort]:
    """Return what is open beyond what it should be, whatever `insecure` says."""
    return list(_open_ports(config))


def exposure_problems(config: NodeConfig) -> list[Problem]:
    """Return what refuses a start (INV-EXP1)."""
    if config.insecure:
        return []
    return [
        Problem(
            f"{port.key} = {port.bound!r}",
            f"would be open to others, and lacks {port.lacks}",
            _WAY_OUT,
        )
        for port in open_ports(config)
    ]


def warning_of(config: NodeConfig) -> str:
    """Return what is told of a node that is insecure, "" for others."""
    found = open_ports(config)
    if not config.insecure or not found:
        return ""
    return f"insecure = true: {'; '.join(map(str, found))}. Whoever reaches these may read and change everything"


def _open_ports(config: NodeConfig) -> Iterator[OpenPort]:
    own = config.own_node
    peer = _lacks(config.peer_security_protocol in ENCRYPTED, True)
    http = _lacks(config.http_security_protocol in ENCRYPTED, asks_who_calls(config))
    for key, lacks in (("kafka", _kafka_lacks(config)), ("peer", peer), ("http", http)):
        host, port = split(getattr(own, key))
        bound = config.listen_host or host
        if lacks and not is_this_machine(bound):
            yield OpenPort(key, key, f"{bound}:{port}", lacks)
    for further in config.listeners:
        lacks = _kafka_lacks(further)
        if lacks and not is_this_machine(split(further.bind)[0]):
            yield OpenPort("kafka", f"listeners.{further.name}", further.bind, lacks)


def _kafka_ports(config: NodeConfig) -> Iterator[NodeConfig | ListenerConfig]:
    yield config
    yield from config.listeners


def _kafka_lacks(port: NodeConfig | ListenerConfig) -> str:
    protocol = port.security_protocol
    return _lacks(protocol in ENCRYPTED, _proves(protocol, port.tls_client_auth))


def _lacks(is_encrypted: bool, is_proved: bool) -> str:
    missing = () if is_encrypted else ("TLS",)
    return " and ".join((*missing, *(() if is_proved else ("callers that must say who they are",))))


def _proves(protocol: str, client_auth: str) -> bool:
    """Return whether clients of a Kafka port prove who they are."""
    return protocol.startswith("SASL") or (protocol == "SSL" and client_auth == "required")
