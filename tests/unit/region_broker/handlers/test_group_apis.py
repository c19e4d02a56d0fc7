"""Every version of every group API through the real codec: bytes in, bytes out.

B4: field by field, `require_stable` in every version and shape that has it.
"""

import importlib
from collections.abc import AsyncIterator
from datetime import timedelta
from io import BytesIO
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from kio.serial import entity_reader, entity_writer

from idempotency.identity import TopicName, TopicPartition
from idempotency.partition_state import PartitionState
from region_broker.controller.metadata_image import OFFSETS_LEDGER, MetadataImage, TopicImage
from region_broker.groups.messages import CommitRequest, FetchOutcome, OffsetToCommit
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.authorizing import denied_topics
from region_broker.handlers.dispatch.registry import Api, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups import (
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from region_broker.handlers.transactions import txn_offset_commit
from region_broker.security.authorizer import AllowAll
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.requests import decode_request
from region_broker.wire.memory_budget import MemoryBudget
from tests.unit.region_broker.groups.fakes import Fixture, running
from txn_coordinator.connection_order import Arrival
from txn_coordinator.verdicts import TxnVerdict

ORDERS = TopicImage(topic_id=UUID(int=9), name="orders", partition_count=3)
FOLDER = {
    8: "offset_commit", 9: "offset_fetch", 11: "join_group", 12: "heartbeat", 13: "leave_group",
    14: "sync_group", 15: "describe_groups", 16: "list_groups", 28: "txn_offset_commit",
    68: "consumer_group_heartbeat", 69: "consumer_group_describe",
}  # fmt: skip


class OpenTransaction:
    """A transaction coordinator that says what it is told to say."""

    def __init__(self) -> None:
        self.verdict = TxnVerdict.OK
        self.added: list[TopicPartition] = []
        self.verified: list[TopicPartition] = []
        self.arrivals: list[Arrival | None] = []

    async def add_partitions(
        self, tid: str, pid: int, epoch: int, partitions: list[TopicPartition], *, implicit: bool
    ) -> TxnVerdict:
        assert implicit
        self.added += partitions
        return self.verdict

    def verify(
        self,
        tid: str,
        pid: int,
        epoch: int,
        partition: TopicPartition,
        arrival: Arrival | None = None,
    ) -> TxnVerdict:
        self.verified.append(partition)
        self.arrivals.append(arrival)
        return self.verdict


class Client:
    """Sends one request through codec and handler, and reads the answer with kio's own reader."""

    def __init__(self, fixture: Fixture) -> None:
        self.fixture = fixture
        self.txn = OpenTransaction()
        self.ledger = SimpleNamespace(state=PartitionState())
        fixture.topics.put("orders", ORDERS.partition_count, number=ORDERS.topic_id.int)
        image = MetadataImage(version=1, cluster_id="c", topics={"orders": ORDERS})
        self.services: Any = SimpleNamespace(
            groups=fixture.groups,
            txn=self.txn,
            metadata=SimpleNamespace(image=image),
            authorizer=AllowAll(),
            memory=MemoryBudget(),
            partitions=SimpleNamespace(get=lambda _name, _number: self.ledger),
        )

    async def send(self, api: Api, version: int, make: Any) -> Any:
        package = f"kio.schema.{FOLDER[api.key]}.v{version}"
        requests = importlib.import_module(f"{package}.request")
        responses = importlib.import_module(f"{package}.response")
        entity = make(requests)
        raw = BytesIO()
        entity_writer(type(entity))(raw, entity)
        request = decode_request(api.key, version, memoryview(raw.getvalue()))
        ctx = RequestContext(
            self.services, 1, api.key, version, 77, client_id="cl", peer="127.0.0.1:4"
        )
        fields = await api.handle(ctx, request)
        assert fields is not None
        assert not isinstance(fields, Written)
        reply = getattr(responses, f"{api.name}Response")
        body = bytes(encode_response(api.key, version, 77, fields))
        skip = 5 if int(reply.__header_schema__.__version__) >= 1 else 4
        answer, size_bytes = entity_reader(reply)(memoryview(body)[skip:], 0)
        assert size_bytes == len(body) - skip
        return answer


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with running(Fixture()) as fixture:
        yield Client(fixture)


def fill(entity: Any, **values: Any) -> Any:
    """Make `entity` of those values it has fields for."""
    return entity(**{name: v for name, v in values.items() if name in entity.__slots__})


def join_of(version: int, member_id: str = "") -> Any:
    def make(m: Any) -> Any:
        offer = m.JoinGroupRequestProtocol(name="range", metadata=b"sub")
        return fill(
            m.JoinGroupRequest, group_id="g", session_timeout=timedelta(seconds=10),
            rebalance_timeout=timedelta(seconds=60), member_id=member_id,
            protocol_type="consumer", protocols=(offer,),
        )  # fmt: skip

    return make


async def join(client: Client, version: int) -> Any:
    answer = await client.send(join_group.API, version, join_of(version))
    if version >= 4:
        assert answer.error_code == 79
        answer = await client.send(join_group.API, version, join_of(version, answer.member_id))
    assert answer.error_code == 0
    return answer


async def stable(client: Client) -> Any:
    joined = await join(client, 9)
    await sync(client, 5, joined)
    return joined


async def sync(client: Client, version: int, joined: Any) -> Any:
    def make(m: Any) -> Any:
        mine = m.SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"mine")
        return fill(
            m.SyncGroupRequest, group_id="g", generation_id=joined.generation_id,
            member_id=joined.member_id, protocol_type="consumer", protocol_name="range",
            assignments=(mine,),
        )  # fmt: skip

    return await client.send(sync_group.API, version, make)


