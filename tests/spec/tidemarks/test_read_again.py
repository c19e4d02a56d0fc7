"""What a link reads again while it is about to reach a tidemark: only what the logs hold is reached (T16)."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, TidemarkPoint
from geo_replicator.link import reaching as link_reaching
from geo_replicator.reading import RECORD_COST
from geo_replicator.tidemark import Tidemark
from geo_replicator.whole_ends import NOTHING_WHOLE, WholeEnds
from region_broker.controller.metadata_commands import Command, ResizeTopic
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.fixtures.linked_regions import Site, primary_and_mirror
from tests.fixtures.waiting import until


async def grow(primary: Site) -> None:
    """Give the topic a second partition, with a record that the next tidemark covers."""
    topic = primary.metadata.image.topics["t"]
    image = await primary.metadata.apply(ResizeTopic(topic.topic_id, 2, 1))
    for partition in primary.partitions.open_topic(image.topics["t"]):
        partition.become_leader(primary.term.leader_epoch)
    primary.tidemarks.notice_topics()
    await primary.produce("t", b"in the new partition", number=1)


@asynccontextmanager
async def mirrored(folder: Path) -> AsyncIterator[tuple[Site, Site, asyncio.Task[None]]]:
    """A primary, and a mirror with its link, which shows the one record of topic t."""
    async with primary_and_mirror(folder) as (primary, mirror, leader, tasks):
        await primary.create_topic("t")
        link = mirror.mirror(tasks, await primary.listen())
        await primary.produce("t", b"a")
        await until(
            lambda: (
                leader.published == mirror.link.reached > BEFORE_ALL
                and mirror.partition("t").sight.visible_end == 1
            ),
            "the mirror shows all",
        )
        yield primary, mirror, link


async def test_T16_a_log_that_is_cut_while_a_topic_grows_counts_for_no_tidemark(
    tmp_path: Path,
) -> None:
    """1. All logs of a tidemark are here. 2. A topic grows for it, on a slow disk. 3. Meanwhile another session finds that
    one of them differs from the primary's, and cuts it. 4. The tidemark would be reached, without that log's records.
    """
    async with mirrored(tmp_path) as (primary, mirror, _):
        before, apply = mirror.link.reached, mirror.metadata.apply
        growing, written = asyncio.Event(), asyncio.Event()

        async def on_a_slow_disk(command: Command) -> MetadataImage:
            if isinstance(command, ResizeTopic):
                growing.set()
                await written.wait()
            return await apply(command)

        mirror.metadata.apply = on_a_slow_disk  # type: ignore[method-assign]
        await grow(primary)
        await growing.wait()
        mirror.partition("t", 1).truncate_to(0)
        mirror.link.reaching.restore()
        written.set()
        await until(lambda: mirror.metadata.image.topics["t"].partition_count == 2, "it has grown")
        for _ in range(10):
            await asyncio.sleep(0)
        assert mirror.link.reached == before
        assert mirror.tidemarks.claim().point == before


async def test_T16_a_log_that_is_cut_while_a_tidemark_is_written_down_counts_for_it_no_more(
    tmp_path: Path,
) -> None:
    """The link ends before the disk is done: what was on its way then is on the disk, and not in the logs."""
    async with mirrored(tmp_path) as (primary, mirror, link):
        before, reached = mirror.link.reached, mirror.link.reaching._ports.reached
        assert isinstance(reached, ReachedFile)
        write, writes, written = reached._write, threading.Event(), threading.Event()

        def on_a_slow_disk(point: TidemarkPoint, whole: WholeEnds) -> None:
            writes.set()
            written.wait()
            write(point, whole)

        reached._write = on_a_slow_disk  # type: ignore[method-assign]
        await primary.produce("t", b"b")
        await until(writes.is_set, "it is being written down")
        mirror.partition("t").truncate_to(1)
        mirror.link.reaching.restore()
        link.cancel()
        await asyncio.sleep(0)
        written.set()
        await asyncio.wait([link])
        assert link.cancelled()
        assert reached.point > before
        assert mirror.tidemarks.claim().point == before


async def test_INV_LD8_what_was_not_reached_is_read_in_pieces_while_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mirror's link begins anew behind ten tidemarks that it had copied and not reached."""
    monkeypatch.setattr(
        link_reaching, "LOGS_AT_ONCE", RECORD_COST
    )  # a record, of which each is a piece
    async with mirrored(tmp_path) as (primary, mirror, link):
        reaching, reached = mirror.link.reaching, mirror.link.reaching._ports.reached
        for _ in range(10):
            before = mirror.link.reached
            await primary.produce("t", b"b")
            await until(lambda before=before: mirror.link.reached > before, "it is shown")  # type: ignore[misc]
        link.cancel()
        await asyncio.wait([link])
        last = mirror.link.reached
        assert isinstance(reached, ReachedFile)
        reached._point, reached._whole = BEFORE_ALL, NOTHING_WHOLE
        turn, seen = 0, Counter[int]()
        observe = Frontier.observe

        def observed(frontier: Frontier, tidemark: Tidemark) -> None:
            seen[turn] += 1
            observe(frontier, tidemark)

        monkeypatch.setattr(Frontier, "observe", observed)
        reaching.restore()
        assert not seen, "that is one step"
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(reaching.run())
            while (newest := reaching.book.newest) is None or newest.newest.point < last:
                assert turn < 10_000
                turn += 1
                await asyncio.sleep(0)
            reading.cancel()
        assert seen.total() >= 11
        assert set(seen.values()) == {1}, "others have their turn between two pieces"
