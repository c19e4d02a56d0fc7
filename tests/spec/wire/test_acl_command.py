"""ACLs over a socket: `tidemark acl`, confluent-kafka's and kafka-python's AdminClient, and what ordinary clients of them are told then."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import NewTopic
from kafka.admin import ACL, ACLFilter, KafkaAdminClient, ResourcePattern, ResourcePatternFilter
from kafka.admin import ACLOperation as PythonOperation
from kafka.admin import ACLPermissionType as PythonPermission
from kafka.admin import ACLResourcePatternType as PythonPattern
from kafka.admin import ResourceType as PythonType

from region_broker.cli.admin import acl as acl_module
from region_broker.cli.main import main
from region_broker.security.access import Access, AccessChange, Operation
from region_broker.security.access import ResourceType as Kind
from region_broker.security.authorizer import AclAuthorizer
from tests.fixtures.judged_apis import acl
from tests.fixtures.kafka_port import WireFixture, node_file, wire_fixture

ANONYMOUS = "User:ANONYMOUS"
TIMEOUT_S = 10


@pytest.fixture
async def wire(tmp_path: Path) -> AsyncIterator[WireFixture]:
    """Run a node whose file names anonymous clients super users: they may make ACLs for others."""
    file = node_file(super_users=ANONYMOUS)
    async with wire_fixture(tmp_path, file=file) as fixture:
        fixture.services.authorizer = AclAuthorizer(
            lambda: fixture.store.image.access, frozenset({ANONYMOUS})
        )
        await fixture.topic("orders")
        yield fixture


def anonymous_is_nobody(wire: WireFixture) -> None:
    wire.services.authorizer = AclAuthorizer(lambda: wire.store.image.access)


async def run(wire: WireFixture, *words: str) -> tuple[int, str]:
    asked = ["acl", *words, "--bootstrap", f"127.0.0.1:{wire.server.port}"]
    result = await asyncio.to_thread(CliRunner().invoke, main, asked)
    return result.exit_code, result.output


async def listed(wire: WireFixture, *words: str) -> list[dict[str, Any]]:
    code, text = await run(wire, "list", "-o", "json", *words)
    assert code == 0, text
    rows: list[dict[str, Any]] = json.loads(text)
    return rows


def row(principal: str, operation: str, resource: str, **more: str) -> dict[str, str]:
    usual = {"permission": "allow", "pattern": "literal", "host": "*"}
    return {"principal": principal, "operation": operation, "resource": resource, **usual, **more}


# --- the command ----------------------------------------------------------------------------------


async def test_acls_are_added_listed_explained_and_removed(wire: WireFixture) -> None:
    assert await listed(wire) == []
    code, text = await run(wire, "add", "alice", "read,describe", "topic:orders", "--dry-run")
    assert (code, "would be added" in text) == (0, True)
    assert await listed(wire) == []
    assert (await run(wire, "add", "alice", "read,describe", "topic:orders"))[0] == 0
    assert (await run(wire, "add", "alice", "write", "topic:ord", "--prefixed"))[0] == 0
    assert (await run(wire, "add", "User:*", "all", "group:*", "--deny", "--host", "10.0.0.7"))[0] == 0  # fmt: skip
    assert (await run(wire, "add", "ops", "alter", "cluster"))[0] == 0
    of_alice = [
        row("User:alice", "read", "topic:orders"), row("User:alice", "describe", "topic:orders"),
        row("User:alice", "write", "topic:ord", pattern="prefixed"),
    ]  # fmt: skip
    everybody = row("User:*", "all", "group:*", permission="deny", host="10.0.0.7")
    ops = row("User:ops", "alter", "cluster")
    assert await listed(wire) == [everybody, *of_alice, ops]
    assert await listed(wire, "--principal", "alice") == of_alice
    assert await listed(wire, "--resource", "topic:ordinary") == [of_alice[2]]
    code, text = await run(wire, "add", "alice", "read,alter", "topic:orders", "-o", "json")
    assert [each["change"] for each in json.loads(text)] == ["there already", "added"]
    code, text = await run(wire, "remove", "alice", "alter,delete", "topic:orders", "-o", "json")
    assert (code, json.loads(text)) == (0, [row("User:alice", "alter", "topic:orders")])
    assert (await run(wire, "remove", "alice", "alter", "topic:orders"))[0] == 3
    assert (await run(wire, "remove", "alice", "read", "topic:orders", "--deny"))[0] == 3
    assert await listed(wire) == [everybody, *of_alice, ops]


async def test_explain_says_what_it_does_not_know_and_from_which_hosts_it_is_otherwise(
    wire: WireFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (await run(wire, "add", "alice", "write", "topic:orders"))[0] == 0
    assert (await run(wire, "add", "alice", "write", "topic:orders", "--deny", "--host", "10.0.0.7"))[0] == 0  # fmt: skip
    code, text = await run(wire, "explain", "alice", "write", "topic:orders")
    assert (code, "allowed" in text, "It is otherwise from 10.0.0.7" in text) == (0, True, True)
    _, text = await run(wire, "explain", "alice", "write", "topic:orders", "--host", "10.0.0.8")
    assert "otherwise" not in text
    assert await json_explained(wire, "alice", "write", "topic:orders", "--host", "10.0.0.8") == ([], True)  # fmt: skip
    monkeypatch.setattr(
        acl_module, "_node_of", lambda _client: acl_module._Node()
    )  # its configs are not told
    _, text = await run(wire, "explain", ANONYMOUS, "write", "topic:orders")
    assert "Super users and the topic of the audit trail are not known" in text
    assert await json_explained(wire, ANONYMOUS, "write", "topic:orders") == ([], False)


async def json_explained(wire: WireFixture, *words: str) -> tuple[list[str], bool]:
    _, text = await run(wire, "explain", *words, "-o", "json")
    found = json.loads(text[text.index("{") :])  # a warning may stand before it, for people
    return found["otherwise_from_hosts"], found["super_users_known"]


async def explained(wire: WireFixture, *words: str) -> tuple[bool, str, Any]:
    code, text = await run(wire, "explain", *words, "-o", "json")
    assert code == 0, text
    found = json.loads(text[text.index("{") :])
    return found["allowed"], found["because"], found["rule"]


async def test_explain_says_which_rule_decides_or_that_none_does(wire: WireFixture) -> None:
    for words in (
        ("alice", "write", "topic:ord", "--prefixed"), ("User:*", "write", "topic:orders", "--deny", "--host", "10.0.0.7"),
    ):  # fmt: skip
        assert (await run(wire, "add", *words))[0] == 0
    prefixed = row("User:alice", "write", "topic:ord", pattern="prefixed")
    denied = row("User:*", "write", "topic:orders", permission="deny", host="10.0.0.7")
    assert await explained(wire, "alice", "write", "topic:orders") == (True, "an ACL allows it", prefixed)  # fmt: skip
    assert await explained(wire, "alice", "describe", "topic:orders") == (True, "an ACL allows it", prefixed)  # fmt: skip
    by_host = ("alice", "write", "topic:orders", "--host", "10.0.0.7")
    assert await explained(wire, *by_host) == (False, "an ACL denies it", denied)
    assert await explained(wire, "alice", "read", "topic:orders") == (False, "no ACL allows it", None)  # fmt: skip
    assert await explained(wire, ANONYMOUS, "alter", "cluster") == (
        True, "a super user may do everything", None,
    )  # fmt: skip
    wire.services.authorizer = AclAuthorizer(Access)
    assert (await explained(wire, "alice", "read", "topic:orders"))[:2] == (
        True, "nothing is configured, so everything is allowed",
    )  # fmt: skip


async def test_INV_AUZ7_explain_knows_the_topic_that_keeps_the_trail(wire: WireFixture) -> None:
    assert (await run(wire, "add", "alice", "all", "topic:*"))[0] == 0
    delete = ("alice", "delete", "topic:tidemark.audit")
    allowed, because, _ = await explained(wire, *delete)
    assert (allowed, "audit trail" in because) == (False, True)
    assert (await explained(wire, "alice", "delete", "topic:orders"))[0]
    assert (await run(wire, "add", "alice", "alter", "cluster"))[0] == 0
    assert (await explained(wire, *delete))[:2] == (True, "an ACL allows it")
    alike = ("alice", "create", "topic:tidemark_audit")
    assert (await explained(wire, *alike))[:2] == (True, "an ACL allows it")
    assert (await run(wire, "remove", "alice", "alter", "cluster"))[0] == 0
    allowed, because, _ = await explained(wire, *alike)
    assert (allowed, "audit trail" in because) == (False, True)


@pytest.mark.parametrize("written", ["::ffff:10.0.0.7", "::FFFF:a00:7"])
async def test_INV_SID2_an_address_of_ipv6_that_holds_one_of_ipv4_is_that_one(wire: WireFixture, written: str) -> None:  # fmt: skip
    """RFC 4291, 2.5.5.2. As it is written it would deny nobody."""
    denies = ("User:*", "write", "topic:orders", "--deny", "--host", written)
    assert (await run(wire, "add", *denies))[0] == 0
    for host in ("10.0.0.7", written):
        explained_there = await explained(wire, "alice", "write", "topic:orders", "--host", host)
        assert explained_there == (False, "an ACL denies it", row("User:*", "write", "topic:orders", permission="deny", host="10.0.0.7"))  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("alice", "raed", "topic:orders"), "did you mean read?"),
        (("alice", "read", "topik:orders"), "did you mean topic?"),
        (("alice", "read", "topic"), "topic:NAME"),
        (("alice", "read", "cluster:other"), "there is one cluster"),
        (("alice", "read", "cluster", "--prefixed"), "leave --prefixed out"),
        (("alice", "read", "topic:*", "--prefixed"), "leave --prefixed out"),
        (("User:", "read", "topic:orders"), "write TYPE:NAME"),
    ],
)
async def test_a_word_that_means_nothing_is_said_with_what_would(
    words: tuple[str, ...], said: str
) -> None:
    result = await asyncio.to_thread(CliRunner().invoke, main, ["acl", "add", *words])
    assert (result.exit_code, said in result.output) == (2, True), result.output


async def test_who_may_only_look_is_shown_that_there_is_nothing(wire: WireFixture) -> None:
    rule = acl(Kind.CLUSTER, Operation.DESCRIBE, who=ANONYMOUS)
    await wire.services.metadata.change_access(AccessChange(acls_added=(rule,)))
    anonymous_is_nobody(wire)
    assert await listed(wire, "--principal", "alice") == []
    code, text = await run(wire, "add", "alice", "read", "topic:orders")
    assert (code, "were not added" in text) == (4, True), text


async def test_who_may_not_is_told_by_exit_code_and_where_nobody_is_known_what_to_do(
    wire: WireFixture,
) -> None:
    assert (await run(wire, "add", "alice", "read", "topic:orders"))[0] == 0
    anonymous_is_nobody(wire)
    assert (await run(wire, "list"))[0] == 4
    wire.services.authorizer = AclAuthorizer(Access)
    code, text = await run(wire, "list")
    assert (code, "super_users" in text) == (1, True), text


# --- Kafka's own clients --------------------------------------------------------------------------


def binding(name: str, operation: AclOperation, *, prefixed: bool = False) -> AclBinding:
    how = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(ResourceType.TOPIC, name, how, "User:alice", "*", operation, AclPermissionType.ALLOW)  # fmt: skip


async def test_confluent_kafka_makes_describes_and_removes_acls(wire: WireFixture) -> None:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{wire.server.port}", "log_level": 0})
    two = [
        binding("orders", AclOperation.READ),
        binding("ord", AclOperation.WRITE, prefixed=True),
    ]

    def play() -> None:
        for answer in admin.create_acls(two).values():
            assert answer.result(TIMEOUT_S) is None
        filtered: Any = AclBindingFilter
        everything = filtered(
            ResourceType.TOPIC, "orders", ResourcePatternType.MATCH, None, None, AclOperation.ANY, AclPermissionType.ANY
        )  # fmt: skip
        assert set(admin.describe_acls(everything).result(TIMEOUT_S)) == set(two)
        [gone] = admin.delete_acls([everything]).values()
        assert set(gone.result(TIMEOUT_S)) == set(two)
        assert admin.describe_acls(everything).result(TIMEOUT_S) == []

    await asyncio.to_thread(play)


async def test_kafka_python_makes_describes_and_removes_acls(wire: WireFixture) -> None:
    def play() -> None:
        admin = KafkaAdminClient(bootstrap_servers=f"127.0.0.1:{wire.server.port}")
        try:
            one = ACL(
                principal="User:alice", host="*", operation=PythonOperation.READ,
                permission_type=PythonPermission.ALLOW,
                resource_pattern=ResourcePattern(PythonType.TOPIC, "ord", PythonPattern.PREFIXED),
            )  # fmt: skip
            made = admin.create_acls([one])
            assert (made["succeeded"], made["failed"]) == ([one], [])
            matching = ACLFilter(
                principal="User:alice", host=None, operation=PythonOperation.ANY,
                permission_type=PythonPermission.ANY,
                resource_pattern=ResourcePatternFilter(PythonType.TOPIC, "orders", PythonPattern.MATCH),
            )  # fmt: skip
            found, error = admin.describe_acls(matching)
            assert (found, error.errno) == ([one], 0)
            [(_filter, gone, error)] = admin.delete_acls([matching])
            assert ([*gone], error.errno) == ([one], 0)
        finally:
            admin.close()

    await asyncio.to_thread(play)


async def test_confluent_kafka_is_told_what_it_may_not_and_served_what_it_may(
    wire: WireFixture,
) -> None:
    address = f"127.0.0.1:{wire.server.port}"
    rule = acl(Kind.TOPIC, Operation.WRITE, name="orders", who=ANONYMOUS)
    await wire.services.metadata.change_access(AccessChange(acls_added=(rule,)))
    anonymous_is_nobody(wire)

    def play() -> None:
        told: list[KafkaError | None] = []
        producer = Producer({"bootstrap.servers": address, "message.timeout.ms": 5_000})
        producer.produce("orders", b"v", on_delivery=lambda error, _: told.append(error))
        producer.produce("secret", b"v", on_delivery=lambda error, _: told.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert told[0] is None or told[1] is None
        refused = next(each for each in told if each is not None)
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
        assert set(admin.list_topics(timeout=TIMEOUT_S).topics) == {"orders"}
        [made] = admin.create_topics([NewTopic("new", 1, 1)]).values()
        with pytest.raises(KafkaException) as raised:
            made.result(TIMEOUT_S)
        assert raised.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        reader = Consumer({"bootstrap.servers": address, "group.id": "g"})
        reader.subscribe(["orders"])
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        reader.close()

    await asyncio.to_thread(play)
