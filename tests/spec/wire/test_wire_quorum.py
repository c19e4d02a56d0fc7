"""The quorum of a region of one node, its features and its voters, over a real socket, in every version of Kafka 4.1.

Sources: KIP-595 and KIP-853 (quorum, voters, directories), KIP-584 and KIP-778 (features), KIP-500 (brokers), KIP-919 (types of
endpoints); Kafka 4.1's KafkaRaftClient, LeaderState, AddVoterHandler, RemoveVoterHandler, FeatureControlManager,
QuorumFeatures, ReplicationControlManager, AuthHelper for errors, their order and their texts.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest

from region_broker.controller.feature_levels import FEATURE, SUPPORTED
from region_broker.controller.metadata_commands import CountNodeStart
from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term
from region_broker.controller.raft.group_facts import FollowerFacts, GroupFacts
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.metadata_stores import MEMBER, open_metadata

NONE, UNKNOWN_TOPIC, NOT_LEADER, INVALID_REQUEST = 0, 3, 6, 42
INVALID_UPDATE, UPDATE_FAILED, NOT_REGISTERED, INCONSISTENT = 95, 96, 102, 104
MISMATCHED, UNSUPPORTED_TYPE, DUPLICATE_VOTER, VOTER_NOT_FOUND = 114, 115, 126, 127
QUORUM, FEATURES, UNREGISTER, CLUSTER, ADD_VOTER, REMOVE_VOTER = 55, 57, 64, 60, 80, 81
UPGRADE, SAFE, UNSAFE = 1, 2, 3
NEWEST = SUPPORTED[-1]
API_VERSIONS = 18
ALL_FAILED = "The update failed for all features since the following feature had an error: "


def said(answer: Any) -> tuple[int, str | None]:
    return answer.error_code.value, answer.error_message


def plays(fixture: WireFixture, facts: GroupFacts) -> None:
    """Let the node have these facts of a quorum that it cannot be part of yet."""
    fixture.services.quorum = lambda: facts


async def quorum(client: RawClient, version: int, *asked: tuple[str, list[int]]) -> Any:
    topics = [
        {"topic_name": name, "partitions": [{"partition_index": each} for each in indexes]}
        for name, indexes in asked or [("__cluster_metadata", [0])]
    ]
    return await client.call(QUORUM, version, {"topics": topics})


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KIP595_the_only_voter_leads_and_its_log_grows_with_each_command(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        began_ms = fixture.services.clock.wall_ms()
        answers = []
        for name in ("a", "b"):
            await fixture.topic(name)
            answers.append(await quorum(client, version))
        first, then = ((each.topics[0].partitions[0]) for each in answers)
        assert answers[0].error_code.value == NONE
        assert (first.error_code.value, first.partition_index) == (NONE, 0)
        assert (first.leader_id, first.leader_epoch) == (1, fixture.store.quorum.term)
        assert then.high_watermark == first.high_watermark + 1
        [voter] = then.current_voters
        assert (voter.replica_id, voter.log_end_offset) == (1, then.high_watermark)
        assert then.observers == ()
        if version >= 1:
            now_ms = fixture.services.clock.wall_ms()
            assert began_ms <= voter.last_fetch_timestamp <= now_ms
            assert began_ms <= voter.last_caught_up_timestamp <= now_ms
        if version >= 2:
            assert voter.replica_directory_id == MEMBER.incarnation
            [node] = answers[1].nodes
            [listener] = node.listeners
            assert (node.node_id, listener.host, listener.port) == (
                1, "127.0.0.1", fixture.server.port,
            )  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KIP595_anything_but_the_one_partition_is_unknown(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        own = "__cluster_metadata"
        for asked in ([(own, [1])], [("t", [0])], [(own, [0]), ("t", [2, 3])], [(own, [0, 0])]):
            answer = await quorum(client, version, *asked)
            assert answer.error_code.value == NONE
            rows = [
                (topic.topic_name, [(p.partition_index, p.error_code.value) for p in topic.partitions])
                for topic in answer.topics
            ]  # fmt: skip
            assert rows == [
                (name, [(index, UNKNOWN_TOPIC) for index in indexes]) for name, indexes in asked
            ]


OTHERS = Member(2, UUID(int=2)), Member(3, UUID(int=3))


def of_three(*, leader: Member | None, followers: Mapping[Member, FollowerFacts]) -> GroupFacts:
    return GroupFacts(
        me=MEMBER, leader=leader, term=Term(7), commit_index=LogIndex(40), last_index=LogIndex(42),
        membership=Membership((MEMBER, OTHERS[0]), (OTHERS[1],)), followers=followers,
    )  # fmt: skip


async def test_KIP836_followers_are_told_as_the_leader_knows_them(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        clock = fixture.services.clock
        heard_ms = clock.monotonic_ms()
        followers = {OTHERS[0]: FollowerFacts(LogIndex(42), heard_ms),
                     OTHERS[1]: FollowerFacts(LogIndex(30), heard_ms - 60_000)}  # fmt: skip
        plays(fixture, of_three(leader=MEMBER, followers=followers))
        client = await fixture.connect()
        before_ms = clock.wall_ms()
        answer = await quorum(client, 2)
        [partition] = answer.topics[0].partitions
        assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 7, 41)
        assert [(v.replica_id, v.log_end_offset) for v in partition.current_voters] == [
            (1, 43), (2, 43),
        ]  # fmt: skip
        quick = partition.current_voters[1]
        assert quick.last_caught_up_timestamp == quick.last_fetch_timestamp
        [learner] = partition.observers
        assert (learner.replica_id, learner.log_end_offset) == (3, 31)
        # Two clocks, each cut to whole milliseconds.
        assert learner.last_fetch_timestamp <= before_ms - 60_000 + 1
        assert learner.last_caught_up_timestamp == -1
        assert [node.node_id for node in answer.nodes] == [1, 2]


@pytest.mark.parametrize(("leader", "told"), [(OTHERS[0], 2), (None, -1)])
async def test_KIP595_who_does_not_lead_says_so(
    tmp_path: Path, leader: Member | None, told: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        plays(fixture, of_three(leader=leader, followers=MappingProxyType({})))
        client = await fixture.connect()
        [partition] = (await quorum(client, 2)).topics[0].partitions
        assert (partition.error_code.value, partition.leader_id) == (NOT_LEADER, told)
        voter = {"cluster_id": None, "voter_id": 1, "voter_directory_id": MEMBER.incarnation}
        added = await client.call(ADD_VOTER, 0, {**voter, "timeout": 1000, "listeners": []})
        removed = await client.call(REMOVE_VOTER, 0, voter)
        assert [added.error_code.value, removed.error_code.value] == [NOT_LEADER] * 2


# --- features ------------------------------------------------------------------------------------


async def features(
    client: RawClient, version: int, *updates: tuple[str, int, int], dry: bool = False
) -> Any:
    rows = [
        {"feature": name, "max_version_level": level,
         **({"allow_downgrade": kind != UPGRADE} if version == 0 else {"upgrade_type": kind})}
        for name, level, kind in updates
    ]  # fmt: skip
    asked = {"feature_updates": rows, "timeout": 1000}
    return await client.call(
        FEATURES, version, asked if version == 0 else {**asked, "validate_only": dry}
    )


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KIP584_levels_in_force_are_no_change(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await features(
            client, version, ("transaction.version", 2, UPGRADE), ("group.version", 1, UPGRADE)
        )
        assert said(answer) == (NONE, None)
        if version < 2:
            rows = [(row.feature, row.error_code.value) for row in answer.results]
            assert rows == [("transaction.version", NONE), ("group.version", NONE)]


@pytest.mark.parametrize(
    ("update", "error", "text"),
    [
        (("transaction.version", 3, UPGRADE), INVALID_UPDATE,
         "Invalid update version 3 for feature transaction.version. Local controller 1 only supports versions 0-2"),
        (("group.version", -1, SAFE), INVALID_UPDATE,
         "Invalid update version -1 for feature group.version. A feature version cannot be less than 0."),
        (("no.such", 1, UPGRADE), INVALID_UPDATE,
         "Invalid update version 1 for feature no.such. Local controller 1 does not support this feature."),
        (("no.such", 0, UNSAFE), INVALID_UPDATE, "Invalid update version 0 for feature no.such. "),
        (("transaction.version", 1, UPGRADE), INVALID_UPDATE,
         "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe"),
        (("group.version", 1, 9), INVALID_UPDATE,
         "Invalid update version 1 for feature group.version. The controller does not support the given upgrade type."),
        (("transaction.version", 1, SAFE), UPDATE_FAILED, "cannot be lowered"),
        (("group.version", 0, UNSAFE), UPDATE_FAILED, "cannot be lowered"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dry", [False, True])
async def test_KIP584_one_bad_feature_fails_all(
    tmp_path: Path, update: tuple[str, int, int], error: int, text: str, dry: bool
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        good = ("group.version", 1, UPGRADE)
        for version in (1, 2):
            answer = await features(client, version, good, update, dry=dry)
            assert answer.error_code.value == error
            assert answer.error_message.startswith(ALL_FAILED)
            assert text in answer.error_message
            assert getattr(answer, "results", ()) == ()


async def test_KIP584_version_0_says_whether_a_downgrade_is_allowed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        forbidden = await features(client, 0, ("transaction.version", 1, UPGRADE))
        allowed = await features(client, 0, ("transaction.version", 1, SAFE))
        assert [forbidden.error_code.value, allowed.error_code.value] == [
            INVALID_UPDATE, UPDATE_FAILED,
        ]  # fmt: skip


async def at_level_1(folder: Path) -> None:
    """Make the folder as an older release would have."""
    store = await open_metadata(
        folder / "metadata.db", new_cluster_id="wire-world", levels=range(1, 2)
    )
    await store.apply(CountNodeStart())
    await store.close()


async def finalized(client: RawClient) -> tuple[tuple[int, int, int], int]:
    """Return what ApiVersions says of the region's own feature (supported, finalized), and the epoch of all."""
    software = {"client_software_name": "test", "client_software_version": "1"}
    answer = await client.call(API_VERSIONS, 3, software)
    [known] = [row for row in answer.supported_features if row.name == FEATURE]
    [level] = [row for row in answer.finalized_features if row.name == FEATURE]
    return (known.min_version, known.max_version, level.max_version_level), answer.finalized_features_epoch  # fmt: skip


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KIP584_the_level_of_the_region_is_raised_and_never_lowered(
    tmp_path: Path, version: int
) -> None:
    await at_level_1(tmp_path)
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        levels, before = await finalized(client)
        assert levels == (1, NEWEST, 1)
        if version:
            dry = await features(client, version, (FEATURE, NEWEST, UPGRADE), dry=True)
            assert said(dry) == (NONE, None)
            assert (await finalized(client))[0] == (1, NEWEST, 1)
        bad = await features(client, version, (FEATURE, NEWEST, UPGRADE), ("no.such", 1, UPGRADE))
        assert bad.error_code.value == INVALID_UPDATE
        assert (await finalized(client))[0] == (1, NEWEST, 1), "one bad feature fails all"
        answer = await features(client, version, (FEATURE, NEWEST, UPGRADE))
        assert said(answer) == (NONE, None)
        levels, epoch = await finalized(client)
        assert levels == (1, NEWEST, NEWEST)
        assert epoch > before, "clients look at newer features only"
        assert said(await features(client, version, (FEATURE, NEWEST, UPGRADE))) == (NONE, None)
        lowered = await features(client, version, (FEATURE, 1, SAFE))
        assert lowered.error_code.value == UPDATE_FAILED
        assert "is not lowered" in lowered.error_message
        unknown = await features(client, version, (FEATURE, NEWEST + 1, UPGRADE))
        assert unknown.error_code.value == INVALID_UPDATE
        assert f"Local controller 1 only supports versions 1-{NEWEST}" in unknown.error_message


