"""What a node's authorizer is made of: its file, its listeners, and its metadata."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.config.exposure import knows_its_clients
from region_broker.node.authorizer import compose_authorizer
from region_broker.security.access import AccessChange, Operation, ResourceType
from region_broker.security.identity import ANONYMOUS, Identity
from tests.fixtures.judged_apis import acl
from tests.fixtures.kafka_port import node_file, wire_fixture

TLS = {"tls_certificate": "/c.pem", "tls_key": "/k.pem", "tls_ca": "/ca.pem"}


def listener(protocol: str, **more: str) -> dict[str, Any]:
    return {"listeners": [{"name": "L", "bind": "127.0.0.1:9192", "advertised": "127.0.0.1:9192",
                           "security_protocol": protocol, **more}]}  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, False), ({"security_protocol": "SASL_PLAINTEXT"}, True), ({"security_protocol": "SSL", **TLS}, False),
        ({"security_protocol": "SSL", "tls_client_auth": "requested", **TLS}, False),
        ({"security_protocol": "SSL", "tls_client_auth": "required", **TLS}, True),
        (listener("PLAINTEXT"), False), (listener("SASL_PLAINTEXT"), True),
        ({**listener("SSL", tls_client_auth="required"), **TLS}, True),
    ],
)  # fmt: skip
def test_INV_AUZ3_a_listener_that_makes_clients_known_puts_it_in_force(
    keys: dict[str, Any], expected: bool
) -> None:
    assert knows_its_clients(node_file(**keys)) is expected


async def test_a_node_that_lets_nobody_do_anything_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with wire_fixture(tmp_path) as wire:
        file = node_file(security_protocol="SASL_PLAINTEXT")
        shut = compose_authorizer(file, wire.store)
        assert "super_users" in caplog.text
        assert shut.in_force
        assert not shut.allows(ANONYMOUS, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        caplog.clear()
        named = node_file(security_protocol="SASL_PLAINTEXT", super_users="User:admin")
        admin = Identity("User:admin")
        judge = compose_authorizer(named, wire.store)
        assert judge.allows(admin, Operation.ALTER, ResourceType.CLUSTER, "kafka-cluster")
        rule = acl(ResourceType.TOPIC, Operation.READ, name="t")
        await wire.services.metadata.change_access(AccessChange(acls_added=(rule,)))
        compose_authorizer(file, wire.store)
        assert caplog.text == ""
        assert not compose_authorizer(node_file(), wire.store).allows(
            ANONYMOUS, Operation.READ, ResourceType.TOPIC, "t"
        ), "ACLs that are there are in force, whatever the file says"
