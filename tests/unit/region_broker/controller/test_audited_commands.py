"""What the trail is told of commands: each kind, before it is applied, and no secret (INV-AUC1, INV-AUC2, INV-AUD1)."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import get_args
from uuid import UUID

import msgspec
import pytest

from region_broker.controller import audited_commands
from region_broker.controller.access_commands import ChangeAccess
from region_broker.controller.audited_commands import (
    QUIET,
    RECORDED,
    TOLD_ROWS_MAX,
    audited,
    event_of,
)
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import (
    Command,
    CountNodeStart,
    CreateTopic,
    DeleteTopic,
    SetNodeConfigs,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused
from region_broker.security.access import (
    AccessChange,
    Acl,
    DelegationToken,
    Operation,
    PatternType,
    Permission,
    Quota,
    ResourceType,
    ScramKeys,
)
from region_broker.security.audit.events import DETAIL_CHARS_MAX, Actor, Outcome, acting_as
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.metadata_stores import open_metadata

EMPTY = MetadataImage(version=0, cluster_id="c")
TOPIC = TopicImage(topic_id=UUID(int=5), name="orders", partition_count=3)


class Alice:
    """Asks for changes."""

    def actor(self) -> Actor:
        """See `Acting`."""
        return Actor("User:alice", "10.0.0.1", "SCRAM-SHA-256", "", "10.0.0.1:7#3")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    opened = await open_metadata(tmp_path / "metadata.db")
    opened.audit = ToldTrail()
    yield opened
    await opened.close()


def trail_of(store: MetadataStore) -> ToldTrail:
    assert isinstance(store.audit, ToldTrail)
    return store.audit


def test_each_kind_of_command_is_recorded_or_said_to_be_quiet() -> None:
    """INV-AUC1: a new one fails here."""
    assert set(get_args(Command)) == RECORDED | QUIET.keys()
    assert not RECORDED & QUIET.keys()
    assert all(QUIET.values())


async def test_what_somebody_asked_for_is_recorded_before_and_behind(store: MetadataStore) -> None:
    seen: list[int] = []
    store.follow(lambda image: seen.append(len(trail_of(store).told)))
    with acting_as(Alice()):
        await store.apply(CreateTopic(TOPIC))
    assert seen[-1] == 1, "the intent was there, and no outcome"
    intent, outcome = trail_of(store).told
    assert intent.actor == Alice().actor()
    assert (intent.outcome, intent.resource_type, intent.resource) == (Outcome.INTENDED, "TOPIC", "orders")  # fmt: skip
    assert intent.details["partitions"] == 3
    assert (outcome.outcome, outcome.answers) == (Outcome.DONE, 1)


async def test_what_cannot_be_recorded_is_not_done(store: MetadataStore) -> None:
    """INV-ATR1."""
    trail_of(store).refuses = "the audit trail cannot be written: No space left on device"
    with acting_as(Alice()), pytest.raises(MetadataUnwritable, match=r"nothing has changed.*No space") as caught:  # fmt: skip
        await store.apply(CreateTopic(TOPIC))
    assert not isinstance(caught.value, MetadataInDoubt)
    assert "orders" not in store.image.topics
    await store.apply(CreateTopic(TOPIC))
    assert "orders" in store.image.topics, "by the node itself: it must go on"


async def test_a_refused_change_says_why(store: MetadataStore) -> None:
    await store.apply(CreateTopic(TOPIC))
    with acting_as(Alice()), pytest.raises(CommandRefused):
        await store.apply(CreateTopic(TOPIC))
    assert [(each.outcome.value, each.reason) for each in trail_of(store).told[-2:]] == [
        ("intended", ""), ("refused", "topic-exists"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (MetadataInDoubt("the quorum did not answer"), Outcome.UNKNOWN),
        (MetadataUnwritable("the disk is full"), Outcome.FAILED),
        (ZeroDivisionError("nobody thought of it"), Outcome.UNKNOWN),
        (asyncio.CancelledError(), Outcome.UNKNOWN),
    ],
)
async def test_an_intent_has_an_outcome_however_its_change_ends(
    error: BaseException, outcome: Outcome
) -> None:
    """Nobody is told that nothing happened where nobody knows."""

    async def apply() -> None:
        raise error

    trail = ToldTrail()
    with acting_as(Alice()), pytest.raises(type(error)):
        await audited(trail, EMPTY, CreateTopic(TOPIC), apply)
    assert [each.outcome for each in trail.told] == [Outcome.INTENDED, outcome]
    assert trail.told[1].answers == 1


@pytest.mark.parametrize("error", [ZeroDivisionError("nobody thought of it"), asyncio.CancelledError()])  # fmt: skip
async def test_INV_AUC3_what_a_node_does_by_itself_is_recorded_however_it_ends(
    error: BaseException,
) -> None:
    """1. A node fences another one by itself. 2. Its task is cancelled behind the commit. 3. No trail would have that."""

    async def apply() -> None:
        raise error

    trail = ToldTrail()
    with pytest.raises(type(error)):
        await audited(trail, EMPTY, CreateTopic(TOPIC), apply)
    assert [(each.outcome, each.answers) for each in trail.told] == [(Outcome.UNKNOWN, 0)]


async def test_what_a_node_does_by_itself_is_recorded_behind_and_some_not(store: MetadataStore) -> None:  # fmt: skip
    await store.apply(CountNodeStart())
    await store.apply(CreateTopic(TOPIC))
    await store.apply(DeleteTopic(TOPIC.topic_id))
    assert trail_of(store).short() == [
        ("", "CreateTopic", "orders", "done"), ("", "DeleteTopic", "orders", "done"),
    ]  # fmt: skip


def test_configs_are_told_as_what_changes() -> None:
    topic = msgspec.structs.replace(TOPIC, configs={"retention.ms": "5", "x": "1"})
    image = msgspec.structs.replace(EMPTY, topics={"orders": topic})
    event = event_of(image, SetTopicConfigs(TOPIC.topic_id, {"retention.ms": "9"}))
    assert event.details == {"set retention.ms": "9", "removed": ["x"]}


def test_INV_AUC4_of_very_many_rows_as_many_are_told_as_a_record_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, text_of = list[Acl](), audited_commands._acl

    def counted(row: Acl) -> str:
        made.append(row)
        return text_of(row)

    monkeypatch.setattr(audited_commands, "_acl", counted)
    acls = tuple(
        Acl(ResourceType.TOPIC, PatternType.LITERAL, f"t{at}", "User:bob", "*", Operation.READ, Permission.ALLOW)
        for at in range(3 * TOLD_ROWS_MAX)
    )  # fmt: skip
    change = AccessChange(acls_removed=acls, acls_added=acls[:3], tokens_removed=("t",) * (TOLD_ROWS_MAX + 2))  # fmt: skip
    told = event_of(EMPTY, ChangeAccess(change)).details
    assert len(made) == TOLD_ROWS_MAX + 3
    assert {kind: len(rows) if isinstance(rows, list) else rows for kind, rows in told.items()} == {
        "acls_removed": TOLD_ROWS_MAX, "acls_added": 3, "delegations_removed": TOLD_ROWS_MAX, "left_out": 2 * TOLD_ROWS_MAX + 2,
    }  # fmt: skip
    rows = told["acls_removed"]
    assert isinstance(rows, list)
    assert sum(map(len, rows)) > DETAIL_CHARS_MAX, "a record has no room for more"


SALT, STORED, SERVER = b"salt-of-alice", b"stored-key-of-alice", b"server-key-of-alice"


def test_no_secret_is_told() -> None:
    """INV-AUC2: of keys nothing that a login could be made from, of configurations no value that may be a secret."""
    change = AccessChange(
        acls_added=(
            Acl(ResourceType.TOPIC, PatternType.PREFIXED, "pay", "User:bob", "*", Operation.READ, Permission.ALLOW),
        ),
        keys_put=(ScramKeys("alice", "SCRAM-SHA-256", SALT, 4096, STORED, SERVER),),
        keys_removed=(("eve", "SCRAM-SHA-512"),),
        quotas_put=(Quota((("user", None),), {"producer_byte_rate": 1024.0}),),
        tokens_put=(DelegationToken("tok-1", "User:alice", "User:alice", (), 1, 2, 3),),
    )  # fmt: skip
    told = event_of(EMPTY, ChangeAccess(change)).details
    assert told == {
        "acls_added": ["ALLOW User:bob from * READ on TOPIC:PREFIXED:pay"],
        "keys_put": ["alice SCRAM-SHA-256 iterations=4096"],
        "keys_removed": ["eve SCRAM-SHA-512"],
        "quotas_put": ["user=<default> {'producer_byte_rate': 1024.0}"],
        "delegations_put": ["tok-1 owner=User:alice requester=User:alice expires=2"],
    }
    text = json.dumps(told)
    assert not any(secret.decode() in text or secret.hex() in text for secret in (SALT, STORED, SERVER))  # fmt: skip
    secrets = {
        "ssl.key.password": "a", "sasl.jaas.config": "b", "http_token_admin": "c", "client_secret": "d", "encryption_key": "e",
    }  # fmt: skip
    event = event_of(EMPTY, SetNodeConfigs(1, {**secrets, "log_level": "debug"}))
    assert event.details["set log_level"] == "debug"
    assert {event.details[f"set {key}"] for key in secrets} == {"(hidden)"}
