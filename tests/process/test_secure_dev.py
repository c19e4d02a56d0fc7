"""`tidemark dev --secure`: what it announces lets clients of all kinds in, and nothing else does; and what it leaves holds no secret."""

import asyncio
import json
import re
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, ClientSSLError, TCPConnector
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from region_broker.client import (
    Producer,
    ReadCommittedConsumer,
    Refused,
    Security,
    Timeouts,
    TransactionalProducer,
)
from region_broker.http_api.needs import ANY_METHOD, NEEDS
from region_broker.workbench.stage import wait_until
from tests import secrets
from tests.fixtures.secret_scan import noted
from tests.process.test_cli import Dev, run

REGIONS = ("--regions", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("secure") / "cluster"


@pytest.fixture(scope="module")
def dev(folder: Path) -> Iterator[Dev]:
    running = Dev("--secure", *REGIONS, "--data-dir", str(folder))
    yield running
    if running.process.poll() is None:
        running.stop()


@pytest.fixture(scope="module")
def security(dev: Dev) -> dict[str, str]:
    told: dict[str, str] = json.loads(dev.line)["security"]
    assert list(told) == ["ca", "mechanism", "username", "password", "http_token"]
    noted(told["password"])
    noted(told["http_token"])
    return told


@pytest.fixture(scope="module")
def admin(dev: Dev, security: dict[str, str]) -> Security:
    """Return who may all; the node's log says all that it can from now on, so that secrets would be in it."""
    who = Security(
        ca=security["ca"], mechanism=security["mechanism"], user=security["username"], password=security["password"],
        http_token=security["http_token"],
    )  # fmt: skip
    debug = ConfigEntry("log_level", "debug", incremental_operation=AlterConfigOpType.SET)
    node = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[debug])
    client = AdminClient({"bootstrap.servers": dev.bootstrap, **who.kafka_config(), "log_level": 0})
    client.incremental_alter_configs([node])[node].result(20)
    return who


async def get(dev: Dev, path: str, ca: str, **headers: str) -> tuple[int, Any]:
    tls = ssl.create_default_context(cafile=ca) if ca else ssl.create_default_context()
    url = f"{dev.regions[0]['http']}{path}"
    async with (
        ClientSession(connector=TCPConnector(ssl=tls)) as http,
        http.get(url, headers=headers) as found,
    ):
        return found.status, await found.json(
            content_type=None
        ) if "json" in found.content_type else await found.text()


async def test_INV_WSC2_our_client_and_others_come_in_by_what_is_announced(
    dev: Dev, admin: Security
) -> None:
    async with Producer(bootstrap=dev.bootstrap, security=admin) as producer:
        assert (await producer.send("orders", b"1")).offset == 0
    async with (
        TransactionalProducer(
            bootstrap=dev.bootstrap, urls=dev.url, transactional_id="t", security=admin
        ) as producer_of_all,
        producer_of_all.transaction() as txn,
    ):
        await txn.send("orders", b"2")
    assert producer_of_all.region_epoch is not None, "verdicts are asked over https, with the token"
    aio = AIOKafkaProducer(
        bootstrap_servers=dev.bootstrap, security_protocol="SASL_SSL", sasl_mechanism=admin.mechanism, sasl_plain_username=admin.user,
        sasl_plain_password=admin.password, ssl_context=ssl.create_default_context(cafile=admin.ca),
    )  # fmt: skip
    await aio.start()
    assert (await aio.send_and_wait("orders", b"3")).topic == "orders"
    await aio.stop()


async def test_http_lets_in_the_token_and_the_password_and_nobody_else(
    dev: Dev, admin: Security
) -> None:
    token, password = admin.http_headers("https://h"), Security(user=admin.user, password=admin.password).http_headers("https://h")  # fmt: skip
    for headers in (token, password):
        status, said = await get(dev, "/readyz", admin.ca, **headers)
        assert (status, said["checks"]["region"]) == (200, "ok")
    assert await get(dev, "/readyz", admin.ca) == (200, {"status": "ready"})
    status, said = await get(dev, "/v1/region", admin.ca)
    assert (status, said["code"]) == (401, "unknown-caller")
    with pytest.raises(ClientSSLError):
        await get(dev, "/readyz", "", **token)