@pytest.mark.parametrize("version", join_group.API.versions)
async def test_join_group(client: Client, version: int) -> None:
    joined = await join(client, version)
    assert joined.generation_id == 1
    assert joined.leader == joined.member_id
    assert joined.protocol_name == "range"
    assert [(m.member_id, m.metadata) for m in joined.members] == [(joined.member_id, b"sub")]


@pytest.mark.parametrize("version", join_group.API.versions)
async def test_join_group_refused(client: Client, version: int) -> None:
    answer = await client.send(join_group.API, version, join_of(version, "nobody"))
    assert (answer.error_code, answer.generation_id) == (25, -1)
    assert answer.protocol_name == (None if version >= 7 else "")


@pytest.mark.parametrize("version", sync_group.API.versions)
async def test_sync_group(client: Client, version: int) -> None:
    joined = await join(client, 9)
    synced = await sync(client, version, joined)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    if version >= 5:
        assert (synced.protocol_type, synced.protocol_name) == ("consumer", "range")


@pytest.mark.parametrize("version", heartbeat.API.versions)
async def test_heartbeat(client: Client, version: int) -> None:
    joined = await stable(client)
    for generation, error_code in ((joined.generation_id, 0), (7, 22)):
        answer = await client.send(
            heartbeat.API,
            version,
            lambda m, generation=generation: m.HeartbeatRequest(
                group_id="g", generation_id=generation, member_id=joined.member_id
            ),
        )
        assert answer.error_code == error_code


@pytest.mark.parametrize("version", leave_group.API.versions)
async def test_leave_group(client: Client, version: int) -> None:
    joined = await stable(client)

    def make(m: Any) -> Any:
        if version < 3:
            return m.LeaveGroupRequest(group_id="g", member_id=joined.member_id)
        both = (joined.member_id, "nobody")
        members = tuple(m.MemberIdentity(member_id=name) for name in both)
        return m.LeaveGroupRequest(group_id="g", members=members)

    answer = await client.send(leave_group.API, version, make)
    assert answer.error_code == 0
    if version >= 3:
        assert [member.error_code for member in answer.members] == [0, 25]
    again = await client.send(leave_group.API, version, make)
    errors = [m.error_code for m in again.members] if version >= 3 else [again.error_code]
    assert set(errors) == {25}


def named(topic: Any, **values: Any) -> Any:
    """Make a topic of a request, by name or (OffsetCommit and OffsetFetch v10) by id."""
    return fill(topic, name="orders", topic_id=ORDERS.topic_id, **values)


def commit_of(joined: Any | None, kind: str, offset: int = 5) -> Any:
    def make(m: Any) -> Any:
        part = getattr(m, f"{kind}RequestPartition")
        topic = getattr(m, f"{kind}RequestTopic")
        parts = tuple(
            fill(
                part, partition_index=number, committed_offset=offset, committed_leader_epoch=-1,
                committed_metadata="md",
            )
            for number in (0, 3)
        )  # fmt: skip
        return fill(
            getattr(m, f"{kind}Request"), transactional_id="t", group_id="g", producer_id=7,
            producer_epoch=0, topics=(named(topic, partitions=parts),),
            member_id=joined.member_id if joined is not None else "",
            generation_id=joined.generation_id if joined is not None else -1,
            generation_id_or_member_epoch=joined.generation_id if joined is not None else -1,
            retention_time=timedelta(milliseconds=-1),
        )  # fmt: skip

    return make