# --- brokers and voters --------------------------------------------------------------------------


async def test_KIP500_no_node_can_be_unregistered(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        for node in (2, -1, 2**31 - 1):
            answer = await client.call(UNREGISTER, 0, {"broker_id": node})
            assert said(answer) == (
                NOT_REGISTERED, f"Broker ID {node} is not currently registered",
            )  # fmt: skip
        answer = await client.call(UNREGISTER, 0, {"broker_id": 1})
        assert answer.error_code.value == INVALID_REQUEST
        assert "node 1 keeps the metadata" in answer.error_message


LISTENERS = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}]
DIRECTORY = UUID(int=99)


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"cluster_id": "another"}, INCONSISTENT, "wire-world"),
        ({"voter_id": -1}, INVALID_REQUEST, "valid voter"),
        ({"voter_directory_id": None}, INVALID_REQUEST, "valid voter"),
        ({"listeners": [], "voter_id": 1}, INVALID_REQUEST, "endpoint"),
        ({"voter_id": 1}, DUPLICATE_VOTER, "already part of the set of voters"),
        ({"voter_id": 1, "voter_directory_id": MEMBER.incarnation}, DUPLICATE_VOTER, "already"),
        ({}, INVALID_REQUEST, "joins and votes by itself"),
        ({"cluster_id": None}, INVALID_REQUEST, "joins and votes by itself"),
    ],
)
async def test_KIP853_no_voter_can_be_added(
    tmp_path: Path, asked: dict[str, Any], error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        whole = {"cluster_id": "wire-world", "timeout": 1000, "voter_id": 2,
                 "voter_directory_id": DIRECTORY, "listeners": LISTENERS, **asked}  # fmt: skip
        answer = await client.call(ADD_VOTER, 0, whole)
        assert answer.error_code.value == error
        assert text in answer.error_message


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ({"cluster_id": "another"}, INCONSISTENT, "wire-world"),
        ({"voter_id": -1}, INVALID_REQUEST, "valid voter"),
        ({"voter_directory_id": None}, INVALID_REQUEST, "valid voter"),
        ({"voter_id": 2}, VOTER_NOT_FOUND, "Cannot remove voter 2"),
        ({"voter_directory_id": DIRECTORY}, VOTER_NOT_FOUND, "Cannot remove voter 1"),
        ({}, INVALID_REQUEST, "tidemark cluster node remove"),
        ({"cluster_id": None}, INVALID_REQUEST, "tidemark cluster node remove"),
    ],
)
async def test_KIP853_the_only_voter_cannot_be_removed(
    tmp_path: Path, asked: dict[str, Any], error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        whole = {"cluster_id": "wire-world", "voter_id": 1,
                 "voter_directory_id": MEMBER.incarnation, **asked}  # fmt: skip
        answer = await client.call(REMOVE_VOTER, 0, whole)
        assert answer.error_code.value == error
        assert text in answer.error_message
        assert fixture.store.quorum.membership.voters == (MEMBER,)


# --- endpoint types ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("endpoint_type", "error", "text"),
    [
        (2, MISMATCHED,
         "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"),
        (0, UNSUPPORTED_TYPE, "Unsupported endpoint type 0"),
        (123, UNSUPPORTED_TYPE, "Unsupported endpoint type 123"),
    ],
)  # fmt: skip
async def test_KIP919_this_port_is_a_brokers(
    tmp_path: Path, version: int, endpoint_type: int, error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(CLUSTER, version, {
            "include_cluster_authorized_operations": True, "endpoint_type": endpoint_type,
            **({"include_fenced_brokers": False} if version >= 2 else {}),
        })  # fmt: skip
        assert said(answer) == (error, text)
        assert (answer.controller_id, answer.brokers) == (-1, ())


async def test_a_quorum_that_has_ended_is_led_by_nobody(tmp_path: Path) -> None:
    """A disk that failed ends it: the node answers on, and claims no leadership that it has not."""
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        fixture.store.stop()
        [partition] = (await quorum(client, 2)).topics[0].partitions
        assert (partition.error_code.value, partition.leader_id) == (NOT_LEADER, -1)


async def test_facts_change_with_the_log(tmp_path: Path) -> None:
    """What is told is the quorum's own: nothing of it is made up at the port."""
    async with wire_fixture(tmp_path) as fixture:
        before = fixture.store.quorum
        await fixture.topic("a")
        after = fixture.store.quorum
        assert before.leads
        assert after == replace(
            before, commit_index=LogIndex(before.commit_index + 1),
            last_index=LogIndex(before.last_index + 1),
        )  # fmt: skip
        assert (after.me, after.membership, after.followers) == (MEMBER, Membership((MEMBER,)), {})
