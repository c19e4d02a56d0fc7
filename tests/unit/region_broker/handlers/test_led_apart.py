"""Requests where leaders are spread: each partition is answered by who leads it, at the leader of the main group and of a data group."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.identity import LogKey, ProducerEpoch, ProducerId, Round, SequenceNumber
from idempotency.record_batch import ControlType
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.handlers.dispatch.led_apart import OpenHere, Question
from region_broker.records.batches import Origin
from tests.fixtures.cluster_images import in_sync, member
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.node_logs import append_marker
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.played_spread import (
    MAIN_EPOCH,
    PlayedGroups,
    elected,
    gathered,
    group_epoch,
    partitions_of,
    spread_over,
)
from tests.fixtures.waiting import until
from tests.spec.wire.test_wire_produce_fetch import batch, txn
from txn_coordinator.verdicts import TxnVerdict

NONE, NOT_LEADER, OUT_OF_ORDER, LOADS, ABORTABLE = 0, 6, 45, 19, 120
OK = TxnVerdict.OK


@dataclass
class PlayedElsewhere:
    """The coordinator at another node: what a test lets it say, when it lets it."""

    verdicts: dict[int, TxnVerdict] = field(default_factory=dict)
    asked: list[Question] = field(default_factory=list)
    waiting: list[asyncio.Future[Sequence[TxnVerdict]]] = field(default_factory=list)
    holds: bool = False
    aborted: list[OpenHere] = field(default_factory=list)
    owners: dict[int, str | None] = field(default_factory=dict)

    def is_of(self, transactional_id: str, producer_id: int) -> bool:
        return self.owners.get(producer_id) == transactional_id

    def verify(self, question: Question) -> asyncio.Future[Sequence[TxnVerdict]]:
        self.asked.append(question)
        answer: asyncio.Future[Sequence[TxnVerdict]] = asyncio.get_running_loop().create_future()
        self.waiting.append(answer)
        if not self.holds:
            self.say(OK)
        return answer

    def say(self, verdict: TxnVerdict) -> None:
        """Answer what has waited longest."""
        answer, question = self.waiting.pop(0), self.asked[-1 - len(self.waiting)]
        if verdict is OK:
            self.owners[question.producer_id] = question.transactional_id
        answer.set_result([verdict] * len(question.batches))

    async def abort_producer(
        self, producer_id: int, producer_epoch: int, still_open: Sequence[OpenHere]
    ) -> TxnVerdict:
        self.aborted += still_open
        return OK


class SeenMetadata:
    """The metadata of the fixture, with the nodes, and the spread, of a region of three."""

    def __init__(self, fixture: WireFixture, seen: SeenRegion) -> None:
        self._topics = fixture.services.metadata
        self._seen = seen

    @property
    def image(self) -> MetadataImage:
        return replace(self._topics.image, spread=self._seen.image.spread, leadership=self._seen.image.leadership)  # fmt: skip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics, name)


class Spread:
    """A node of a region of three, whose topic `t` is spread."""

    def __init__(self, fixture: WireFixture, topic: TopicImage, node_id: int) -> None:
        self.fixture = fixture
        self.topic = topic
        self.seen = SeenRegion(node_id, spread_over(in_sync(), topic.topic_id))
        self.groups = PlayedGroups(member(node_id), self.seen.image)
        self.txn = PlayedElsewhere()
        services = fixture.services
        services.region_nodes = self.seen.view
        services.metadata = SeenMetadata(fixture, self.seen)
        services.apart, services.txn_elsewhere = self.groups, self.txn
        services.leader_wait_s = 0.0
        fixture.region.node_id = node_id
        fixture.region.acting = node_id == 1
        image = self.seen.image
        (self.main,), (self.two,), (self.three,) = (partitions_of(image, topic.topic_id, group) for group in range(3))  # fmt: skip
        led = {1: self.main, 2: self.two, 3: self.three}[node_id]
        self.led, self.others = led, [number for number in range(3) if number != led]
        for number in self.others:
            fixture.partition("t", number).become_mirror()

    def sees(self, image: MetadataImage) -> None:
        self.seen.image = self.groups.image = image


async def spread_at(fixture: WireFixture, node_id: int) -> Spread:
    return Spread(fixture, await fixture.topic("t", 3), node_id)


def produce_to(batches: dict[int, bytes], *, acks: int = -1, transactional_id: str | None = None) -> dict[str, Any]:  # fmt: skip
    parts = [{"index": index, "records": data} for index, data in batches.items()]
    return {"acks": acks, "timeout": 5000, "transactional_id": transactional_id,
            "topic_data": [{"name": "t", "partition_data": parts}]}  # fmt: skip


def idempotent(sequence: int) -> bytes:
    return batch(origin=Origin(ProducerId(4), ProducerEpoch(0), SequenceNumber(sequence)))


def rows_of(answer: Any) -> dict[int, Any]:
    return {row.index: row for row in answer.responses[0].partition_responses}


@pytest.mark.parametrize("node_id", [1, 2])
@pytest.mark.parametrize("version", [3, 9, 10, 12])
async def test_INV_HLA2_a_produce_is_served_by_partition_and_the_others_say_who_leads(
    tmp_path: Path, node_id: int, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, node_id)
        client = await fixture.connect()
        answer = await client.call(0, version, produce_to({n: batch() for n in range(3)}))
        rows = rows_of(answer)
        assert rows[some.led].error_code == NONE
        assert fixture.partition("t", some.led).log_end_offset == 1
        assert [rows[number].error_code for number in some.others] == [NOT_LEADER] * 2
        if version >= 10:
            told = {n: (row.current_leader.leader_id, row.current_leader.leader_epoch) for n, row in rows.items()}  # fmt: skip
            leaders = {some.main: (1, MAIN_EPOCH), some.two: (2, group_epoch(1)), some.three: (3, group_epoch(2))}  # fmt: skip
            assert told == leaders | {some.led: (-1, -1)}
            assert sorted(each.node_id for each in answer.node_endpoints) == sorted({1, 2, 3} - {node_id})  # fmt: skip


async def test_INV_HLA1_a_group_that_is_not_open_serves_nothing(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.groups.closed = True
        client = await fixture.connect()
        answer = await client.call(0, 10, produce_to({some.led: batch()}))
        row = rows_of(answer)[some.led]
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, 2), "it will"
        assert fixture.partition("t", some.led).log_end_offset == 0


async def test_INV_RGR11_no_write_is_taken_while_the_main_leader_says_that_its_gate_is_shut(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        await client.call(0, 9, produce_to({some.led: batch()}))
        some.groups.takes_writes = False
        deletes = {"timeout": 1000, "topics": [{"name": "t", "partitions": [{"partition_index": some.led, "offset": 1}]}]}  # fmt: skip
        for _ in range(2):
            row = rows_of(await client.call(0, 10, produce_to({some.led: batch()})))[some.led]
            assert row.error_code == NOT_LEADER
            deleted = await client.call(21, 2, deletes)
            assert deleted.topics[0].partitions[0].error_code == NOT_LEADER
        partition = fixture.partition("t", some.led)
        assert (partition.log_start_offset, partition.log_end_offset) == (0, 1)
        listed = await client.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [
            {"partition_index": some.led, "timestamp": -1, "current_leader_epoch": -1}]}]})  # fmt: skip
        assert listed.topics[0].partitions[0].error_code == NONE, "reads go on"
        some.groups.takes_writes = True
        assert rows_of(await client.call(0, 10, produce_to({some.led: batch()})))[some.led].error_code == NONE  # fmt: skip


@pytest.mark.parametrize("node_id", [1, 2])
async def test_INV_HLA1_readers_and_tools_are_served_by_partition(tmp_path: Path, node_id: int) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, node_id)
        client = await fixture.connect()
        await client.call(0, 9, produce_to({some.led: batch()}))
        expected = {some.led: NONE} | dict.fromkeys(some.others, NOT_LEADER)
        listed = await client.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "t", "partitions": [
            {"partition_index": n, "timestamp": -1, "current_leader_epoch": -1} for n in range(3)]}]})  # fmt: skip
        assert {row.partition_index: row.error_code for row in listed.topics[0].partitions} == expected  # fmt: skip
        epochs = await client.call(23, 4, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [
            {"partition": n, "current_leader_epoch": -1, "leader_epoch": 1} for n in range(3)]}]})  # fmt: skip
        assert {row.partition: row.error_code for row in epochs.topics[0].partitions} == expected
        producers = await client.call(61, 0, {"topics": [{"name": "t", "partition_indexes": (0, 1, 2)}]})  # fmt: skip
        assert {row.partition_index: row.error_code for row in producers.topics[0].partitions} == expected  # fmt: skip
        deleted = await client.call(21, 2, {"timeout": 1000, "topics": [{"name": "t", "partitions": [
            {"partition_index": n, "offset": 1} for n in range(3)]}]})  # fmt: skip
        assert {row.partition_index: row.error_code for row in deleted.topics[0].partitions} == expected  # fmt: skip
        assert fixture.partition("t", some.led).log_start_offset == 1


@pytest.mark.parametrize("node_id", [1, 2])
async def test_KIP951_a_fetch_says_of_each_partition_who_leads_it(tmp_path: Path, node_id: int) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, node_id)
        client = await fixture.connect()
        await client.call(0, 9, produce_to({some.led: batch()}))
        asked = [
            {"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for n in range(3)
        ]
        answer = await client.call(1, 16, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [],
            "topics": [{"topic_id": some.topic.topic_id, "partitions": asked}]})  # fmt: skip
        rows = {row.partition_index: row for row in answer.responses[0].partitions}
        assert rows[some.led].records
        leaders = {some.main: 1, some.two: 2, some.three: 3}
        for number in some.others:
            assert rows[number].error_code == NOT_LEADER
            assert rows[number].current_leader.leader_id == leaders[number]
        assert sorted(each.node_id for each in answer.node_endpoints) == sorted({1, 2, 3} - {node_id})  # fmt: skip


async def test_INV_HLA1_a_reader_that_waits_hears_that_the_group_is_led_elsewhere(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        client.send(1, 12, {"max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [],
            "topics": [{"topic": "t", "partitions": [{"partition": some.led, "fetch_offset": 0, "partition_max_bytes": 9}]}]})  # fmt: skip
        partition = fixture.partition("t", some.led)
        await until(lambda: bool(len(fixture.services.deadlines)), "it waits")
        some.sees(elected(some.seen.image, 1, 3, 1))
        partition.become_mirror()
        _, answer = await client.receive(1, 12)
        assert answer.responses[0].partitions[0].error_code == NOT_LEADER


async def test_INV_HNV2_metadata_tell_each_partition_by_its_group(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("whole")
        some = await spread_at(fixture, 3)
        client = await fixture.connect()
        asked = {"topics": [{"name": "t"}, {"name": "whole"}], "allow_auto_topic_creation": False,
                 "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}  # fmt: skip
        for _ in range(2):  # written, and kept
            answer = await client.call(3, 9, asked)  # fmt: skip
            spread, whole = answer.topics
            told = {row.partition_index: (row.leader_id, row.leader_epoch, row.replica_nodes) for row in spread.partitions}  # fmt: skip
            assert told == {
                some.main: (1, MAIN_EPOCH, (1, 2, 3)),
                some.two: (2, group_epoch(1), (2, 1, 3)),
                some.three: (3, group_epoch(2), (3, 1, 2)),
            }
            assert whole.partitions[0].leader_id == 1
            assert answer.controller_id == 1
        some.sees(elected(some.seen.image, 1, 3, 1))
        answer = await client.call(3, 9, asked)
        row = next(row for row in answer.topics[0].partitions if row.partition_index == some.two)
        assert (row.leader_id, row.leader_epoch) == (3, group_epoch(1, 1))
        assert row.replica_nodes == (2, 1, 3), "INV-CLV4: who is to lead is the first"
        some.sees(gathered(some.seen.image, 2))
        answer = await client.call(3, 9, asked)
        assert {row.leader_id for row in answer.topics[0].partitions} == {2}


async def test_INV_HD4_what_an_idempotent_producer_sent_behind_a_refused_batch_is_not_executed(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        client.send(0, 9, produce_to({some.others[0]: idempotent(0), some.led: batch()}))
        _, answer = await client.receive(0, 9)
        assert rows_of(answer)[some.led].error_code == NONE
        client.send(0, 9, produce_to({some.led: batch()}))
        assert await client.closed()
        assert fixture.partition("t", some.led).log_end_offset == 1


async def test_a_produce_without_acks_to_another_leader_closes_the_connection(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        client.send(0, 9, produce_to({some.others[0]: batch()}, acks=0))
        assert await client.closed()


# --- transactions --------------------------------------------------------------------------------


async def test_INV_HPA1_a_TV2_batch_asks_once_for_each_transaction(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        for sequence in range(3):
            sent = produce_to({some.led: batch(origin=txn(sequence))}, transactional_id="a")
            assert rows_of(await client.call(0, 12, sent))[some.led].error_code == NONE
        (asked,) = some.txn.asked
        assert asked.adds
        (about,) = asked.batches
        assert about == (LogKey(some.topic.topic_id, some.led), group_epoch(1), 0)
        mark(fixture, some.led, epoch=1)
        sent = produce_to({some.led: batch(origin=txn(0, producer_epoch=1))}, transactional_id="a")
        assert rows_of(await client.call(0, 12, sent))[some.led].error_code == NONE
        assert len(some.txn.asked) == 2, "the next transaction has another epoch"


async def test_INV_HPA5_who_names_an_id_of_his_own_writes_into_no_transaction_of_another(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client, other = await fixture.connect(), await fixture.connect()
        first = produce_to({some.led: batch(origin=txn(0))}, transactional_id="a")
        assert rows_of(await client.call(0, 12, first))[some.led].error_code == NONE
        some.txn.holds = True
        stolen = produce_to({some.led: batch(origin=txn(1))}, transactional_id="his-own")
        other.send(0, 12, stolen)
        await until(lambda: bool(some.txn.waiting), "the coordinator is asked")
        assert some.txn.asked[-1].transactional_id == "his-own"
        some.txn.say(TxnVerdict.UNKNOWN_PRODUCER_MAPPING)  # as it answers for a pair of another id
        _, refused = await other.receive(0, 12)
        assert rows_of(refused)[some.led].error_code != NONE
        assert fixture.partition("t", some.led).log_end_offset == 1
        own = produce_to({some.led: batch(origin=txn(1))}, transactional_id="a")
        row = rows_of(await client.call(0, 12, own))[some.led]
        assert (row.error_code, row.base_offset) == (NONE, 1), "written, not taken for a duplicate"
        assert len(some.txn.asked) == 2, "who opened it asks no more"


def mark(fixture: WireFixture, number: int, *, epoch: int) -> None:
    append_marker(
        fixture.partition("t", number), producer_id=9, producer_epoch=epoch, control_type=ControlType.ABORT,
        coordinator_epoch=1, decision=DecisionId(0, MAIN_EPOCH, 5 + epoch, Round(0)), timestamp_ms=1, tv2=epoch > 0,
    )  # fmt: skip


async def test_INV_HPA1_a_TV1_batch_asks_each_time_over_which_connection_it_came(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        for sequence in range(2):
            sent = produce_to({some.led: batch(origin=txn(sequence))}, transactional_id="a")
            assert rows_of(await client.call(0, 11, sent))[some.led].error_code == NONE
        assert [each.batches[0].base_sequence for each in some.txn.asked] == [0, 1]
        assert not any(each.adds for each in some.txn.asked)
        assert all(each.sender.number == each.sender.newest > 0 for each in some.txn.asked)


@pytest.mark.parametrize(
    ("verdict", "version", "error"),
    [(TxnVerdict.LOADING, 11, LOADS), (TxnVerdict.LOADING, 12, LOADS), (TxnVerdict.NOT_IN_TRANSACTION, 12, ABORTABLE),
     (TxnVerdict.FENCED, 11, 47), (TxnVerdict.UNPROVEN_CONNECTION, 11, LOADS)],
)  # fmt: skip
async def test_C28_what_the_coordinator_says_is_answered_as_if_it_were_here(
    tmp_path: Path, verdict: TxnVerdict, version: int, error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, version, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        await until(lambda: bool(some.txn.waiting), "it is asked")
        some.txn.say(verdict)
        _, answer = await client.receive(0, version)
        assert rows_of(answer)[some.led].error_code == error
        assert fixture.partition("t", some.led).log_end_offset == 0


@pytest.mark.parametrize("version", [11, 12])
async def test_INV_HPA4_what_comes_behind_a_batch_without_a_verdict_does_not_overtake_it(
    tmp_path: Path, version: int
) -> None:
    """1. The answer about a producer's first batch here is lost. 2. The next one, sent meanwhile, is asked about, and in its transaction."""
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, version, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        await until(lambda: bool(some.txn.waiting), "it is asked")
        some.txn.say(TxnVerdict.LOADING)
        _, answer = await client.receive(0, version)
        assert rows_of(answer)[some.led].error_code == LOADS
        some.txn.holds = False
        client.send(0, version, produce_to({some.led: batch(origin=txn(1))}, transactional_id="a"))
        assert await client.closed()
        client = await fixture.connect()
        for sequence in range(2):
            sent = produce_to({some.led: batch(origin=txn(sequence))}, transactional_id="a")
            assert rows_of(await client.call(0, version, sent))[some.led].error_code == NONE


