"""A mirror over loopback: verbatim bytes, tidemarks reached and shown, resumption, divergence, topics."""

import asyncio
from pathlib import Path

import pytest

from geo_replicator.cut_rounds import RoundPhase
from geo_replicator.link.core import LinkState
from geo_replicator.topology import MirrorTopic
from idempotency.identity import LeaderEpoch
from region_broker.controller.metadata_commands import SetTopicConfigs
from region_broker.partitions.disk_room import DiskRoom
from region_broker.region.mirror.region_link import PeerPrimarySession
from region_broker.region.peers.server import PeerServer
from region_broker.region.tidemarks.cut_leader import CutLeader
from tests.fixtures.linked_regions import Site, primary_and_mirror, running, values_in
from tests.fixtures.waiting import until


def at_rest(leader: CutLeader) -> bool:
    """Whether nothing is under way and nothing is waited for."""
    return leader.core.phase is RoundPhase.RESTING and leader.core.wake_at_ms is None


# Holds INV-SO1.
async def test_mirror_holds_the_same_bytes_and_shows_them_at_a_tidemark(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders", 2)
        await primary.produce("orders", b"a", b"b")
        await primary.produce("orders", b"c", number=1)
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        point = await leader.final_round()
        await until(lambda: link.reached >= point, what="the tidemark is reached")
        for number in (0, 1):
            ours, theirs = mirror.partition("orders", number), primary.partition("orders", number)
            assert ours.reader.read_raw(0, 1 << 20) == theirs.reader.read_raw(0, 1 << 20)
            assert ours.sight.visible_end == theirs.high_watermark
        assert mirror.tidemarks.claim() == primary.tidemarks.claim()
        assert mirror.tidemarks.claim().point == point


async def test_INV_LK10_what_is_copied_comes_behind_the_config_that_it_was_written_under(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is sealed and written to; the primary is lost while its registry is on its way to us."""
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        topic = await primary.create_topic("orders")
        _ = mirror.mirror(tasks, await primary.listen())
        point = await leader.final_round()
        await until(lambda: mirror.link.reached >= point, what="the tidemark is reached")
        registry, asked, may_come = PeerPrimarySession.registry, asyncio.Event(), asyncio.Event()

        async def held(session: PeerPrimarySession) -> tuple[int, tuple[MirrorTopic, ...]]:
            asked.set()
            await may_come.wait()
            return await registry(session)

        monkeypatch.setattr(PeerPrimarySession, "registry", held)
        sealed = {"tidemark.encryption": "orders"}
        await primary.metadata.apply(SetTopicConfigs(topic.topic_id, sealed))
        await primary.produce("orders", b"a")
        later = await leader.final_round()
        await asked.wait()
        assert mirror.partition("orders").log_end_offset == 0
        assert mirror.link.reached == point
        may_come.set()
        await until(lambda: mirror.link.reached >= later, what="the next one")
        assert mirror.metadata.image.topics["orders"].configs == sealed


# Holds INV-CL2.
async def test_idle_domain_is_silent(tmp_path: Path) -> None:
    primary = Site(tmp_path / "h", "primary")
    async with running() as tasks:
        primary.start(tasks)
        leader = await primary.act(tasks)
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        await leader.final_round()
        await until(lambda: at_rest(leader), what="it rests")
        closed, ends = leader.core.closed_count, [p.log_end_offset for p in primary.partitions]
        for _ in range(100):
            await asyncio.sleep(0)
        assert at_rest(leader)
        assert leader.core.closed_count == closed
        assert [p.log_end_offset for p in primary.partitions] == ends


# Holds INV-CU1.
async def test_link_resumes_exactly_when_the_mirror_stops_and_goes_on(
    tmp_path: Path,
) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        topic = await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        port = await primary.listen()
        link_task = mirror.mirror(tasks, port)
        first = await leader.final_round()
        link = mirror.link
        await until(lambda: link.reached >= first, what="the first tidemark is reached")
        link_task.cancel()
        await asyncio.wait([link_task])
        await primary.produce("orders", b"b")
        again = mirror.tidemarks.open_link(mirror.term)
        assert again.reached >= first
        tasks.create_task(again.run())
        second = await leader.final_round()
        await until(lambda: again.reached >= second, what="the second tidemark is reached")
        assert values_in(mirror.partition("orders"), 2) == [b"a", b"b"]
        assert mirror.partition("orders").topic_id == topic.topic_id


async def test_INV_DRM1_a_mirror_whose_disk_is_nearly_full_copies_nothing_until_there_is_room(
    tmp_path: Path,
) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        room = mirror.partitions.room = DiskRoom(100)
        room.note(1_000, 99)
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        point = await leader.final_round()
        await until(lambda: "nearly full" in link.core.last_error, what="the link says why")
        assert not any(log.log_end_offset for log in mirror.partitions)
        room.note(1_000, 110)
        await until(lambda: link.reached >= point, what="the tidemark is reached")
        assert values_in(mirror.partition("orders"), 1) == [b"a"]


async def test_T23_diverged_tail_goes_to_quarantine_and_is_replaced(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        link_task = mirror.mirror(tasks, await primary.listen())
        first = await leader.final_round()
        link = mirror.link
        await until(lambda: link.reached >= first, what="the first tidemark is reached")
        link_task.cancel()
        await asyncio.wait([link_task])
        own = mirror.partition("orders")
        own.become_leader(LeaderEpoch(primary.term.leader_epoch + 1))
        await mirror.produce("orders", b"mine")
        own.become_mirror()
        await primary.produce("orders", b"b")
        again = mirror.tidemarks.open_link(mirror.term)
        tasks.create_task(again.run())
        second = await leader.final_round()
        await until(lambda: again.reached >= second, what="the second tidemark is reached")
        assert [diverged.mirror_end_offset for diverged in mirror.quarantine.seen] == [2]
        assert values_in(own, 2) == [b"a", b"b"]


async def test_T15_deleted_topic_goes_when_a_tidemark_past_it_is_reached(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        topic = await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        _ = mirror.mirror(tasks, await primary.listen())
        await leader.final_round()
        await until(lambda: mirror.partitions.get("orders", 0) is not None, what="it is created")
        await primary.create_topic("later")
        await primary.delete_topic(topic)
        await until(lambda: mirror.partitions.get("orders", 0) is None, what="it is deleted")
        await until(lambda: mirror.partitions.get("later", 0) is not None, what="later is created")
        assert "orders" not in mirror.metadata.image.topics


# Holds INV-ML2.
async def test_T17_mirror_shows_nothing_that_no_tidemark_covers(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        point = await leader.final_round()
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        await until(lambda: link.reached >= point, what="the tidemark is reached")
        running_leader = next(t for t in asyncio.all_tasks() if "CutLeader.run" in repr(t))
        running_leader.cancel()
        await primary.produce("orders", b"b")
        copy = mirror.partition("orders")
        await until(lambda: copy.high_watermark == 2, what="the bytes are copied")
        assert copy.sight.visible_end == 1


# Holds INV-MV1.
async def test_T17_readers_of_a_running_mirror_see_the_ledgers_move_with_each_tidemark(
    tmp_path: Path,
) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders")
        _ = mirror.mirror(tasks, await primary.listen())
        link = mirror.link
        points = [await leader.final_round()]
        for value in (b"a", b"b", b"c"):
            await primary.produce("orders", value)
            points.append(await leader.final_round())
            await until(lambda: link.reached >= points[-1], what="the tidemark is reached")
            for key, position in mirror.tidemarks.claim().positions.items():
                copy = mirror.partitions.by_id(key.topic_id, key.partition)
                assert copy is not None
                assert copy.sight.visible_end == position, copy.tp
                assert copy.sight.last_stable_offset == position, copy.tp


# Holds INV-LD3.
async def test_link_resumes_exactly_when_the_primary_was_away(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("orders")
        await primary.produce("orders", b"a")
        port = await primary.listen()
        _ = mirror.mirror(tasks, port)
        first = await leader.final_round()
        link = mirror.link
        await until(lambda: link.reached >= first, what="the first tidemark is reached")
        primary.server.close()
        await primary.server.wait_closed()
        await until(lambda: link.core.state is LinkState.PAUSED, what="the link notices")
        assert link.core.last_error
        await primary.produce("orders", b"b")
        primary.server = PeerServer(primary.network, primary.identity)
        primary.source.register(primary.server)
        assert await primary.listen(port) == port
        second = await leader.final_round()
        await until(lambda: link.reached >= second, what="the second tidemark is reached")
        assert link.core.session_count == 2
        assert values_in(mirror.partition("orders"), 2) == [b"a", b"b"]
        assert link.status()["lag"] == {"records": 0, "bytes": 0, "ms": 0}
