"""Tidemarks while leaders are spread: D of a log that another node leads is read from the main leader's copy (ADR 53)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

import msgspec

from geo_replicator.cut_rounds import RoundPhase
from geo_replicator.lineage import BEFORE_ALL, LogKey
from idempotency.identity import LeaderEpoch, Member, ProducerEpoch, ProducerId, SequenceNumber
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership, Spread
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.tidemarks.cut_leader import CutLeader
from tests.fixtures.linked_regions import Site, running, tp
from tests.fixtures.waiting import until
from txn_coordinator.verdicts import TxnVerdict

ME, OTHER = Member(1, UUID(int=1)), Member(2, UUID(int=2))
REST_MS = 3_600_000


class Spreading:
    """A main leader whose topic `in` is partly led by another node, which is played by a second table of logs."""

    def __init__(self, folder: Path) -> None:
        self.main = Site(folder / "m", "primary", me=ME)
        self.other = Site(folder / "o", "primary", metadata=self.main.metadata)
        self.number = 0
        self.leader: CutLeader | None = None

    @property
    def epoch(self) -> LeaderEpoch:
        """The leader epoch of the data group."""
        return LeaderEpoch(self.main.term.leader_epoch + 1)

    @property
    def image(self) -> MetadataImage:
        return self.main.metadata.image

    def row(self, *in_sync: Member, epoch: int = 0) -> None:
        """Let the data group have this in-sync set."""
        spread = self.image.spread
        assert spread is not None
        row = Leadership(
            leader=OTHER, leader_epoch=LeaderEpoch(self.epoch + epoch), in_sync=in_sync, version=1 + epoch
        )  # fmt: skip
        self.main.metadata.image = msgspec.structs.replace(
            self.image, spread=msgspec.structs.replace(spread, groups={1: row})
        )

    async def begin(self, tasks: asyncio.TaskGroup) -> CutLeader:
        """Act, and spread a topic of two partitions, one of them to the other node."""
        self.main.start(tasks)
        self.other.start(tasks)
        self.leader = leader = await self.main.act(tasks)
        await self.main.create_topic("out", 1)
        topic = await self.main.create_topic("in", 2)
        await leader.final_round()
        await until(lambda: leader.core.phase is RoundPhase.RESTING, what="rest")
        leader.core.interval_ms = REST_MS
        self.spread(topic.topic_id)
        for partition in self.other.partitions.open_topic(topic):
            partition.become_leader(self.epoch)
        return leader

    def spread(self, topic_id: UUID) -> None:
        main = Leadership(
            leader=ME, leader_epoch=self.main.term.leader_epoch, in_sync=(ME, OTHER), version=1
        )
        spread = Spread(groups={}, preferred=(1, 2), topics=(topic_id,))
        self.main.metadata.image = msgspec.structs.replace(
            self.image, leadership=main, spread=spread
        )
        self.row(ME, OTHER)
        (self.number,) = (
            n for n in range(2) if self.image.group_of(LogKey(topic_id, n)) != MAIN_GROUP
        )
        self.copy.become_mirror()
        self.copy.commit_up_to(self.copy.high_watermark)

    @property
    def copy(self) -> Partition:
        """The main leader's copy."""
        return self.main.partition("in", self.number)

    @property
    def led(self) -> Partition:
        """The log at the node that leads it."""
        return self.other.partition("in", self.number)

    async def produce(self, count: int, *, committed: int | None = None) -> None:
        """Write records at the node that leads; they are durable in the copy, which knows no more than `committed` of HW."""
        before = self.led.log_end_offset
        await self.other.produce("in", *(b"x" for _ in range(count)), number=self.number)
        self.copy.writer.append_mirrored(self.led.reader.read_raw(before, 1 << 20))
        await self.copy.commits.wait_durable(before + count)
        self.copy.commit_up_to(before + count if committed is None else committed)

    @property
    def d(self) -> int:
        """D of the log in the last tidemark."""
        assert self.leader is not None
        return self.leader.published_cut().position_of(self.copy.key)

    async def waits(self, why: str = "is committed") -> None:
        """Return once a tidemark waits for the copy."""
        assert self.leader is not None
        leader = self.leader
        await self.hastened(lambda: why in str(leader.status()["waits_for"]), what="a wait")
        assert leader.core.phase is RoundPhase.COLLECTING

    async def hastened(self, condition: Callable[[], bool], what: str) -> None:
        """Return once `condition()`, with a round at once, and with one more for each that a busy machine lets be abandoned."""
        assert self.leader is not None
        leader = self.leader

        def met() -> bool:
            if condition():
                return True
            if leader.core.phase is RoundPhase.RESTING and leader._events.empty():
                leader._kick(urgent=True)
            return False

        await until(met, what=what)


