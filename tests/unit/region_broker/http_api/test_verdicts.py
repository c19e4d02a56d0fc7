"""The final word on a transaction, over a real log and over HTTP (rule T29)."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from aiohttp import ClientSession, hdrs, web

from geo_replicator.lineage import LogKey
from idempotency.identity import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    RegionEpoch,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import TxnStatus
from idempotency.record_batch import ControlType
from region_broker.client import verdicts as client_verdicts
from region_broker.controller.cluster_image import MAIN_GROUP, Spread
from region_broker.controller.metadata_image import (
    DeletedTopic,
    DomainImage,
    LineageEntry,
    MetadataImage,
    RegionImage,
    TopicImage,
)
from region_broker.handlers.dispatch.services import RegionView
from region_broker.http_api.app import HttpServer
from region_broker.http_api.routes_transactions import add_transaction_routes
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.ports import MetadataSide
from region_broker.region.verdict_service import (
    SCANS_AT_ONCE_MAX,
    SCANS_OF_AN_ASKER_MAX,
    GivenVerdict,
    VerdictRefused,
    VerdictService,
)
from tests.fixtures.node_logs import TOPIC_ID, Fixture, append_marker, batch, fixture
from tests.fixtures.waiting import until
from tests.unit.region_broker.log.test_cleaning import COMPACT, clean

OLD, NEW = 8, 17  # region epochs: eu's first, us's after the failover
SWITCHED = 16  # us's after a planned switch, where one comes before
LAST = 24  # eu's after a planned switch, where one comes behind
ORDERS = LogKey(TOPIC_ID, 0)
NEW_LEADER_EPOCH = LeaderEpoch(NEW << 16 | 2)


@dataclass
class Standing:
    """What a service is told of its region."""

    acting: bool = True
    region_epoch: int = OLD
    reason_not_acting: str = "region eu acts; this one mirrors it"
    lineage: tuple[LineageEntry, ...] = ()
    acting_region: str = "eu"
    spread: Spread | None = None
    deleted: tuple[str, ...] = ()

    @property
    def image(self) -> MetadataImage:
        domain = DomainImage(
            name="main",
            acting_region=self.acting_region,
            region_epoch=RegionEpoch(self.region_epoch),
            shard_count=4,
            lineage=self.lineage,
        )
        regions = {
            name: RegionImage(
                name=name, ordinal=ordinal, node_id=ordinal + 1, kafka_host="h", kafka_port=1,
                peer_host="h", peer_port=3, http_host=f"{name}.example", http_port=2,
            )
            for ordinal, name in enumerate(("eu", "us"))
        }  # fmt: skip
        topic = TopicImage(topic_id=TOPIC_ID, name="orders", partition_count=1)
        return MetadataImage(
            version=1,
            cluster_id="c",
            regions=regions,
            domains={"main": domain},
            topics={"orders": topic},
            spread=self.spread,
            deleted={
                UUID(int=90 + number): DeletedTopic(
                    topic=TopicImage(topic_id=UUID(int=90 + number), name=name, partition_count=1), metadata_version=1
                )
                for number, name in enumerate(self.deleted)
            },
        )  # fmt: skip


@dataclass
class Bench:
    """One partition, one region, one service."""

    log: Fixture = field(default_factory=fixture)
    standing: Standing = field(default_factory=Standing)
    scan_bytes_max: int = 64 * 1024 * 1024
    is_sure: bool = True

    @property
    def service(self) -> VerdictService:
        return VerdictService(
            self.log.table,
            cast("MetadataSide", self.standing),
            cast("RegionView", self.standing),
            scan_bytes_max=self.scan_bytes_max,
            leads_surely=lambda: self.is_sure,
        )

    def send(self, producer_id: int = 1, epoch: int = 0, sequence: int = 0) -> int:
        data = batch(
            origin=Origin(
                ProducerId(producer_id),
                ProducerEpoch(epoch),
                SequenceNumber(sequence),
                transactional=True,
            )
        )
        outcome = self.log.partition.writer.append(data)
        self.log.sync()
        return outcome.base_offset

    def end(self, kind: ControlType, producer_id: int = 1, epoch: int = 0) -> int:
        outcome = append_marker(self.log.partition,
            producer_id=producer_id, producer_epoch=epoch, control_type=kind,
            coordinator_epoch=1, decision=None, timestamp_ms=1_000_000,
        )  # fmt: skip
        self.log.sync()
        return outcome.base_offset

    def fail_over(self, base: int) -> None:
        """Cut at `base` and go on under the next region epoch."""
        self.log.partition.truncate_to(base)
        self.log.partition.become_leader(NEW_LEADER_EPOCH)
        self.standing.region_epoch = NEW
        self.standing.lineage = (
            LineageEntry(
                region_epoch=RegionEpoch(NEW), acting_region="us", base_region_epoch=RegionEpoch(OLD if base else 0),
                base_number=1 if base else 0, positions={ORDERS.encode(): base},
            ),
        )  # fmt: skip

    def switch(self) -> None:
        """Go on under the next region epoch from where the log ends, with the pairs in force (INV-TC14)."""
        base = self.log.partition.log_end_offset
        self.log.partition.become_leader(LeaderEpoch(SWITCHED << 16 | 1))
        self.standing.region_epoch = SWITCHED
        entry = LineageEntry(
            region_epoch=RegionEpoch(SWITCHED), acting_region="us", base_region_epoch=RegionEpoch(OLD),
            base_number=9, positions={ORDERS.encode(): base},
        )  # fmt: skip
        self.standing.lineage = (entry,)

    def fail_over_again(self, base: int) -> None:
        """Cut what was written since the switch at `base`."""
        since = self.standing.lineage
        self.fail_over(base)
        (entry,) = self.standing.lineage
        last = msgspec.structs.replace(entry, base_region_epoch=RegionEpoch(SWITCHED))
        self.standing.lineage = (*since, last)

    def switch_again(self) -> None:
        """Go on, behind a failover, under the next region epoch from where the log ends."""
        self.log.partition.become_leader(LeaderEpoch(LAST << 16 | 1))
        self.standing.region_epoch = LAST
        entry = LineageEntry(
            region_epoch=RegionEpoch(LAST), acting_region="eu", base_region_epoch=RegionEpoch(NEW),
            base_number=3, positions={ORDERS.encode(): self.log.partition.log_end_offset},
        )  # fmt: skip
        self.standing.lineage = (*self.standing.lineage, entry)

    async def ask(
        self, offset: int, region_epoch: RegionEpoch | None = None, pair: ProducerPair | None = None
    ) -> str:
        return (await self.service.verdict("orders", 0, offset, region_epoch, pair=pair)).verdict

    async def refused(
        self, offset: int, region_epoch: RegionEpoch | None = None, pair: ProducerPair | None = None
    ) -> tuple[int, str]:
        with pytest.raises(VerdictRefused) as caught:
            await self.service.verdict("orders", 0, offset, region_epoch, pair=pair)
        return caught.value.status, caught.value.code


# Holds INV-VS1.
async def test_T29_marker_decides() -> None:
    bench = Bench()
    first = bench.send()
    assert await bench.ask(first) == "open"
    bench.end(ControlType.COMMIT)
    second = bench.send(sequence=1)
    bench.end(ControlType.ABORT)
    third = bench.send(sequence=2)
    assert [await bench.ask(offset) for offset in (first, second, third)] == [
        "committed",
        "aborted",
        "open",
    ]


async def test_T29_marker_is_found_above_the_last_stable_offset() -> None:
    bench = Bench()
    bench.send(producer_id=9)  # stays open: everything behind it lies above the LSO
    committed = bench.send(producer_id=1)
    bench.end(ControlType.COMMIT, producer_id=1)
    aborted = bench.send(producer_id=2)
    bench.end(ControlType.ABORT, producer_id=2)
    again = bench.send(producer_id=2, sequence=1)
    assert bench.log.partition.sight.last_stable_offset == 0
    assert await bench.ask(committed) == "committed"
    assert await bench.ask(aborted) == "aborted"
    assert await bench.ask(again) == "open"


async def test_T29_marker_of_a_newer_epoch_closes_the_transaction_it_fenced() -> None:
    bench = Bench()
    bench.send(producer_id=9)
    fenced = bench.send(epoch=0)
    bench.end(ControlType.ABORT, epoch=1)
    redone = bench.send(epoch=1)
    bench.end(ControlType.COMMIT, epoch=1)
    assert await bench.ask(fenced) == "aborted"
    assert await bench.ask(redone) == "committed"


async def test_T29_marker_offset_itself_and_plain_records() -> None:
    bench = Bench()
    bench.send()
    marker = bench.end(ControlType.ABORT)
    plain = bench.log.partition.writer.append(batch()).base_offset
    assert await bench.ask(plain) == "open"  # written, not durable
    bench.log.sync()
    assert await bench.ask(marker) == "aborted"
    assert await bench.ask(plain) == "committed"


async def test_T29_any_record_of_a_batch_names_its_transaction() -> None:
    bench = Bench()
    data = batch(
        3, origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True)
    )
    bench.log.partition.writer.append(data)
    bench.end(ControlType.ABORT)
    assert [await bench.ask(offset) for offset in range(3)] == ["aborted"] * 3


async def test_T29_lost_is_what_the_failover_cut_off() -> None:
    bench = Bench()
    kept = bench.send()
    base = bench.end(ControlType.COMMIT) + 1
    cut = bench.send(sequence=1)
    beyond = bench.end(ControlType.COMMIT)
    bench.fail_over(base)
    rewritten = bench.send(producer_id=1 << 60 | 5)
    bench.end(ControlType.COMMIT, producer_id=1 << 60 | 5)
    assert (rewritten, cut) == (base, base)
    assert await bench.ask(kept, RegionEpoch(OLD)) == "committed"
    assert await bench.ask(cut, RegionEpoch(OLD)) == "lost"
    assert await bench.ask(rewritten, RegionEpoch(NEW)) == "committed"
    assert await bench.ask(beyond + 100, RegionEpoch(OLD)) == "lost"
    assert await bench.refused(kept, RegionEpoch(NEW)) == (404, "never-written")


PAIR = (ProducerId(1), ProducerEpoch(0))
GIVEN = RegionEpoch(OLD)
"""Under which the pair was given out; it writes under later ones, too."""


@pytest.mark.parametrize("kind", [ControlType.COMMIT, ControlType.ABORT])
async def test_INV_VS6_what_a_pair_wrote_after_a_planned_switch_is_not_lost_by_the_region_epoch_of_the_pair(
    kind: ControlType,
) -> None:
    bench, word = Bench(), "committed" if kind is ControlType.COMMIT else "aborted"
    before = bench.send()
    bench.end(ControlType.COMMIT)
    bench.switch()
    after = bench.send(sequence=1)
    assert await bench.ask(after, GIVEN, PAIR) == "open"
    bench.end(kind)
    for _ in range(2):
        assert await bench.ask(before, GIVEN, PAIR) == "committed"
        assert await bench.ask(after, GIVEN, PAIR) == word
        assert await bench.ask(after, GIVEN) == "lost", (
            "of what was written under that region epoch"
        )
        bench.fail_over_again(bench.log.partition.log_end_offset)


@pytest.mark.parametrize("switched", [False, True])
async def test_INV_VS6_what_a_failover_cut_off_of_a_pair_is_lost_whoever_is_there_now(
    switched: bool,
) -> None:
    bench = Bench()
    bench.send()
    base = bench.end(ControlType.COMMIT) + 1
    if switched:
        bench.switch()
    cut = [bench.send(sequence=number) for number in range(1, 4)]
    bench.end(ControlType.COMMIT)
    bench.fail_over_again(base) if switched else bench.fail_over(base)
    assert [await bench.ask(offset, GIVEN, PAIR) for offset in cut] == ["lost"] * 3
    bench.send(producer_id=5)
    bench.end(ControlType.COMMIT, producer_id=5)
    bench.log.partition.writer.append(batch())
    bench.log.sync()
    assert [await bench.ask(offset, GIVEN, PAIR) for offset in cut] == ["lost"] * 3
    assert await bench.ask(cut[0], None) == "committed", "another's"


async def test_INV_VS6_a_marker_that_was_written_again_is_no_record_of_its_pair() -> None:
    """1. The pair's transaction is decided; its marker, and its next transaction's record, lie behind the cut. 2. The marker is
    completed in the region that took over: it comes to lie where that record was."""
    bench = Bench()
    decided = bench.send()
    bench.end(ControlType.ABORT, producer_id=9)
    lost = bench.send(sequence=1)
    bench.fail_over(lost)
    assert bench.end(ControlType.COMMIT) == lost
    assert await bench.ask(decided, GIVEN, PAIR) == "committed"
    assert await bench.ask(lost, GIVEN, PAIR) == "lost"


async def test_INV_VS6_nothing_is_guessed_of_a_pair_that_no_failover_touched() -> None:
    bench = Bench()
    first = bench.send()
    bench.end(ControlType.COMMIT)
    never = (404, "never-written")
    assert await bench.refused(first, GIVEN, (ProducerId(5), ProducerEpoch(0))) == never
    bench.fail_over(bench.log.partition.log_end_offset)
    assert await bench.refused(first, GIVEN, (ProducerId(1), ProducerEpoch(7))) == never
    assert await bench.refused(first, GIVEN, (ProducerId(5), ProducerEpoch(0))) == never
    assert await bench.refused(first, None, (ProducerId(5), ProducerEpoch(0))) == never
    assert await bench.refused(first, RegionEpoch(25), PAIR) == (409, "behind")


@pytest.mark.parametrize("has_ended", [False, True])
async def test_INV_VS6_what_no_takeover_cut_off_is_not_lost_of_who_was_given_the_id_since(
    has_ended: bool,
) -> None:
    """1. A transaction is written and kept by a failover. 2. Its producer starts again: it has another pair, and asks as that one.
    3. The region epoch of that pair ends, with nothing cut off, either."""
    bench = Bench()
    kept = bench.send()
    bench.end(ControlType.COMMIT)
    bench.fail_over(bench.log.partition.log_end_offset)
    since = (ProducerId(9), ProducerEpoch(0))
    if has_ended:
        bench.switch_again()
    assert await bench.refused(kept, RegionEpoch(NEW), since) == (404, "never-written")
    assert await bench.ask(kept, GIVEN, PAIR) == "committed"


@pytest.mark.parametrize("is_kept", [True, False])
async def test_INV_VS6_a_plain_record_of_the_id_that_is_asked_for_is_not_called_lost(
    is_kept: bool,
) -> None:
    bench = Bench()
    origin = Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0))
    if is_kept:
        bench.log.partition.writer.append(batch(origin=origin))
    bench.log.sync()
    bench.fail_over(bench.log.partition.log_end_offset)
    bench.log.partition.writer.append(batch(origin=origin))
    bench.log.sync()
    assert await bench.refused(0, GIVEN, PAIR) == (404, "never-written")


async def test_INV_VS6_where_another_node_leads_it_is_said_that_what_is_open_may_be_lost() -> None:
    """1. A record is cut off by a failover. 2. Another node leads its partition, and nobody writes to it: the copy here tells nothing."""
    bench = Bench()
    lost = bench.send()
    bench.end(ControlType.COMMIT)
    bench.fail_over(lost)
    bench.standing.spread = Spread(groups={}, preferred=(1, 2), topics=(TOPIC_ID,))
    assert bench.standing.image.group_of(ORDERS) != MAIN_GROUP
    since = await bench.service.verdict("orders", 0, lost, RegionEpoch(NEW), pair=PAIR)
    before = await bench.service.verdict("orders", 0, lost, GIVEN, pair=PAIR)
    assert (since.verdict, before.verdict) == ("open", "open")
    assert "lost" not in since.why
    assert "it is lost, and this stays open until something is written there again" in before.why
    assert await bench.ask(lost, GIVEN) == "lost", "of what was written under that region epoch"


async def test_INV_VS6_a_place_that_was_trimmed_does_not_tell_whose_it_was() -> None:
    bench = Bench(log=fixture({"segment.bytes": "4096", "retention.bytes": "4096"}))
    bench.switch()
    kept = bench.send()
    for sequence in range(200):
        bench.send(producer_id=2, sequence=sequence)
        bench.end(ControlType.COMMIT, producer_id=2)
    bench.end(ControlType.COMMIT)
    bench.log.maintain(lambda _tp: None)
    assert bench.log.partition.log_start_offset > kept
    assert await bench.refused(kept, GIVEN, PAIR) == (404, "expired")


# Holds INV-VS4.
async def test_T29_a_lost_record_stays_lost_when_its_place_is_trimmed() -> None:
    bench = Bench(log=fixture({"segment.bytes": "4096", "retention.bytes": "4096"}))
    kept = bench.send()
    base = bench.end(ControlType.COMMIT) + 1
    lost = bench.send(sequence=1)
    bench.end(ControlType.COMMIT)
    bench.fail_over(base)
    for sequence in range(200):
        bench.send(producer_id=2, sequence=sequence)
        bench.end(ControlType.COMMIT, producer_id=2)
    bench.log.maintain(lambda _tp: None)
    assert bench.log.partition.log_start_offset > lost
    assert await bench.ask(lost, RegionEpoch(OLD)) == "lost"
    assert await bench.refused(kept, RegionEpoch(OLD)) == (404, "expired")


# Holds INV-VS4.
async def test_T29_a_lost_record_stays_lost_when_its_place_is_compacted() -> None:
    bench = Bench(log=fixture(COMPACT))
    base = bench.log.partition.writer.append(build_batch([Record(b"k", b"lost")])).base_offset
    lost = bench.log.partition.writer.append(build_batch([Record(b"k", b"lost")])).base_offset
    bench.log.sync()
    bench.fail_over(base)  # of a leader epoch the first batch stays, emptied (INV-CLW3)
    for _ in range(40):
        bench.log.partition.writer.append(build_batch([Record(b"k", b"v" * 100)]))
    bench.log.sync()
    assert clean(bench.log)
    assert await bench.refused(lost) == (410, "compacted")
    assert await bench.ask(lost, RegionEpoch(OLD)) == "lost"


async def test_T29_a_partition_that_the_failover_lost_is_lost_and_a_topic_may_be() -> None:
    bench = Bench()
    bench.fail_over(0)
    given = await bench.service.verdict("orders", 7, 0, RegionEpoch(OLD))
    assert given.verdict == "lost"
    # Lost, or deleted by somebody since: nothing here can tell.
    with pytest.raises(VerdictRefused, match="a failover lost it") as caught:
        await bench.service.verdict("clicks", 0, 0, RegionEpoch(OLD))
    assert caught.value.code == "unknown-partition"


async def test_T29_what_was_acknowledged_before_the_first_tidemark_is_lost_with_a_failover() -> (
    None
):
    bench = Bench()
    offset = bench.send()
    bench.end(ControlType.COMMIT)
    bench.fail_over(0)
    assert await bench.ask(offset, RegionEpoch(OLD)) == "lost"
    assert await bench.refused(offset, RegionEpoch(9)) == (404, "unknown-epoch")
    assert await bench.refused(offset, RegionEpoch(0)) == (404, "unknown-epoch")


# Holds INV-VS1.
async def test_T29_nothing_is_guessed_about_offsets_without_a_record() -> None:
    bench = Bench()
    bench.send()
    bench.end(ControlType.COMMIT)
    assert await bench.refused(2) == (404, "never-written")
    assert await bench.refused(2, RegionEpoch(OLD)) == (404, "never-written")
    assert await bench.refused(-1) == (404, "never-written")
    assert await bench.refused(0, RegionEpoch(25)) == (409, "behind")
    assert await bench.refused(0, RegionEpoch(0)) == (404, "unknown-epoch")
    with pytest.raises(VerdictRefused, match="there is no orders-7"):
        await bench.service.verdict("orders", 7, 0, None)


async def test_T29_records_that_retention_deleted_are_expired() -> None:
    bench = Bench(log=fixture({"segment.bytes": "4096", "retention.bytes": "4096"}))
    for sequence in range(200):
        bench.send(sequence=sequence)
        bench.end(ControlType.COMMIT)
    bench.log.maintain(lambda _tp: None)
    assert bench.log.partition.log_start_offset > 0
    assert await bench.refused(0) == (404, "expired")


# Holds INV-VS3.
async def test_one_question_reads_a_bounded_part_of_the_log() -> None:
    bench = Bench(scan_bytes_max=10_000)
    bench.send(producer_id=9)
    asked = bench.send(producer_id=1)
    for _ in range(300):
        bench.log.partition.writer.append(batch(size_bytes=900))
    bench.end(ControlType.COMMIT, producer_id=1)
    given = await bench.service.verdict("orders", 0, asked, None)
    assert given.verdict == "open"
    assert "10000 bytes" in given.why
    bench.end(ControlType.ABORT, producer_id=9)  # now below the LSO: the index answers
    assert await bench.ask(asked) == "committed"


async def test_INV_VS5_so_many_questions_look_through_a_log_at_once_and_all_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, under_way, most = Bench(), 0, 0
    go_on = asyncio.Event()

    async def looked_through(*_asked: object) -> GivenVerdict:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        return GivenVerdict("open", "")

    monkeypatch.setattr(VerdictService, "_by_scan", looked_through)
    bench.send(producer_id=9)
    asked = bench.send(producer_id=1)
    bench.end(ControlType.COMMIT, producer_id=1)
    service = bench.service
    async with asyncio.TaskGroup() as tasks:
        questions = [
            tasks.create_task(service.verdict("orders", 0, asked, None, asker=f"{at % 6}"))
            for at in range(3 * SCANS_AT_ONCE_MAX)
        ]
        await until(lambda: under_way == SCANS_AT_ONCE_MAX)
        go_on.set()
    assert most == SCANS_AT_ONCE_MAX
    assert [each.result().verdict for each in questions] == ["open"] * len(questions)
    most, go_on = 0, asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(service.verdict("orders", 0, asked, None, asker="one"))
        other = tasks.create_task(service.verdict("orders", 0, asked, None, asker="other"))
        await until(lambda: under_way == 2)
        go_on.set()
    assert (most, other.result().verdict) == (2, "open"), "nobody has more than one of them"
    go_on = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        both = [tasks.create_task(told(service, asked)) for _ in range(2)]
        await until(lambda: under_way == 1)
        bench.standing.region_epoch = NEW  # who waits has not asked of that
        go_on.set()
    assert sorted(each.result() for each in both) == ["moved", "open"]


class HeldScans:
    """A log of `bench` with one record that is looked for from there on, and no look ends before it may."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self.go_on = asyncio.Event()
        bench.send(producer_id=9)
        self.asked = bench.send(producer_id=1)
        bench.end(ControlType.COMMIT, producer_id=1)
        monkeypatch.setattr(VerdictService, "_by_scan", self._looked_through)

    async def _looked_through(self, *_asked: object) -> GivenVerdict:
        self.begun += 1
        await self.go_on.wait()
        return GivenVerdict("committed", "")


