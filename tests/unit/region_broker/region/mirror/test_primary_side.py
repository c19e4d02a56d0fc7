"""When the primary answers a mirror's fetch: what is gathered, and what does not wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from uuid import UUID

import msgspec
import pytest
from typing_extensions import override

from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey
from idempotency.identity import NO_LEADER_EPOCH
from region_broker.controller.metadata_commands import CreateTopic
from region_broker.controller.metadata_image import TIDEMARK_LEDGER, TopicImage
from region_broker.limits import YIELD_ROWS
from region_broker.log.cold_reads import ColdReads, Reading, T
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from region_broker.region.mirror import primary_side
from region_broker.region.mirror.primary_side import COLLECT_MS, GATHER_MS, PrimarySide
from region_broker.region.mirror.shown_history import ShownHistory
from region_broker.region.peers.protocol import (
    CheckedLogs,
    CheckLogs,
    FetchedLogs,
    FetchLogs,
    FetchPosition,
    Frame,
    FrameKind,
    LogEpochEnd,
    PeerRefused,
    SyncTopics,
    TopicRegistry,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply
from tests.fixtures.linked_regions import REGION_EPOCH, PlayedIdentity, Site
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.page_cache import answered_from_disk, answered_from_memory
from tests.fixtures.waiting import until

PLENTY = 1 << 20


@dataclass
class Mirror:
    """A mirror's fetches, as the primary's handler gets them; `clock` is the primary's."""

    primary: Site
    clock: ManualClock
    server: PeerServer
    session: PeerSession
    topics: dict[str, TopicImage]

    async def fetch(self, *begun: str, bytes_max: int = PLENTY) -> dict[str, int]:
        """Fetch, from the start of the topics that are `begun`; return the bytes sent of each topic."""
        message = FetchLogs(
            region_epoch=REGION_EPOCH, bytes_max=bytes_max, wait_ms_max=1_000,
            positions=tuple(FetchPosition(self.topics[name].topic_id.hex, 0, 0) for name in begun),
        )  # fmt: skip
        body = memoryview(msgspec.msgpack.encode(message))
        frame = Frame(FrameKind.REQUEST, 1, FetchLogs.__name__, body, memoryview(b""))
        reply = await self.server.read(frame)(self.session)
        assert isinstance(reply, Reply)
        assert isinstance(reply.message, FetchedLogs)
        names = {topic.topic_id.hex: name for name, topic in self.topics.items()}
        return {names[part.topic_id]: part.data_bytes for part in reply.message.partitions}

    async def tidemark(self) -> None:
        """Append to the ledger of tidemarks, durably."""
        partition = self.primary.partition(TIDEMARK_LEDGER)
        batch = build_batch([Record(key=b"k", value=b"v", timestamp_ms=1)])
        await partition.wait_committed(partition.writer.append_ledger(batch).next_offset)


@asynccontextmanager
async def linked(folder: Path) -> AsyncIterator[Mirror]:
    """The primary, and a mirror that has everything."""
    primary, clock = Site(folder, "primary"), ManualClock()
    server = PeerServer(primary.network, primary.identity)
    PrimarySide(
        primary.partitions,
        primary.metadata,
        primary.identity,
        clock,
        region=primary.identity.region,
    ).register(server)
    syncing = asyncio.get_running_loop().create_task(primary.group_commit.run())
    topics = {name: await primary.create_topic(name) for name in ("orders", "bills")}
    topics[TIDEMARK_LEDGER] = await primary.create_topic(TIDEMARK_LEDGER, internal=True)
    session = PeerSession(1, "test", primary.identity.hello())
    mirror = Mirror(primary, clock, server, session, topics)
    assert await mirror.fetch(*topics) == {}
    yield mirror
    session.end()
    syncing.cancel()


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_INV_SO9_a_history_in_dispute_tells_no_users_and_no_topics(tmp_path: Path) -> None:
    """Its folder is an older copy: what was removed since is in force there again."""
    primary = Site(tmp_path, "primary")
    mirror = PlayedIdentity("mirror").hello()
    session, asked = PeerSession(1, "test", mirror), SyncTopics(region_epoch=REGION_EPOCH)
    _ = await primary.source._sync_topics(session, asked, memoryview(b""))
    primary.source.doubt = lambda: "a log is lost"
    _ = await primary.source._sync_topics(session, asked, memoryview(b""))
    primary.source.dispute = lambda: "it does not hold what region mirror was shown"
    with pytest.raises(PeerRefused, match="until an operator has chosen"):
        await primary.source._sync_topics(session, asked, memoryview(b""))
    primary.source.promised_to = lambda: "mirror"
    _ = await primary.source._sync_topics(session, asked, memoryview(b""))


