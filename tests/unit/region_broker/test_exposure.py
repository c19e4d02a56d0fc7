"""Which ports are open beyond what they should be, by what each port speaks (INV-EXP1)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from region_broker.config.exposure import (
    asks_who_calls,
    exposure_problems,
    knows_its_clients,
    open_ports,
    warning_of,
)
from region_broker.config.node_config import NodeConfig
from region_broker.http_api.doors import Doors
from region_broker.node import Ports
from region_broker.node.auditing import keeps_trail, open_trail
from region_broker.node.authorizer import authorizer_of
from region_broker.node.http_doors import DoorCollector
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.security.access import (
    NO_ACCESS,
    Access,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.identity import Identity
from tests.unit.region_broker.test_config import whole

CALLERS = "callers that must say who they are"
FILES = {
    "tls_certificate": "own.pem", "tls_key": "own-key.pem", "tls_ca": "ca.pem",
}  # fmt: skip
SAFE: dict[str, Any] = {
    **FILES, "security_protocol": "SSL", "tls_client_auth": "required", "peer_security_protocol": "SSL",
    "http_security_protocol": "SSL",
}  # fmt: skip


def built(**changed: Any) -> NodeConfig:
    return NodeConfig.build(whole(**{**SAFE, **changed}), "node.toml")


def lacks(config: NodeConfig) -> dict[str, str]:
    return {each.key: each.lacks for each in open_ports(config)}


def listener(protocol: str, asked: str = "none", bind: str = "0.0.0.0:9095") -> dict[str, Any]:
    return {
        "name": "OUTSIDE", "bind": bind, "advertised": "eu.example.org:9095", "security_protocol": protocol,
        "tls_client_auth": asked,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("protocol", "asked", "expected"),
    [
        ("PLAINTEXT", "none", f"TLS and {CALLERS}"),
        ("SASL_PLAINTEXT", "none", "TLS"),
        ("SSL", "none", CALLERS),
        ("SSL", "requested", CALLERS),
        ("SSL", "required", ""),
        ("SASL_SSL", "none", ""),
        ("SASL_SSL", "requested", ""),
    ],
)
def test_INV_EXP1_each_address_of_the_kafka_port_needs_tls_and_callers_that_prove_who_they_are(
    protocol: str, asked: str, expected: str
) -> None:
    assert lacks(built()) == {}
    own = built(security_protocol=protocol, tls_client_auth=asked)
    assert lacks(own).get("kafka", "") == expected
    more = built(listeners=[listener(protocol, asked)])
    assert lacks(more) == ({"listeners.OUTSIDE": expected} if expected else {})
    assert bool(exposure_problems(more)) is bool(expected)
    on_loopback = built(listeners=[listener(protocol, asked, "127.0.0.1:9095")])
    assert lacks(on_loopback) == {}, "this machine alone"


def test_INV_EXP1_the_other_ports_need_them_too() -> None:
    assert lacks(built(peer_security_protocol="PLAINTEXT")) == {"peer": "TLS"}
    assert lacks(built(http_security_protocol="PLAINTEXT")) == {"http": "TLS"}
    open_to_all = built(security_protocol="SSL", tls_client_auth="none")
    assert lacks(open_to_all) == {"kafka": CALLERS, "http": CALLERS}
    by_tokens = built(security_protocol="SSL", tls_client_auth="none", http_tokens_file="t.json")
    assert lacks(by_tokens) == {"kafka": CALLERS}


@pytest.mark.parametrize(
    ("protocol", "asked", "known"),
    [("PLAINTEXT", "none", False), ("SSL", "requested", False), ("SSL", "required", True), ("SASL_SSL", "none", True)],
)  # fmt: skip
def test_clients_are_known_where_one_address_makes_them_prove_who_they_are(
    protocol: str, asked: str, known: bool
) -> None:
    """INV-NHD1, INV-AUZ3: then the door of HTTP is closed, and ACLs are in force, whatever the other addresses are."""
    plain = {"security_protocol": "PLAINTEXT", "tls_client_auth": "none"}
    for config in (
        built(security_protocol=protocol, tls_client_auth=asked),
        built(**plain, listeners=[listener(protocol, asked)]),
    ):
        assert (asks_who_calls(config), knows_its_clients(config)) == (known, known)
    assert not knows_its_clients(built(**plain, http_tokens_file="t.json")), "of HTTP alone"
    assert asks_who_calls(built(**plain, http_tokens_file="t.json"))


def test_a_warning_names_each_open_port_and_is_none_where_nothing_is_open() -> None:
    assert warning_of(built(insecure=True)) == ""
    told = warning_of(built(insecure=True, listeners=[listener("PLAINTEXT")]))
    assert "listeners.OUTSIDE (0.0.0.0:9095) lacks TLS and callers" in told


def test_the_authorizer_of_a_node_goes_by_its_listeners_and_its_super_users() -> None:
    """INV-AUZ3."""
    plain = {"security_protocol": "PLAINTEXT", "tls_client_auth": "none"}
    asked = (Operation.READ, ResourceType.TOPIC, "orders")
    open_to_all = authorizer_of(built(**plain), lambda: NO_ACCESS)
    assert not open_to_all.in_force
    assert open_to_all.allows(Identity("User:alice"), *asked)
    for config in (built(), built(**plain, listeners=[listener("SASL_PLAINTEXT")])):
        closed = authorizer_of(config, lambda: NO_ACCESS)
        assert closed.in_force
        assert not closed.allows(Identity("User:alice"), *asked)
    ruled = authorizer_of(built(**plain, super_users="User:admin;User:ops"), lambda: NO_ACCESS)
    assert ruled.in_force
    assert [ruled.allows(Identity(f"User:{name}"), *asked) for name in ("admin", "ops", "alice")] == [True, True, False]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "guarded"),
    [
        ({"audit": "on"}, "tidemark.audit"), ({"audit": "on", "audit_topic": "kept"}, "kept"),
        ({"audit": "on", "audit_topic": ""}, None), ({"audit": "off"}, None),
    ],
)  # fmt: skip
def test_INV_AUZ7_the_authorizer_of_a_node_knows_where_its_trail_is_kept(
    config: dict[str, str], guarded: str | None
) -> None:
    every = Acl(ResourceType.TOPIC, PatternType.LITERAL, "*", "User:alice", "*", Operation.ALL, Permission.ALLOW)  # fmt: skip
    judge = authorizer_of(built(**config), lambda: Access(number=1, acls=(every,)))
    for topic in ("tidemark.audit", "kept"):
        may = judge.allows(Identity("User:alice"), Operation.DELETE, ResourceType.TOPIC, topic)
        assert may is (topic != guarded)


@pytest.mark.parametrize(
    "changed",
    [
        {"tls_ca": "ca.pem"}, {"sasl_users_file": "users"}, {"security_protocol": "SSL"}, {"peer_security_protocol": "SSL"},
        {"http_security_protocol": "SSL"}, {"super_users": "User:admin"}, {"encryption_keys_file": "keys.toml"},
        {"http_tokens_file": "t.json"}, {"listeners": (listener("PLAINTEXT"),)},
    ],
)  # fmt: skip
def test_INV_NAU1_each_key_of_security_has_a_node_keep_an_audit_trail(
    changed: dict[str, Any],
) -> None:
    plain = NodeConfig.build(whole(), "node.toml")
    assert not keeps_trail(plain)
    secured = msgspec.structs.replace(plain, **changed)
    assert keeps_trail(secured)
    assert not keeps_trail(msgspec.structs.replace(secured, audit="off"))
    assert keeps_trail(msgspec.structs.replace(plain, audit="on"))


def test_a_metric_names_the_ports_that_are_open() -> None:
    registry = CollectorRegistry()
    registry.register(
        DoorCollector(built(insecure=True, peer_security_protocol="PLAINTEXT"), Doors())
    )
    values = [
        registry.get_sample_value("tidemark_insecure_port", {"port": port})
        for port in ("kafka", "peer", "http")
    ]
    assert values == [0.0, 1.0, 0.0]


def test_a_trail_that_is_opened_is_that_of_the_metadata(tmp_path: Path) -> None:
    config = NodeConfig.build(
        whole(data_dir=str(tmp_path), audit="on", audit_bytes_max=1 << 30), "n"
    )
    storage: Any = SimpleNamespace(
        folder=SimpleNamespace(identity=SimpleNamespace(folder_id="ab" * 16)),
        metadata=SimpleNamespace(audit=None),
    )
    open_trail(config, Ports(SystemClock(), SystemChance(), RealDisk(), AsyncioNetwork()), storage)
    trail = storage.metadata.audit
    assert trail.is_on
    assert trail._bytes_max == 1 << 30
    trail.close()
    assert "node-started" in (tmp_path / "audit" / "audit-00000001.jsonl").read_text()