async def test_INV_VS9_who_has_asked_so_much_is_refused_at_once_and_nobody_else_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    scans, service = HeldScans(bench, monkeypatch), bench.service
    async with asyncio.TaskGroup() as tasks:
        waiting = [
            tasks.create_task(told(service, scans.asked)) for _ in range(SCANS_OF_AN_ASKER_MAX)
        ]
        await until(lambda: scans.begun == 1)
        with pytest.raises(VerdictRefused, match="16 questions of this principal") as caught:
            await service.verdict("orders", 0, scans.asked, None, asker="one")
        assert (caught.value.status, caught.value.code) == (503, "too-many-questions")
        assert caught.value.retry_after_s == 1
        assert await told(service, 0) == "open", "what needs no scan is answered"
        other = tasks.create_task(service.verdict("orders", 0, scans.asked, None, asker="other"))
        await until(lambda: scans.begun == 2)
        scans.go_on.set()
    assert {each.result() for each in waiting} == {"committed"}
    assert other.result().verdict == "committed"
    assert await told(service, scans.asked) == "committed", "there is room again"


async def told(service: VerdictService, offset: int) -> str:
    """Return the verdict, or why there is none."""
    try:
        return (await service.verdict("orders", 0, offset, None, asker="one")).verdict
    except VerdictRefused as error:
        return error.code