async def test_INV_HDO1_no_route_of_a_node_answers_who_does_not_say_who_it_is(
    dev: Dev, admin: Security
) -> None:
    """All that there are, by the table that each route must stand in (INV-HND1)."""
    tls = ssl.create_default_context(cafile=admin.ca)
    told: dict[tuple[str, str], tuple[int, str]] = {}
    async with ClientSession(connector=TCPConnector(ssl=tls)) as http:
        for method, path in NEEDS:
            asked = "DELETE" if method == ANY_METHOD else method
            url = f"{dev.regions[0]['http']}{re.sub(r'{.*}', 'x', path)}"
            async with http.request(asked, url, json={} if asked == "POST" else None) as found:
                told[method, path] = (found.status, str((await found.json()).get("code")))
    assert (told.pop(("GET", "/livez"))[0], told.pop(("GET", "/readyz"))[0]) == (200, 200)
    assert {("GET", "/metrics"), ("POST", "/v1/region/failover"), ("POST", "/v1/cluster/drain")} <= told.keys()  # fmt: skip
    assert set(told.values()) == {(401, "unknown-caller")}, told


def test_a_wrong_password_and_no_login_get_nothing(dev: Dev, admin: Security) -> None:
    refused: list[KafkaError] = []
    wrong = Security(ca=admin.ca, user=admin.user, password="wrong-password")
    config: dict[str, Any] = {"bootstrap.servers": dev.bootstrap, **wrong.kafka_config(), "error_cb": refused.append, "log_level": 0}  # fmt: skip
    client = AdminClient(config)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=2)
    client.poll(0)
    assert KafkaError._AUTHENTICATION in {error.code() for error in refused}
    anonymous = AdminClient(
        {"bootstrap.servers": dev.bootstrap, **Security(ca=admin.ca).kafka_config(), "log_level": 0}
    )
    with pytest.raises(KafkaException):
        anonymous.list_topics(timeout=2)


async def test_INV_CP27_our_clients_say_that_it_is_the_password(dev: Dev, admin: Security) -> None:
    """Long before a broker would be given up as silent."""
    wrong = Security(ca=admin.ca, user=admin.user, password="wrong-password")
    patient = Timeouts(connect_s=3_600, call_s=2)
    clients = (
        Producer(bootstrap=dev.bootstrap, security=wrong, timeouts=patient),
        ReadCommittedConsumer(["orders"], group_id="g", bootstrap=dev.bootstrap, security=wrong, timeouts=patient),
        TransactionalProducer(transactional_id="t", bootstrap=dev.bootstrap, security=wrong, timeouts=patient),
    )  # fmt: skip
    for client in clients:
        with pytest.raises(Refused, match=r"[Aa]uthentication"):
            await client.start()


def told_by_the_trail(folder: Path) -> set[tuple[str, str, str]]:
    """Return kinds, outcomes and principals, and what was refused; each says from where, each change by which request."""
    lines = run("audit", "list", str(folder / "eu" / "audit"), "-o", "json").splitlines()
    rows = [row for row in map(json.loads, lines) if row["kind"] in {"change", "login", "refusal"}]
    asked = [row for row in rows if not row.get("principal", "").startswith("Node:")]
    assert {row["host"] for row in asked} == {"127.0.0.1"}
    assert all(row["request_id"].startswith("127.0.0.1:") for row in asked if row["kind"] == "change")  # fmt: skip
    refused = {(row["operation"], row.get("resource_type"), row.get("resource")) for row in asked if row["kind"] == "refusal"}  # fmt: skip
    return refused | {(row["kind"], row["outcome"], row.get("principal", "")) for row in asked}