async def test_INV_SO5_what_moves_is_gathered(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        fetching = asyncio.get_running_loop().create_task(mirror.fetch())
        await mirror.primary.produce("orders", b"a")
        await until(lambda: len(mirror.clock.sleepers) >= 2, what="it gathers")
        await mirror.primary.produce("bills", b"b")
        mirror.clock.pass_ms(GATHER_MS - 1)
        await turns()
        assert not fetching.done()
        mirror.clock.pass_ms(1)
        assert (await fetching).keys() == {"orders", "bills"}


async def test_INV_SO5_a_tidemark_takes_along_what_there_is_at_once(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        await mirror.primary.produce("orders", b"a")
        fetching = asyncio.get_running_loop().create_task(mirror.fetch())
        await turns()
        assert not fetching.done()
        await mirror.tidemark()
        assert (await fetching).keys() == {"orders", TIDEMARK_LEDGER}


async def test_INV_SO5_a_backlog_does_not_wait(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        for number in range(3):
            await mirror.primary.produce("orders", bytes([number]) * 1000)
        await mirror.tidemark()
        sent = [await mirror.fetch(bytes_max=1500) for _ in range(3)]
        assert [found["orders"] > 0 for found in sent] == [True] * 3
        assert mirror.clock.sleepers == [], "no clock was asked"


async def test_INV_SO4_a_log_with_much_to_send_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        for name in ("orders", "orders", "orders", "bills", "bills"):
            await mirror.primary.produce(name, b"x" * 1000)
        await mirror.tidemark()
        one_batch = 1
        sent = [set(await mirror.fetch(bytes_max=one_batch)) for _ in range(6)]
        assert sent == [{"orders"}, {"bills"}, {TIDEMARK_LEDGER}, {"orders"}, {"bills"}, {"orders"}]


async def test_INV_SO14_very_many_batches_of_a_log_go_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror appends them in one step: a MiB of the smallest held its loop for half a second."""
    monkeypatch.setattr(primary_side, "COPIED_BATCHES_MAX", 2)
    async with linked(tmp_path) as mirror:
        for _ in range(3):
            await mirror.primary.produce("orders", b"x")
        await mirror.tidemark()
        whole_bytes = mirror.primary.partition("orders").log.size_bytes
        first = await mirror.fetch()
        assert first["orders"] == whole_bytes * 2 // 3 > 0
        assert TIDEMARK_LEDGER in first
        assert await mirror.fetch() == {"orders": whole_bytes // 3}


class SlowReads(ColdReads):
    """Reads as long as one answer may take, each time."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(RealDisk())
        self._clock = clock

    @override
    async def read(self, reading: Reading[T]) -> T:
        self._clock.pass_ms(COLLECT_MS)
        return await super().read(reading)


async def test_INV_SO10_a_slow_disk_makes_small_answers_and_keeps_no_log_waiting(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as mirror:
        partitions = mirror.primary.partitions
        partitions.cold_reads = SlowReads(mirror.clock)
        for name in ("orders", "bills"):
            await mirror.primary.produce(name, b"a")
        await mirror.tidemark()
        assert set(await mirror.fetch()) == {"orders"}
        await mirror.primary.produce("orders", b"b")
        assert set(await mirror.fetch()) == {"bills"}
        assert [set(await mirror.fetch()) for _ in range(2)] == [{TIDEMARK_LEDGER}, {"orders"}]


async def test_INV_SO3_a_topic_that_changes_is_told_at_once(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        await mirror.primary.create_topic("more")
        assert await mirror.fetch() == {}
        assert mirror.clock.sleepers == [], "no clock was asked"


async def test_INV_SO6_what_is_not_in_memory_is_read_in_by_a_thread(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        for name in ("orders", "bills"):
            for _ in range(20):
                await mirror.primary.produce(name, b"x" * 10_000)
        await mirror.tidemark()
        cold_reads = mirror.primary.partitions.cold_reads
        fetch = partial(mirror.fetch, "orders", "bills")
        sent = await answered_from_memory(tmp_path, cold_reads, fetch)
        answer = await answered_from_disk(tmp_path, cold_reads, fetch)
        assert answer == {name: sent[name] for name in ("orders", "bills")}
        assert cold_reads.waited_count == 0


async def test_INV_SO13_who_else_asks_is_served_while_many_logs_are_compared(
    tmp_path: Path,
) -> None:
    """A frame between nodes holds some three million of them, and each takes a few microseconds."""
    async with linked(tmp_path) as mirror:
        topic_id = mirror.topics["orders"].topic_id.hex
        count = 5_000
        asked = (LogEpochEnd(topic_id, 0, NO_LEADER_EPOCH, 0),) * count
        body = memoryview(msgspec.msgpack.encode(CheckLogs(region_epoch=REGION_EPOCH, logs=asked)))
        frame = Frame(FrameKind.REQUEST, 1, CheckLogs.__name__, body, memoryview(b""))
        answer, turned = await among_others(mirror.server.read(frame)(mirror.session))
        assert isinstance(answer, CheckedLogs)
        assert len(answer.logs) == count
        assert turned >= count // YIELD_ROWS


async def test_INV_CT4_what_an_older_version_kept_in_megabytes_is_told_no_mirror(
    tmp_path: Path,
) -> None:
    """Of a few such topics the registry is larger than a frame, and no mirror gets a session."""
    async with linked(tmp_path) as mirror:
        configs = {"retention.ms": " " * 3_000_000 + "5", "segment.ms": " 7"}
        made = CreateTopic(
            TopicImage(topic_id=UUID(int=7), name="t", partition_count=1, configs=configs)
        )
        await mirror.primary.metadata.apply(made)
        body = memoryview(msgspec.msgpack.encode(SyncTopics(region_epoch=REGION_EPOCH)))
        frame = Frame(FrameKind.REQUEST, 1, SyncTopics.__name__, body, memoryview(b""))
        registry = await mirror.server.read(frame)(mirror.session)
        assert isinstance(registry, TopicRegistry)
        told = {topic.name: topic.configs for topic in registry.topics}
        assert told["t"] == {"retention.ms": "5", "segment.ms": "7"}


async def among_others(work: Awaitable[T]) -> tuple[T, int]:
    """Return what `work` returns, and how often somebody else had his turn meanwhile."""
    turned = 0

    async def turn() -> None:
        nonlocal turned
        while True:
            turned += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        turning = tasks.create_task(turn())
        done = await work
        turning.cancel()
    return done, turned


async def test_INV_SH4_who_looks_again_and_again_at_a_log_in_memory_serves_others(
    tmp_path: Path,
) -> None:
    async with linked(tmp_path) as mirror:
        await mirror.primary.produce("orders", b"a")
        history = ShownHistory(mirror.primary.partitions)
        key = LogKey(mirror.topics["orders"].topic_id, 0)

        async def looks() -> list[tuple[int, int]]:
            return [await history.batch_at(key, 0) for _ in range(50)]

        found, turned = await among_others(looks())
        assert set(found) == {(0, 1)}
        assert turned >= 50


async def test_INV_SH4_who_looks_at_many_logs_serves_others(tmp_path: Path) -> None:
    async with linked(tmp_path) as mirror:
        await mirror.primary.produce("orders", b"a")
        history = ShownHistory(mirror.primary.partitions)
        key = LogKey(mirror.topics["orders"].topic_id, 0)
        shown, turned = await among_others(history.evidence(Cut(BEFORE_ALL, {key: 1}), [key] * 500))
        assert turned >= 500 // YIELD_ROWS
        found, turned = await among_others(history.differences(shown, lambda *_: False))
        assert found == []
        assert turned >= 500 // YIELD_ROWS