# Holds INV-VS2.
async def test_a_region_that_does_not_act_says_who_does() -> None:
    bench = Bench()
    bench.send()
    bench.standing.acting = False
    with pytest.raises(VerdictRefused) as caught:
        await bench.service.verdict("orders", 0, 0, None)
    refused = caught.value
    assert (refused.status, refused.code, refused.region) == (409, "not-acting", "eu")
    assert refused.url == "http://eu.example:2"
    assert bench.standing.reason_not_acting not in str(refused), "it may name logs (INV-HND5)"


class Ledger:
    """A coordinator with two transactional ids, in the region of `bench`."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def describe(self, transactional_id: str) -> Any:
        return next(
            (each for each in self.listing() if each.transactional_id == transactional_id), None
        )

    def listing(self) -> Sequence[Any]:
        self._bench.service.check_acting()
        return [
            SimpleNamespace(
                transactional_id=name, status=status, producer_id=4, producer_epoch=2,
                last_producer_epoch=1, previous_producer_id=-1, partitions=(TopicPartition(TopicName("orders"), 3),), timeout_ms=60_000, start_ms=5,
                last_update_ms=7, region_epoch=OLD,
            )
            for name, status in (("a", TxnStatus.ONGOING), ("b", TxnStatus.COMPLETE_COMMIT))
        ]  # fmt: skip


@pytest.fixture
async def served() -> AsyncIterator[tuple[Bench, ClientSession]]:
    bench = Bench()
    app = web.Application()
    add_transaction_routes(app, bench.service, Ledger(bench), lambda: 1_000)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    async with ClientSession(f"http://{host}:{port}") as http:
        yield bench, http
    await server.stop()


async def get(http: ClientSession, path: str) -> tuple[int, Any]:
    async with http.get(path) as response:
        return response.status, await response.json(content_type=None)


async def test_verdict_route(served: tuple[Bench, ClientSession]) -> None:
    bench, http = served
    bench.send()
    bench.end(ControlType.COMMIT)
    status, body = await get(http, "/v1/verdict?topic=orders&partition=0&offset=0&region_epoch=8")
    assert (status, body["verdict"], body["by_producer"]) == (200, "committed", False)
    place = "topic=orders&partition=0&offset=0"
    written_by = "region_epoch=8&producer_id=1&producer_epoch=0"
    status, body = await get(http, f"/v1/verdict?{place}&{written_by}")
    assert (status, body["verdict"], body["by_producer"]) == (200, "committed", True)
    half = f"{place}&producer_id=1"
    for query in ("topic=orders", "topic=orders&partition=x&offset=0", "", half):
        status, body = await get(http, f"/v1/verdict?{query}")
        assert (status, body["code"]) == (400, "bad-query")
    status, body = await get(http, "/v1/verdict?topic=none&partition=0&offset=0")
    assert (status, body["code"]) == (404, "unknown-partition")
    huge = "9" * 30
    status, body = await get(http, f"/v1/verdict?topic=orders&partition={huge}&offset={huge}")
    assert (status, body["code"]) == (404, "unknown-partition")


async def test_INV_VS9_a_question_that_is_refused_says_when_to_ask_again(
    served: tuple[Bench, ClientSession], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, http = served
    scans = HeldScans(bench, monkeypatch)
    path = f"/v1/verdict?topic=orders&partition=0&offset={scans.asked}"

    async def ask() -> tuple[int, str | None]:
        async with http.get(path) as response:
            return response.status, response.headers.get(hdrs.RETRY_AFTER)

    async with asyncio.TaskGroup() as tasks:
        asked = {tasks.create_task(ask()) for _ in range(SCANS_OF_AN_ASKER_MAX + 3)}
        await until(lambda: sum(each.done() for each in asked) == 3)
        refused = [each.result() for each in asked if each.done()]
        scans.go_on.set()
    assert refused == [(503, "1")] * 3
    answered = [each.result() for each in asked if each.result() not in refused]
    assert answered == [(200, None)] * SCANS_OF_AN_ASKER_MAX


async def test_transactions_route(served: tuple[Bench, ClientSession]) -> None:
    bench, http = served
    status, body = await get(http, "/v1/transactions")
    assert status == 200
    assert [row["transactional_id"] for row in body["transactions"]] == ["a", "b"]
    assert body["now_ms"] == 1_000
    status, body = await get(http, "/v1/transactions?transactional_id=a")
    (row,) = body["transactions"]
    assert (row["state"], row["partitions"]) == ("ongoing", ["orders-3"])
    assert (row["producer_epoch"], row["last_producer_epoch"]) == (2, 1)
    assert row["previous_producer_id"] == -1
    assert client_verdicts.Standing.of(row).previous_producer_id is None
    assert client_verdicts.Standing.of(row | {"previous_producer_id": 5}).previous_producer_id == 5
    bench.standing.acting = False
    for path in ("/v1/transactions", "/v1/verdict?topic=orders&partition=0&offset=0"):
        status, body = await get(http, path)
        assert (status, body["code"], body["region"]) == (409, "not-acting", "eu")
        assert body["url"] == "http://eu.example:2"


async def test_INV_VS7_a_node_that_may_lead_no_more_gives_no_verdict() -> None:
    """A switch; another node is elected under the same region epoch, and has the record where the log of this one ends."""
    bench = Bench()
    first = bench.send()
    bench.end(ControlType.COMMIT)
    bench.switch()
    beyond = bench.log.partition.log_end_offset
    assert await bench.ask(beyond, GIVEN, PAIR) == "lost"
    bench.is_sure = False
    assert await bench.refused(beyond, GIVEN, PAIR) == (503, "not-sure")
    assert await bench.refused(beyond, GIVEN) == (503, "not-sure")
    assert await bench.refused(first) == (503, "not-sure")
    with pytest.raises(VerdictRefused, match="ask again"):
        bench.service.check_acting()
    bench.standing.acting = False
    assert await bench.refused(first) == (409, "not-acting")


async def test_INV_VS8_of_a_topic_that_was_made_again_nothing_is_called_lost() -> None:
    bench = Bench()
    own = bench.send(*PAIR)
    bench.end(ControlType.COMMIT, *PAIR)
    kept = bench.log.partition.log_end_offset
    bench.fail_over(kept)
    bench.send(producer_id=5)
    bench.end(ControlType.COMMIT, producer_id=5)
    asked = [(kept, None), (kept, PAIR), (900, None), (900, PAIR)]
    assert {await bench.ask(offset, GIVEN, pair) for offset, pair in asked} == {"lost"}
    bench.standing.deleted = ("payments",)
    assert {await bench.ask(offset, GIVEN, pair) for offset, pair in asked} == {"lost"}
    bench.standing.deleted = ("payments", "orders")
    for offset, pair in asked:
        assert await bench.refused(offset, GIVEN, pair) == (404, "made-again")
    assert await bench.ask(own, GIVEN, PAIR) == "committed", "its own record is there"
    assert await bench.ask(kept, RegionEpoch(NEW)) == "committed"


async def test_INV_VS8_nor_of_what_was_written_again_without_a_cut() -> None:
    bench = Bench()
    bench.switch()
    later = bench.send(producer_id=5)
    bench.end(ControlType.COMMIT, producer_id=5)
    assert await bench.ask(later, GIVEN) == "lost"
    bench.standing.deleted = ("orders",)
    assert await bench.refused(later, GIVEN) == (404, "made-again")