# Holds INV-HPA2, INV-H12.
@pytest.mark.parametrize("version", [11, 12])
async def test_C7_what_comes_behind_a_batch_that_waits_for_its_verdict_is_appended_behind_it(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, version, produce_to({some.led: batch("0", origin=txn(0))}, transactional_id="a"))  # fmt: skip
        client.send(0, version, produce_to({some.led: batch("1", origin=txn(1))}, transactional_id="a"))  # fmt: skip
        client.send(0, version, produce_to({some.led: batch("2")}))
        partition = fixture.partition("t", some.led)
        expected = 2 if version == 11 else 1  # INV-HPA2
        await until(lambda: len(some.txn.asked) == expected, "it is asked")
        assert partition.log_end_offset == 0
        while some.txn.waiting:
            some.txn.say(OK)
        found = [rows_of((await client.receive(0, version))[1])[some.led] for _ in range(3)]
        assert [(row.error_code, row.base_offset) for row in found] == [(NONE, n) for n in range(3)]


@pytest.mark.parametrize("version", [11, 12])
async def test_P4_a_marker_that_comes_before_the_verdict_ends_the_batch(tmp_path: Path, version: int) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, version, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        await until(lambda: bool(some.txn.waiting), "it is asked")
        mark(fixture, some.led, epoch=0 if version == 11 else 1)
        some.txn.say(OK)
        _, answer = await client.receive(0, version)
        assert rows_of(answer)[some.led].error_code == LOADS
        assert fixture.partition("t", some.led).log_end_offset == 1, "the marker"