def test_commands_go_by_a_context_and_a_user_who_may_nothing_gets_nothing(
    dev: Dev, folder: Path, tmp_path: Path
) -> None:
    place = folder / "security"
    other = tmp_path / "bob.password"
    other.write_text("a-password-of-bob\n")
    other.chmod(0o600)
    contexts = tmp_path / "contexts.json"

    def command(*words: str, code: int = 0) -> str:
        return run(*words, stdin="", code=code, TIDEMARK_CONTEXTS=str(contexts))

    command("context", "set", "dev", "--bootstrap", dev.bootstrap, "--url", dev.url, "--ca", str(place / "ca" / "ca.pem"), "--user", "admin",
        "--password-file", str(place / "password"), "--http-token-file", str(place / "http.token"))  # fmt: skip
    command("topic", "create", "invoices")
    command("region", "status")
    command("user", "create", "bob", "--new-password-file", str(other))
    as_bob = ("--user", "bob", "--password-file", str(other))
    assert command("topic", "list", *as_bob, "-o", "json").strip() == "[]"
    command("topic", "create", "mine", *as_bob, code=4)
    assert "flush_policy" in command("node", "config"), (
        "over a connection of our own, that has logged in"
    )
    wrong = tmp_path / "wrong.password"
    wrong.write_text("wrong-password")
    wrong.chmod(0o600)
    for words in (("topic", "list"), ("node", "config")):
        said = command(*words, "--password-file", str(wrong), code=4)
        assert "does not know us" in said
        assert "wrong-password" not in said
    assert "bob may not" in command("quota", "list", *as_bob, code=4)
    assert "bob may not" in command("user", "list", *as_bob, code=4)
    command("acl", "add", "bob", "read", "topic:invoices")
    command("consume", "invoices", *as_bob)  # INV-CCO5
    command("consume", "invoices", "--group", "g", *as_bob, code=4)
    contexts = tmp_path / "none.json"
    ca = ("--ca", str(place / "ca" / "ca.pem"))
    assert "you may" in command("region", "status", *as_bob, *ca, "--url", dev.url, code=4)
    assert "certificate" in command("region", "status", *as_bob, "--url", dev.url, code=1)
    wait_until("the trail to have all of it", 10, lambda: told_by_the_trail(folder) >= {
        ("change", "intended", "User:admin"), ("change", "done", "User:admin"), ("login", "done", "User:admin"),
        ("login", "done", "User:bob"), ("login", "refused", "User:admin"), ("refusal", "refused", "User:bob"), ("CREATE", "TOPIC", "mine"),
    })  # fmt: skip


def test_INV_WSC1_it_comes_up_again_with_the_same_secrets_and_leaves_none_but_in_their_folder(
    dev: Dev, security: dict[str, str], admin: Security, folder: Path
) -> None:
    status, metrics = asyncio.run(get(dev, "/metrics", admin.ca, **admin.http_headers("https://h")))
    assert status == 200
    assert "tidemark_" in metrics
    (folder / "metrics.txt").write_text(metrics)
    code, _, errors = dev.stop()
    assert code == 0, errors
    run("audit", "verify", str(folder / "eu" / "audit"))
    place = folder / "security"
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    open_files = [
        path.name for path in place.rglob("*") if path.is_file() and path.stat().st_mode & 0o077
    ]
    assert all(name.endswith(".pem") and "key" not in name for name in open_files), open_files
    said = [json.loads(line) for line in (folder / "eu" / "node.log").read_text().splitlines()]
    assert "debug" in {each["level"] for each in said}, "the log says all that it can"
    known = [security["password"], security["http_token"], "a-password-of-bob", "wrong-password"]
    found = list(secrets.in_files([folder], known, ["*/cluster/security/*"]))
    assert found == []
    planted = list(secrets.in_files([place], known))
    assert {"a known secret", "private key", "token of the HTTP port"} <= {
        each.kind for each in planted
    }
    again = Dev("--secure", *REGIONS, "--data-dir", str(folder))
    try:
        assert json.loads(again.line)["security"] == security
        status, _ = asyncio.run(
            get(
                again,
                "/v1/region",
                security["ca"],
                Authorization=f"Bearer {security['http_token']}",
            )
        )
        assert status == 200
    finally:
        again.stop()