@asynccontextmanager
async def spreading(folder: Path) -> AsyncIterator[Spreading]:
    region = Spreading(folder)
    async with running() as tasks:
        await region.begin(tasks)
        yield region


async def test_INV_SCU1_T9_D_of_a_copy_covers_what_its_leader_had_shown_before_the_round_was_closed(
    tmp_path: Path,
) -> None:
    """1. A consumer reads 10 records where they are led; the copy knows HW 4. 2. Their offset is committed. 3. A round."""
    async with spreading(tmp_path) as region:
        await region.produce(10, committed=4)
        assert region.led.high_watermark == 10
        leader, before = region.leader, region.leader.published if region.leader else BEFORE_ALL
        assert leader is not None
        await region.waits("10 is committed")
        assert leader.published == before, "a tidemark would hold the output without the input"
        region.copy.commit_up_to(7)
        await asyncio.sleep(0)
        assert leader.core.phase is RoundPhase.COLLECTING
        region.copy.commit_up_to(10)
        await until(lambda: region.d == 10, what="a tidemark that covers the input")


async def test_INV_SCU2_what_is_durable_in_a_copy_is_news_before_it_is_known_to_be_committed(
    tmp_path: Path,
) -> None:
    async with spreading(tmp_path) as region:
        assert region.leader is not None
        region.leader.change_interval(0)
        await region.produce(3, committed=0)
        await until(
            lambda: bool(region.leader and region.leader.status()["waits_for"]), what="wait"
        )
        region.copy.commit_up_to(3)
        await until(lambda: region.d == 3, what="a tidemark that nobody asked for")
        assert region.leader.waiting_since_ms is None, "and that is all of it"


async def test_INV_SCU1_a_copy_that_is_not_in_sync_says_nothing_of_what_was_shown(
    tmp_path: Path,
) -> None:
    async with spreading(tmp_path) as region:
        region.row(OTHER)
        await region.produce(2)
        await region.waits("not in sync")
        assert region.d == 0
        region.row(ME, OTHER)
        await until(lambda: region.d == 2, what="a tidemark")


async def test_INV_SCU1_where_a_copy_is_cut_the_wait_begins_anew_and_D_never_goes_back(
    tmp_path: Path,
) -> None:
    """1. The leader of a group dies. 2. The next one has not what was not committed, and this copy is cut."""
    async with spreading(tmp_path) as region:
        await region.produce(4)
        await region.hastened(lambda: region.d == 4, what="a tidemark")
        await region.produce(1, committed=4)
        await region.produce(1, committed=4)
        await region.waits("6 is committed")
        region.copy.truncate_to(5)
        await region.waits("5 is committed")
        assert region.d == 4
        region.copy.commit_up_to(5)
        await until(lambda: region.d == 5, what="a tidemark")


async def test_T12_transactions_go_on_while_tidemarks_wait_for_a_copy(tmp_path: Path) -> None:
    async with spreading(tmp_path) as region:
        await region.produce(2, committed=0)
        await region.waits()
        assert await commit(region.main, "out") is TxnVerdict.OK
        out = region.main.partition("out")
        await until(lambda: out.sight.last_stable_offset == 2, what="the marker")
        assert region.d == 0
        region.copy.commit_up_to(2)
        await until(lambda: region.d == 2, what="a tidemark")


async def test_T9_a_log_that_is_deleted_while_its_copy_is_waited_for_has_no_D(
    tmp_path: Path,
) -> None:
    async with spreading(tmp_path) as region:
        leader = region.leader
        assert leader is not None
        await region.produce(2, committed=0)
        await region.waits()
        before = leader.published
        await region.main.delete_topic(region.image.topics["in"])
        await until(lambda: leader.published > before, what="a tidemark without it")
        assert not leader.failed


async def test_T9_a_log_that_is_led_here_again_is_read_as_such(tmp_path: Path) -> None:
    async with spreading(tmp_path) as region:
        await region.produce(2, committed=0)
        await region.waits()
        region.main.metadata.image = msgspec.structs.replace(region.image, spread=None)
        region.copy.commit_up_to(None)
        await until(lambda: region.d == 2, what="a tidemark")


async def commit(site: Site, topic: str) -> TxnVerdict:
    """Commit a transaction of one record."""
    clients = site.coordinator.clients
    made = await clients.init_producer_id("t", 60_000)
    await clients.add_partitions(
        "t", made.producer_id, made.producer_epoch, [tp(topic, 0)], implicit=False
    )
    origin = Origin(
        ProducerId(made.producer_id), ProducerEpoch(made.producer_epoch), SequenceNumber(0), transactional=True
    )  # fmt: skip
    site.partition(topic).writer.append(
        build_batch([Record(None, b"1", timestamp_ms=1)], origin=origin)
    )
    await site.partition(topic).wait_committed(1)
    return (await clients.end_txn("t", made.producer_id, made.producer_epoch, True, 1)).verdict