# Holds INV-HPA3, INV-HLA4.
@pytest.mark.parametrize("back", [False, True])
async def test_INV_HLA3_a_verdict_that_comes_over_an_election_of_the_group_counts_no_more(
    tmp_path: Path, back: bool
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, 11, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        client.send(0, 11, produce_to({some.led: batch(origin=txn(1))}, transactional_id="a"))
        await until(lambda: len(some.txn.waiting) == 2, "they are asked")
        some.sees(elected(some.seen.image, 1, 3, 1))
        if back:  # under another leader epoch
            some.sees(elected(some.seen.image, 1, 2, 2))
        some.txn.say(OK)
        some.txn.say(OK)
        _, answer = await client.receive(0, 11)
        assert rows_of(answer)[some.led].error_code == NOT_LEADER
        assert await client.closed(), "INV-HD4: the next one had begun, and is not executed"
        assert fixture.partition("t", some.led).log_end_offset == 0


async def test_INV_HLA3_nothing_that_waited_is_appended_by_the_next_main_leader(tmp_path: Path) -> None:  # fmt: skip
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        some.txn.holds = True
        client = await fixture.connect()
        client.send(0, 11, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        client.send(0, 11, produce_to({some.led: batch()}))
        await until(lambda: bool(some.txn.waiting), "it is asked")
        some.sees(gathered(some.seen.image, 2))  # this node leads all logs, and loads
        some.txn.say(TxnVerdict.LOADING)
        _, answer = await client.receive(0, 11)
        assert rows_of(answer)[some.led].error_code == LOADS
        assert await client.closed(), "INV-HPA4"
        assert fixture.partition("t", some.led).log_end_offset == 0


async def test_B13_an_abort_at_a_data_leader_goes_to_the_coordinator(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await fixture.connect()
        await client.call(0, 12, produce_to({some.led: batch(origin=txn(0))}, transactional_id="a"))
        marker = {"producer_id": 9, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
                  "topics": [{"name": "t", "partition_indexes": (some.led,)}]}  # fmt: skip
        answer = await client.call(27, 1, {"markers": [marker]})
        assert answer.markers[0].topics[0].partitions[0].error_code == NONE
        (found,) = some.txn.aborted
        assert found == (LogKey(some.topic.topic_id, some.led), group_epoch(1), 0, 1)
