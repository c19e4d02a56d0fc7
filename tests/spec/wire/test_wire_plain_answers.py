"""What a Kafka without security, quotas and other nodes answers to its administrators, in every version of 4.1.

Expected values are those that Apache Kafka 4.1.1, one node as it ships, gave to the same frames (2026-11), and its
sources: AclApis, ReplicationControlManager, ReplicaManager, ClientQuotasImage, ScramImage, KafkaApis.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.kafka_port import RawClient, wire_fixture

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS, ELECT, REASSIGN, REASSIGNMENTS = 29, 30, 31, 43, 45, 46
QUOTAS, SCRAM, TOKENS, LOG_DIRS = 48, 50, 41, 34
FILTER = {
    "resource_type_filter": 1, "resource_name_filter": None, "pattern_type_filter": 1,
    "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1,
}  # fmt: skip
ACL = {
    "resource_type": 2, "resource_name": "t", "resource_pattern_type": 3,
    "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip


def said(row: Any) -> tuple[int, str | None]:
    return row.error_code.value, row.error_message


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_KAFKA_acls_without_an_authorizer_are_SECURITY_DISABLED(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        found = await client.call(DESCRIBE_ACLS, version, FILTER)
        assert said(found) == (54, "No Authorizer is configured on the broker")
        assert found.resources == ()
        created = await client.call(CREATE_ACLS, version, {"creations": [ACL, ACL]})
        assert [said(row) for row in created.results] == [(54, "No Authorizer is configured.")] * 2
        assert (await client.call(CREATE_ACLS, version, {"creations": []})).results == ()
        deleted = await client.call(DELETE_ACLS, version, {"filters": [FILTER] * 2})
        rows = deleted.filter_results
        assert [said(row) for row in rows] == [(54, "No Authorizer is configured.")] * 2
        assert [row.matching_acls for row in rows] == [(), ()]


async def elected(client: RawClient, version: int, partitions: Any, **more: Any) -> Any:
    topics = None if partitions is None else [
        {"topic": name, "partitions": indexes} for name, indexes in partitions
    ]  # fmt: skip
    asked = {"topic_partitions": topics, "timeout": 1000, **more}
    if version > 0:
        asked.setdefault("election_type", 0)
    answer = await client.call(ELECT, version, asked)
    rows = [
        (topic.topic, [(row.partition_id, *said(row)) for row in topic.partition_result])
        for topic in answer.replica_election_results
    ]
    return (answer.error_code.value if version > 0 else 0), rows


NOT_NEEDED = (84, "Leader election not needed for topic partition.")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KAFKA_a_leader_that_leads_is_not_elected(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        assert await elected(client, version, [("t", [0, 1, 7]), ("nope", [0])]) == (0, [
            ("t", [(0, *NOT_NEEDED), (1, *NOT_NEEDED), (7, 3, "No such partition as t-7")]),
            ("nope", [(0, 3, "No such topic as nope")]),
        ])  # fmt: skip
        assert await elected(client, version, None) == (0, [("t", [])])
        assert await elected(client, version, []) == (0, [])
        if version > 0:
            unclean = await elected(client, version, [("t", [0])], election_type=1)
            assert unclean == (0, [("t", [(0, *NOT_NEEDED)])])
            unknown = await elected(client, version, [("t", [0])], election_type=7)
            assert unknown == (42, [("t", [(0, 42, "Unknown election type 7")])])


async def test_a_partition_that_has_stopped_has_no_other_leader(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        fixture.partition("t", 1).log.fail("the disk is gone")
        client = await fixture.connect()
        for kind, error in ((0, 80), (1, 83)):
            _, rows = await elected(client, 2, None, election_type=kind)
            ((name, ((index, code, text),)),) = rows
            assert (name, index, code) == ("t", 1, error)
            assert "the disk is gone" in text


@pytest.mark.parametrize("version", [0, 1])
async def test_KAFKA_a_partition_stays_where_it_is(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        moves = [[1], [5], [1, 5], None, [], [1, 1]]
        parts = [{"partition_index": 0, "replicas": nodes} for nodes in moves]
        missing = [
            {"partition_index": 9, "replicas": [1]},
            {"partition_index": 9, "replicas": None},
        ]
        nope = [{"partition_index": 0, "replicas": nodes} for nodes in ([1], None)]
        topics = [
            {"name": "t", "partitions": parts + missing},
            {"name": "nope", "partitions": nope},
        ]
        asked: dict[str, Any] = {"timeout": 1000, "topics": topics}
        if version > 0:
            asked["allow_replication_factor_change"] = False
        answer = await client.call(REASSIGN, version, asked)
        assert said(answer) == (0, None)
        known, unknown = answer.responses
        codes = [row.error_code.value for row in known.partitions]
        assert codes == [0, 39, 39, 85, 39, 39, 3, 3]
        assert [said(row) for row in known.partitions[6:]] == [
            (3, "Unable to find partition t:9.")
        ] * 2
        assert [said(row) for row in unknown.partitions] == [
            (3, "Unable to find a topic named nope.")
        ] * 2
        if version > 0:
            assert answer.allow_replication_factor_change is False


@pytest.mark.parametrize("version", [1, 2])
async def test_KAFKA_a_log_stays_in_its_folder(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        fixture.partition("t", 1).log.fail("the disk is gone")
        client = await fixture.connect()
        topics = [{"name": "t", "partitions": [0, 1, 9]}, {"name": "nope", "partitions": [0]}]
        own = str(fixture.services.partitions.data_dir)
        asked = {"dirs": [{"path": path, "topics": topics} for path in ("/nope", own)]}
        answer = await client.call(LOG_DIRS, version, asked)
        assert [
            (topic.topic_name, [row.error_code.value for row in topic.partitions])
            for topic in answer.results
        ] == [("t", [57, 57, 57]), ("nope", [57]), ("t", [0, 56, 3]), ("nope", [3])]


async def test_KAFKA_no_reassignment_is_under_way(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        for topics in (None, [{"name": "t", "partition_indexes": [0, 9]}]):
            answer = await client.call(REASSIGNMENTS, 0, {"timeout": 1000, "topics": topics})
            assert (*said(answer), answer.topics) == (0, None, ())


def component(kind: str, how: int, match: str | None = None) -> dict[str, Any]:
    return {"entity_type": kind, "match_type": how, "match": match}


BAD_FILTERS: list[tuple[list[dict[str, Any]], int, str]] = [
    ([component("bogus", 0, "x")], 35, "Unsupported entity type bogus"),
    ([component("user", 9, "x")], 42, "Unknown match type 9"),
    ([component("user", 0)], 42, "Request specified MATCH_TYPE_EXACT, but set match string to null."),
    ([component("user", 1, "x")], 42,
     "Request specified MATCH_TYPE_DEFAULT, but also specified a match string."),
    ([component("user", 1)] * 2, 42, "Entity type user cannot appear more than once in the filter."),
    ([component("user", 2), component("ip", 2)], 42,
     ("Invalid entity filter component combination. IP filter component should not be used"
      " with user or clientId filter component.")),
    ([component("", 2)], 42, "Invalid empty entity type."),
]  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
async def test_KAFKA_there_are_no_quotas(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        for components in ([], [component("user", 0, "x"), component("client-id", 2)]):
            asked = {"components": components, "strict": True}
            answer = await client.call(QUOTAS, version, asked)
            assert (*said(answer), answer.entries) == (0, "", ())
        for components, error, text in BAD_FILTERS:
            asked = {"components": components, "strict": False}
            answer = await client.call(QUOTAS, version, asked)
            assert (*said(answer), answer.entries) == (error, text, None)


async def test_KAFKA_there_are_no_scram_users(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        everybody: list[dict[str, Any]] = [{"users": None}, {"users": []}]
        for asked in everybody:
            answer = await client.call(SCRAM, 0, asked)
            assert (*said(answer), answer.results) == (0, "", ())
        names = [{"name": name} for name in ("a", "b", "a")]
        rows = (await client.call(SCRAM, 0, {"users": names})).results
        twice = "Cannot describe SCRAM credentials for the same user twice in a single request: a"
        missing = "Attempt to describe a user credential that does not exist: b"
        assert [(row.user, *said(row)) for row in rows] == [("a", 92, twice), ("b", 91, missing)]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_KAFKA_tokens_are_not_asked_for_in_plaintext(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(TOKENS, version, {"owners": None})
        assert (answer.error_code.value, answer.tokens) == (64, ())


async def test_a_mirror_answers_these_itself(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.region.acting = False
        client = await fixture.connect()
        assert (await client.call(DESCRIBE_ACLS, 3, FILTER)).error_code.value == 54
        assert await elected(client, 2, [("t", [0])]) == (0, [("t", [(0, *NOT_NEEDED)])])
        assert fixture.forwarder.frames == []