def errors_of(answer: Any) -> list[int]:
    return [int(part.error_code) for topic in answer.topics for part in topic.partitions]


@pytest.mark.parametrize("version", offset_commit.API.versions)
async def test_offset_commit(client: Client, version: int) -> None:
    joined = await stable(client)
    answer = await client.send(offset_commit.API, version, commit_of(joined, "OffsetCommit"))
    assert errors_of(answer) == [0, 3]
    nobody = await client.send(offset_commit.API, version, commit_of(None, "OffsetCommit"))
    assert errors_of(nobody) == [25, 3]


@pytest.mark.parametrize("api", [offset_commit.API, txn_offset_commit.API])
async def test_INV_GV4_a_topic_that_appears_while_its_commit_is_under_way_is_still_unknown(
    client: Client, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was written for it, so the client must not be told that it was."""
    there = client.services.metadata.image
    client.services.metadata.image = MetadataImage(version=1, cluster_id="c", topics={})
    for name in ("commit_offsets", "txn_commit_offsets"):
        commit = getattr(client.fixture.groups, name)

        async def appears(*asked: Any, commit: Any = commit) -> Any:
            client.services.metadata.image = there
            return await commit(*asked)

        monkeypatch.setattr(client.fixture.groups, name, appears)
    answer = await client.send(api, 5, commit_of(None, api.name))
    assert errors_of(answer) == [3, 3]
    assert client.services.metadata.image is there


def made_again(client: Client) -> None:
    """Delete the topic, and make another one of its name."""
    again = TopicImage(topic_id=UUID(int=77), name="orders", partition_count=3)
    client.services.metadata.image = MetadataImage(version=2, cluster_id="c", topics={"orders": again})  # fmt: skip
    client.fixture.topics.put("orders", ORDERS.partition_count, number=77)


async def test_INV_GV4_a_topic_that_is_another_by_the_time_of_its_commit_is_unknown(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id (v10) somebody else's topic would have got the offset, under the old one's id."""

    async def meanwhile(*asked: Any) -> Any:
        made_again(client)
        return await denied_topics(*asked)

    monkeypatch.setattr(offset_commit, "denied_topics", meanwhile)
    answer = await client.send(offset_commit.API, 10, commit_of(None, "OffsetCommit"))
    assert errors_of(answer) == [3, 3]
    assert client.fixture.groups.list() == (GroupVerdict.OK, [])


@pytest.mark.parametrize("listed", [True, False])
async def test_INV_GV4_offsets_of_a_topic_made_again_are_not_told_under_the_id_of_the_old_one(
    client: Client, listed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A request asks for two groups. 2. While the first one's are waited for, the topic is made again, and the second commits to that one."""
    await client.send(offset_commit.API, 10, commit_of(None, "OffsetCommit"))
    fetch = client.fixture.groups.fetch_offsets
    told: list[FetchOutcome] = []

    async def fetched(*asked: Any, **how: Any) -> Any:
        if told:
            made_again(client)
            offset = OffsetToCommit(TopicPartition(TopicName("orders"), 0), 7)
            await client.fixture.groups.commit_offsets(CommitRequest(group_id="g", offsets=(offset,)))  # fmt: skip
        told.append(await fetch(*asked, **how))
        return told[-1]

    monkeypatch.setattr(client.fixture.groups, "fetch_offsets", fetched)
    make = fetch_of(10, listed=listed, require_stable=False)
    first, second = (await client.send(offset_fetch.API, 10, make)).groups
    assert [topic.partitions[0].committed_offset for topic in first.topics] == [5]
    assert told[1].offsets[0].committed_offset == 7
    rows = [(topic.topic_id, errors_of(SimpleNamespace(topics=[topic]))) for topic in second.topics]
    assert rows == ([(ORDERS.topic_id, [100, 100])] if listed else [])


def fetch_of(version: int, *, listed: bool, require_stable: bool) -> Any:
    def make(m: Any) -> Any:
        name = "OffsetFetchRequestTopics" if version >= 8 else "OffsetFetchRequestTopic"
        topics = (named(getattr(m, name), partition_indexes=(0, 1)),) if listed else None
        values: dict[str, Any] = {"require_stable": require_stable}
        if version >= 8:
            values["groups"] = (m.OffsetFetchRequestGroup(group_id="g", topics=topics),) * 2
        return fill(m.OffsetFetchRequest, **values, group_id="g", topics=topics)

    return make


SHAPES = [
    (version, listed)
    for version in offset_fetch.API.versions
    for listed in (True, False)
    if listed or version >= 2
]


@pytest.mark.parametrize(("version", "listed"), SHAPES)
async def test_B4_offset_fetch_every_version_and_shape(
    client: Client, version: int, listed: bool
) -> None:
    await client.send(offset_commit.API, 9, commit_of(None, "OffsetCommit"))
    await client.send(txn_offset_commit.API, 4, commit_of(None, "TxnOffsetCommit", 9))
    for require_stable in (False, True) if version >= 7 else (False,):
        make = fetch_of(version, listed=listed, require_stable=require_stable)
        answer = await client.send(offset_fetch.API, version, make)
        groups = answer.groups if version >= 8 else [answer]
        assert len(groups) == (2 if version >= 8 else 1)
        for group in groups:
            [topic] = group.topics
            places = {
                part.partition_index: (part.committed_offset, int(part.error_code), part.metadata)
                for part in topic.partitions
            }
            expected = {0: (-1, 88, "") if require_stable else (5, 0, "md")}
            assert places == expected | ({1: (-1, 0, "")} if listed else {})
            if version >= 2:
                assert group.error_code == 0


# Holds INV-GC4.
@pytest.mark.parametrize("version", offset_fetch.API.versions)
async def test_C23_offset_fetch_says_not_coordinator(client: Client, version: int) -> None:
    await client.fixture.groups.resign()
    answer = await client.send(
        offset_fetch.API, version, fetch_of(version, listed=True, require_stable=False)
    )
    if version >= 8:
        assert [group.error_code for group in answer.groups] == [16, 16]
    elif version >= 2:
        assert answer.error_code == 16
    else:
        assert errors_of(answer) == [16, 16]


@pytest.mark.parametrize("version", txn_offset_commit.API.versions)
async def test_C46_txn_offset_commit_asks_the_transaction_coordinator(
    client: Client, version: int
) -> None:
    joined = await stable(client)
    ledger = TopicPartition(OFFSETS_LEDGER, client.fixture.groups.shard_of("g"))
    make = commit_of(joined, "TxnOffsetCommit")
    assert errors_of(await client.send(txn_offset_commit.API, version, make)) == [0, 3]
    assert client.txn.verified == [ledger]
    assert client.txn.added == ([ledger] if version >= 5 else [])
    # P2: TV1 says over which connection it came (INV-TO4), TV2 has an epoch of its own per transaction.
    assert [arrival is not None for arrival in client.txn.arrivals] == [version < 5]
    client.txn.verdict = TxnVerdict.NOT_IN_TRANSACTION
    refused = await client.send(txn_offset_commit.API, version, make)
    assert set(errors_of(refused)) == {120 if version >= 4 else 48}


@pytest.mark.parametrize("version", txn_offset_commit.API.versions)
async def test_P4_INV_HTO1_offsets_that_waited_over_a_marker_are_asked_for_again(
    client: Client, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next transaction of the producer has the partition by then: what came before is not taken into it."""
    commit_offsets = client.fixture.groups.txn_commit_offsets
    marker_epoch = 1 if version >= 5 else 0

    async def marker_comes(*asked: Any) -> Any:
        client.ledger.state.verifications.end(7, marker_epoch)
        return await commit_offsets(*asked)

    monkeypatch.setattr(client.fixture.groups, "txn_commit_offsets", marker_comes)
    make = commit_of(None, "TxnOffsetCommit")
    answer = await client.send(txn_offset_commit.API, version, make)
    assert set(errors_of(answer)) == {14 if version >= 2 else 15}
    monkeypatch.undo()
    assert errors_of(await client.send(txn_offset_commit.API, version, make)) == [0, 3]


@pytest.mark.parametrize(
    ("verdict", "version", "error_code"),
    [
        (TxnVerdict.FENCED, 5, 47),
        (TxnVerdict.CONCURRENT, 5, 51),
        (TxnVerdict.CONCURRENT, 3, 15),
        (TxnVerdict.LOADING, 1, 15),
        (TxnVerdict.LOADING, 2, 14),
        (TxnVerdict.UNPROVEN_CONNECTION, 1, 15),
        (TxnVerdict.UNPROVEN_CONNECTION, 2, 14),
        (TxnVerdict.UNKNOWN_PRODUCER_MAPPING, 3, 49),
        (TxnVerdict.FENCED_BY_TAKEOVER, 5, 120),
        (TxnVerdict.FENCED_BY_TAKEOVER, 3, 47),
    ],
)
async def test_C46_errors_of_the_transaction(
    client: Client, verdict: TxnVerdict, version: int, error_code: int
) -> None:
    client.txn.verdict = verdict
    make = commit_of(None, "TxnOffsetCommit")
    answer = await client.send(txn_offset_commit.API, version, make)
    assert set(errors_of(answer)) == {error_code}


@pytest.mark.parametrize("version", range(3, 6))
async def test_C42_txn_offset_commit_by_a_stale_member(client: Client, version: int) -> None:
    joined = await stable(client)

    def stale(m: Any) -> Any:
        request = commit_of(joined, "TxnOffsetCommit")(m)
        values = {name: getattr(request, name) for name in type(request).__slots__}
        return type(request)(**values | {"generation_id": 0})

    answer = await client.send(txn_offset_commit.API, version, stale)
    assert errors_of(answer) == [22, 3]


@pytest.mark.parametrize("version", list_groups.API.versions)
async def test_list_groups(client: Client, version: int) -> None:
    await stable(client)

    def make(m: Any) -> Any:
        return fill(m.ListGroupsRequest, states_filter=("stable",), types_filter=("Classic",))

    answer = await client.send(list_groups.API, version, make)
    assert [(group.group_id, group.protocol_type) for group in answer.groups] == [("g", "consumer")]
    if version >= 4:
        empty = lambda m: fill(m.ListGroupsRequest, states_filter=("Empty",))  # noqa: E731
        assert (await client.send(list_groups.API, version, empty)).groups == ()


@pytest.mark.parametrize("version", describe_groups.API.versions)
async def test_describe_groups(client: Client, version: int) -> None:
    joined = await stable(client)

    def make(m: Any) -> Any:
        asked = {"groups": ("g", "no"), "include_authorized_operations": True}
        return fill(m.DescribeGroupsRequest, **asked)

    answer = await client.send(describe_groups.API, version, make)
    known, unknown = answer.groups
    assert (known.group_state, known.protocol_data) == ("Stable", "range")
    [member] = known.members
    assert (member.member_id, member.member_assignment) == (joined.member_id, b"mine")
    assert (member.client_id, member.client_host) == ("cl", "/127.0.0.1")
    assert (unknown.error_code, unknown.group_state) == (69 if version >= 6 else 0, "Dead")


@pytest.mark.parametrize(
    "api",
    [
        join_group.API, sync_group.API, heartbeat.API, leave_group.API, offset_commit.API,
        offset_fetch.API, list_groups.API, describe_groups.API, txn_offset_commit.API,
    ],
)  # fmt: skip
def test_every_group_api_is_forwarded_to_the_primary_region(api: Api) -> None:
    assert api.forward
    assert api.on_error is not None


EVERY_VERSION = [
    (api, version)
    for api in (
        join_group.API, sync_group.API, heartbeat.API, leave_group.API, offset_commit.API,
        offset_fetch.API, list_groups.API, describe_groups.API, txn_offset_commit.API,
    )
    for version in api.versions
]  # fmt: skip


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_one_error_for_all_that_was_asked_fits_every_version(api: Api, version: int) -> None:
    asked = SimpleNamespace(
        name="orders", topic_id=UUID(int=9), partitions=[SimpleNamespace(partition_index=0)]
    )
    asked.partition_indexes = [0]
    request = SimpleNamespace(member_id="m", group_id="g", topics=[asked], groups=["g"], members=[])
    if api.key == 9:
        request.groups = [SimpleNamespace(group_id="g", topics=[asked])]
    services: Any = SimpleNamespace()
    ctx = RequestContext(services, 1, api.key, version, 77)
    assert api.on_error is not None
    body = bytes(encode_response(api.key, version, 77, api.on_error(ctx, request, 15)))
    assert b"\x00\x0f" in body[4:]
