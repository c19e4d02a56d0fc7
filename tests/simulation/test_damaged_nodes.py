"""A region of three nodes whose disks damage logs: nothing acknowledged is lost, no operator is called, and all are equal in the end.

Holds INV-CAN1, INV-CAN2, INV-NRP2, INV-NRP4, INV-NRG1, INV-NRG2, INV-RPL12, INV-SCB10.
"""

import asyncio
import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest
from crc32c import crc32c

from idempotency.identity import OFFSETS_LEDGER, TRANSACTION_LEDGER
from idempotency.identity import Member as ClusterMember
from idempotency.record_batch import iter_headers
from region_broker.controller.cluster_commands import ChangeInSync
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import TIDEMARK_LEDGER, MetadataImage
from region_broker.controller.raft.entries import Term
from region_broker.log.cleaning.state import CleanMark
from region_broker.node.node import Node
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from tests.simulation.folder_faults import lose_log
from tests.simulation.http_client import get
from tests.simulation.kafka_client import Refused
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.test_region_of_three import (
    TOPIC,
    all_in_sync,
    connected,
    everything_equal,
    leadership,
    values_at,
    write,
)

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
VALUES = [b"%06d" % number * 150 for number in range(12)]
SMALL = {"segment.bytes": "4096", "retention.ms": "-1"}
WITHIN_S = 20.0
"""How long a client tries, in simulated time."""


@asynccontextmanager
async def full_segments(folder: Path, seed: int) -> AsyncIterator[tuple[Cluster, Member]]:
    """A region of three nodes in sync, with full segments of a topic on each, and who leads it."""
    async with region_cluster(folder, seed) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, SMALL)
        await write(await connected(cluster, leader), VALUES)
        await everything_equal(cluster)
        await cluster.until(
            lambda: all(len(sealed(node)) >= 2 for node in cluster.nodes.values()), "sealed"
        )
        yield cluster, leader


def sealed(node: Member) -> list[Path]:
    return node.partition(TOPIC, 0).log.sealed_paths()


def flip(node: Member, which: int = 1) -> tuple[Path, bytes]:
    """Flip a bit in a batch of the first segment; return its path, and what it held."""
    path = sealed(node)[0]
    before = bytes(node.disk.content(path))
    node.disk.damage(path, [at for at, _ in iter_headers(before)][which] + 200)
    return path, before


async def scrubbed(node: Member) -> str | None:
    await node.as_process(node.node.scrubber.run_pass())
    return node.node.scrubber.problem()


async def all_there(cluster: Cluster, *more: bytes) -> None:
    """Check that the three are in sync, that nothing acknowledged is lost, and that all logs are equal."""
    leader = await all_in_sync(cluster)
    assert await values_at(cluster, leader) == [*VALUES, *more]
    await everything_equal(cluster)


async def get_on(cluster: Cluster, value: bytes) -> None:
    """Have a record acknowledged by whoever leads, however often that takes; only one is written."""
    async with asyncio.timeout(WITHIN_S):
        while True:
            try:
                async with asyncio.timeout(2):
                    leader = await cluster.until_led()
                    if value in await values_at(cluster, leader):
                        return
                    await write(await connected(cluster, leader), [value])
            except (OSError, Refused):
                await asyncio.sleep(0.1)


def kept_aside(node: Member, topic: str = TOPIC) -> list[str]:
    names = node.disk.list_dir(node.folder / "logs" / topic_folder(node, topic))
    return [name for name in names if name.endswith(".damaged")]


def topic_folder(node: Member, topic: str = TOPIC) -> str:
    return node.partition(topic, 0).topic_id.hex


def others(cluster: Cluster, *but: Member) -> list[Member]:
    return [node for node in cluster.nodes.values() if node not in but]


# -- damage at rest -------------------------------------------------------------------------------


async def test_a_follower_mends_from_the_node_that_leads(tmp_path: Path) -> None:
    async with full_segments(tmp_path, 1) as (cluster, leader):
        follower = others(cluster, leader)[0]
        path, before = flip(follower)
        await write(await connected(cluster, leader), [b"more"])
        assert await scrubbed(follower) is None
        assert bytes(follower.disk.content(path)) == before
        assert follower.node.scrubber.figures()["mended_ranges"] == 1
        assert cluster.leader is leader
        await all_there(cluster, b"more")


async def test_INV_NRG3_a_follower_asks_who_is_in_sync_and_the_one_that_leads_first(
    tmp_path: Path,
) -> None:
    """What the leader has damaged, too, comes from the third node."""
    async with full_segments(tmp_path, 12) as (cluster, leader):
        follower = others(cluster, leader)[0]
        flip(leader)
        path, before = flip(follower)
        assert await scrubbed(follower) is None
        assert bytes(follower.disk.content(path)) == before
        assert cluster.leader is leader
        assert await scrubbed(leader) is None
        await all_there(cluster)


async def test_INV_NRP4_INV_SCB10_a_leader_lets_another_one_lead_and_mends_then(
    tmp_path: Path,
) -> None:
    async with full_segments(tmp_path, 2) as (cluster, leader):
        path, before = flip(leader)
        assert await scrubbed(leader) is None
        assert bytes(leader.disk.content(path)) == before
        second = await cluster.until_led(but=leader)
        await write(await connected(cluster, second), [b"more"])
        await all_there(cluster, b"more")
        assert cluster.leader is second, "it does not take the leadership back by itself"
        await leader.kill()
        await leader.start()
        assert leader.partition(TOPIC, 0).failed is None


async def test_INV_NRP4_the_leadership_does_not_go_round_where_all_are_damaged_alike(
    tmp_path: Path,
) -> None:
    async with full_segments(tmp_path, 3) as (cluster, _):
        for node in cluster.nodes.values():
            flip(node)
        for node in [*cluster.nodes.values()] * 2:
            problem = await scrubbed(node)
            assert problem is not None
            assert "damaged here, too" in problem
        epoch = leadership(await cluster.until_led()).leader_epoch
        await asyncio.sleep(20)
        leader = await cluster.until_led()
        assert leadership(leader).leader_epoch == epoch
        ready = await get(cluster.fabric.site("somebody"), leader.http_port, "/readyz")
        assert ready.status == 503
        told = orjson.loads(
            (await get(cluster.fabric.site("somebody"), leader.http_port, "/v1/cluster")).body
        )
        assert "damaged" in told["here"]["damage"]


async def test_a_leader_without_another_one_in_sync_stays_and_tells_it(tmp_path: Path) -> None:
    """One node is away, and the logs of the other one cannot be written: it votes, and copies nothing."""
    async with full_segments(tmp_path, 4) as (cluster, leader):
        second, third = others(cluster, leader)
        _fail_syncs(second)
        await get_on(cluster, b"seen by two")
        await cluster.until(lambda: bool(second.node.storage.partitions.failures()), "it fails")
        await third.kill()
        await cluster.until(lambda: len(leadership(leader).in_sync) == 1, "it is alone")
        path, before = flip(leader)
        assert "no other node of this region is in sync" in str(await scrubbed(leader))
        assert cluster.leader is leader
        second.disk.fault = None
        await asyncio.sleep(2)
        assert kept_aside(second) == [], "INV-CAN2: what it has may be the only sound copy"
        await third.start()
        await all_in_sync(cluster, 2)
        assert await scrubbed(leader) is None
        assert cluster.leader is leader, "it steps down once for each find"
        assert bytes(leader.disk.content(path)) == before
        await all_there(cluster, b"seen by two")


async def test_INV_NRG2_a_node_whose_next_batch_is_another_one_is_not_copied_from(
    tmp_path: Path,
) -> None:
    async with full_segments(tmp_path, 5) as (cluster, leader):
        follower = others(cluster, leader)[0]
        path, before = flip(follower, 0)
        damaged = bytes(follower.disk.content(path))
        for node in others(cluster, follower):
            at = [at for at, _ in iter_headers(before)][1]
            content = node.disk.content(sealed(node)[0])
            batch = bytearray(content[at:])
            # Another batch, sound by its CRC, of the same offsets: of another history.
            _seal_anew(batch)
            content[at:] = batch
        assert "its log is another one" in str(await scrubbed(follower))
        assert bytes(follower.disk.content(path)) == damaged


def _seal_anew(batches: bytearray) -> None:
    size_bytes = next(iter_headers(bytes(batches)))[1].size_bytes
    batches[200] ^= 1
    batches[17:21] = crc32c(bytes(batches[21:size_bytes])).to_bytes(4, "big")


async def test_a_full_segment_that_goes_while_a_node_runs_is_fetched_whole(tmp_path: Path) -> None:
    async with full_segments(tmp_path, 15) as (cluster, leader):
        for node in (others(cluster, leader)[0], leader):
            path = sealed(node)[1]
            before = bytes(node.disk.content(path))
            if node is leader:
                del node.disk.content(path)[len(before) // 2 :]
            else:
                node.disk.remove(path)
            assert await scrubbed(node) is None
            assert bytes(node.disk.content(path)) == before
        await all_there(cluster)
        assert cluster.leader is not leader


def _damage_for_good(node: Member) -> None:
    """Damage a range that no other node mends, as it was compacted there, in a log that cannot be copied again: it is evidence."""
    log = node.partition(TOPIC, 0).log
    assert log.cleaning.note(CleanMark(holes_below=log.segments.segments[-1].base_offset))
    replication = node.node._replication
    assert replication is not None
    replication.following.disputed.add(node.partition(TOPIC, 0).key)
    flip(node)


async def test_INV_CV5_INV_CW2_a_node_with_damage_leads_only_where_nobody_else_can(
    tmp_path: Path,
) -> None:
    """It has the lowest id of those that are left, and would be elected else."""
    async with full_segments(tmp_path, 19) as (cluster, leader):
        second, third = others(cluster, leader)
        _damage_for_good(second)
        assert await scrubbed(second) is not None
        nodes = list(cluster.nodes.values())
        await cluster.until(
            lambda: (
                all(second.member.controller.damaged <= _damaged(node) for node in nodes)
                and second.member.controller.says_damage
            ),
            "all know it",
        )
        quorum = next(node for node in nodes if node.node.storage.metadata.group.leads)
        operating = quorum.node.operating
        assert operating is not None
        with pytest.raises(ClusterOrderRefused, match="is damaged, or gone, and not mended"):
            await quorum.as_process(
                operating.order("elect", second.node_id, dry_run=False, confirmed=False)
            )
        await leader.kill()
        assert await cluster.until_led(but=leader) is third
        await get_on(cluster, b"more")
        await leader.start()
        await all_in_sync(cluster)
        await leader.kill()
        await cluster.until(lambda: len(leadership(third).in_sync) == 2, "it is out")
        await third.kill()
        await leader.start()
        assert await cluster.until_led() is second, "nobody else has all"
        await third.start()
        await all_in_sync(cluster)


def _damaged(node: Member) -> frozenset[ClusterMember]:
    return node.member.controller.damaged


@pytest.mark.parametrize("leads", [False, True])
async def test_INV_SCB11_INV_CAN6_a_log_that_was_compacted_where_it_is_damaged_is_copied_again(
    leads: bool, tmp_path: Path
) -> None:
    """A leader lets another one lead first, and is tried again once it follows."""
    async with full_segments(tmp_path, 16) as (cluster, leader):
        node = leader if leads else others(cluster, leader)[0]
        log = node.partition(TOPIC, 0).log
        assert log.cleaning.note(CleanMark(holes_below=log.segments.segments[-1].base_offset))
        flip(node)
        if await scrubbed(node) is not None:
            await cluster.until(lambda: cluster.leader not in {None, node}, "it follows")
            assert await scrubbed(node) is None
        await cluster.until(lambda: bool(kept_aside(node)), "it is put aside")
        await all_there(cluster)
        assert node.partition(TOPIC, 0).failed is None
        assert cluster.leader is not (leader if leads else node)


async def test_INV_CAN6_a_log_stays_where_the_leaders_is_not_sound_either(tmp_path: Path) -> None:
    async with full_segments(tmp_path, 17) as (cluster, leader):
        follower = others(cluster, leader)[0]
        log = follower.partition(TOPIC, 0).log
        assert log.cleaning.note(CleanMark(holes_below=log.segments.segments[-1].base_offset))
        flip(follower)
        for node in others(cluster, leader, follower):
            await node.kill()  # so the leader stays, and cannot mend
        flip(leader, 0)
        await scrubbed(leader)
        assert "copied again whole" in str(await scrubbed(follower))
        assert follower.partition(TOPIC, 0).failed is None
        assert kept_aside(follower) == []


# -- logs that do not open, or stop ---------------------------------------------------------------


def shorten(node: Member) -> None:
    """Cut the first file of a log short, as a disk that forgets."""
    folder = node.folder / "logs" / topic_folder(node) / "0"
    path = min(folder / name for name in node.disk.list_dir(folder) if name.endswith(".log"))
    inode = node.disk.content(path)
    del inode[len(inode) // 2 :]
    node.disk.write_out()


async def test_a_follower_whose_log_does_not_open_copies_it_again(tmp_path: Path) -> None:
    async with full_segments(tmp_path, 6) as (cluster, leader):
        follower = others(cluster, leader)[0]
        await follower.kill()
        shorten(follower)
        await write(await connected(cluster, leader), [b"while it is away"])
        was = _bytes_of_folder(follower)
        await follower.start()
        await all_there(cluster, b"while it is away")
        [kept] = kept_aside(follower)
        assert follower.partition(TOPIC, 0).failed is None
        assert _bytes_of_folder(follower, kept) == was, "nothing of it was removed"
        await write(await connected(cluster, leader), [b"more"])
        await follower.kill()
        await follower.start()
        await all_there(cluster, b"while it is away", b"more")


@pytest.mark.parametrize("fault", ["short", "gone"])
@pytest.mark.parametrize("leads", [False, True])
async def test_INV_R9_what_is_missing_after_a_clean_stop_is_found_at_the_start_and_copied_again(
    leads: bool, fault: str, tmp_path: Path
) -> None:
    """All are stopped, so all are in sync, and the damaged one may be elected: then it steps down first."""
    async with full_segments(tmp_path, 18) as (cluster, _):
        nodes = [*cluster.nodes.values()]
        for node in nodes:
            await node.stop()
        damaged = nodes[0] if leads else nodes[1]
        if fault == "short":
            shorten(damaged)
        else:
            folder = damaged.folder / "logs" / topic_folder(damaged) / "0"
            names = [each for each in damaged.disk.list_dir(folder) if each.endswith(".log")]
            damaged.disk.remove(folder / names[1])
        was = _bytes_of_folder(damaged)
        for node in nodes:
            await node.begin()
        await get_on(cluster, b"more")
        await all_there(cluster, b"more")
        assert cluster.leader is not damaged
        [kept] = kept_aside(damaged)
        assert _bytes_of_folder(damaged, kept) == was, "nothing of it was removed"


@pytest.mark.parametrize("topic", [TIDEMARK_LEDGER, TRANSACTION_LEDGER, OFFSETS_LEDGER])
async def test_a_follower_whose_disk_cannot_read_a_ledger_copies_it_again(
    tmp_path: Path, topic: str
) -> None:
    async with full_segments(tmp_path, 6) as (cluster, leader):
        follower = others(cluster, leader)[0]
        folder = follower.folder / "logs" / topic_folder(follower, topic) / "0"
        await follower.kill()

        def fail(operation: str, path: Path) -> None:
            if operation == "pread" and path.parent == folder:
                raise OSError(errno.EIO, "it fails", str(path))

        follower.disk.fault = fail
        await write(await connected(cluster, leader), [b"while it is away"])
        await follower.start()
        await cluster.until(lambda: bool(kept_aside(follower, topic)), "it is put aside")
        follower.disk.fault = None
        await all_there(cluster, b"while it is away")
        assert follower.partition(topic, 0).failed is None
        await leader.kill()
        second = await cluster.until_led(but=leader)
        await get_on(cluster, b"more")
        await leader.start()
        await all_there(cluster, b"while it is away", b"more")
        if second is not follower:
            await second.kill()
            assert await cluster.until_led(but=second) in {follower, leader}
            await get_on(cluster, b"at last")


def _bytes_of_folder(node: Member, name: str = "0") -> dict[str, bytes]:
    folder = node.folder / "logs" / topic_folder(node) / name
    return {
        each: bytes(node.disk.content(folder / each))
        for each in node.disk.list_dir(folder)
        if each.endswith(".log")
    }


@pytest.mark.parametrize("which", [0, 1, 2])
async def test_INV_NRP2_INV_CAN1_all_start_anew_and_a_log_of_one_does_not_open(
    which: int, tmp_path: Path
) -> None:
    """It is in sync still, as all were: whoever is elected first, nothing is lost, and nothing is taken for empty."""
    async with full_segments(tmp_path, 7) as (cluster, _):
        nodes = list(cluster.nodes.values())
        for node in nodes:
            await node.kill()
        shorten(nodes[which])
        for node in nodes:
            await node.begin()
        await get_on(cluster, b"more")
        await all_there(cluster, b"more")
        assert len(kept_aside(nodes[which])) == 1
        assert cluster.leader is not nodes[which]


async def test_all_but_one_copy_again_whose_logs_do_not_open(tmp_path: Path) -> None:
    async with full_segments(tmp_path, 8) as (cluster, leader):
        both = others(cluster, leader)
        for node in both:
            await node.kill()
            shorten(node)
        for node in both:
            await node.begin()
        await get_on(cluster, b"more")
        await all_there(cluster, b"more")
        assert cluster.leader is leader


def _fail_syncs(node: Member, *sound: str) -> None:
    """Let syncs of logs and journal fail, on a disk of their own: a node whose quorum's log fails, too, must be started anew."""

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync" and not {"quorum", *sound}.intersection(path.parts):
            raise OSError(errno.EIO, "it fails", str(path))

    node.disk.fault = fail


@pytest.mark.parametrize("leads", [False, True])
async def test_a_node_whose_syncs_fail_for_a_while_copies_its_logs_again(
    leads: bool, tmp_path: Path
) -> None:
    """With writes going on: of whichever node it is, nothing acknowledged is lost."""
    async with full_segments(tmp_path, 9) as (cluster, leader):
        node = leader if leads else others(cluster, leader)[0]
        _fail_syncs(node)
        await get_on(cluster, b"during")
        await cluster.until(lambda: bool(node.node.storage.partitions.failures()), "one stops")
        node.disk.fault = None
        await get_on(cluster, b"after")
        await cluster.until(lambda: not node.node.storage.partitions.failures(), "all run again")
        await all_there(cluster, b"during", b"after")


async def test_INV_CAN3_a_log_that_parts_from_the_leaders_below_what_was_committed_is_evidence(
    tmp_path: Path,
) -> None:
    async with full_segments(tmp_path, 10) as (cluster, leader):
        follower = others(cluster, leader)[0]
        partition = follower.partition(TOPIC, 0)
        replication = follower.node._replication
        assert replication is not None
        replication.following.disputed.add(partition.key)
        partition.stop("it parts from the leader's log")
        await cluster.until(lambda: len(leadership(leader).in_sync) == 2, "it is out")
        await asyncio.sleep(3)
        assert kept_aside(follower) == []
        assert "parts from the leader's" in replication.copying_anew.waiting[f"{TOPIC}-0"]
        replication.following.disputed.clear()
        await all_there(cluster)
        assert kept_aside(follower) == ["0.damaged"]


async def test_INV_CAN4_a_disk_on_which_copies_stop_is_tried_less_and_less_often(
    tmp_path: Path,
) -> None:
    async with full_segments(tmp_path, 11) as (cluster, leader):
        follower = others(cluster, leader)[0]
        _fail_syncs(follower, "manifest")
        follower.partition(TOPIC, 0).stop("its disk has failed")
        opened = [follower.partition(TOPIC, 0)]

        def again() -> bool:
            if follower.partition(TOPIC, 0) is not opened[-1]:
                opened.append(follower.partition(TOPIC, 0))
            return opened[-1].failed is not None and len(opened) > 1

        await cluster.until(again, "a copy has stopped, too")
        begun = len(opened)
        await asyncio.sleep(8)
        again()
        assert len(opened) == begun, "the first pause"
        assert kept_aside(follower) == ["0.damaged"]
        follower.disk.fault = None
        await asyncio.sleep(4)
        await all_there(cluster)
        assert kept_aside(follower) == ["0.damaged"], "what was copied in vain is removed"


def proposals_held_back(leader: Member) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back who is to be in sync, as a leader proposes it: one event says that something is held, the other one lets it go."""
    metadata = leader.node.storage.metadata
    apply, held, goes_on = metadata.apply, asyncio.Event(), asyncio.Event()

    async def late(
        command: Command, *, in_term: Term | None = None, as_leader: bool = False
    ) -> MetadataImage:
        if isinstance(command, ChangeInSync):
            held.set()
            await goes_on.wait()
        return await apply(command, in_term=in_term, as_leader=as_leader)

    metadata.apply = late  # type: ignore[method-assign]
    return held, goes_on


async def test_INV_CAN2_a_log_stays_while_a_proposal_may_still_count_its_node_in(
    tmp_path: Path,
) -> None:
    """1. The leader proposes to take a follower in. 2. A log stops there, and is put aside. 3. The proposal is carried out late."""
    async with full_segments(tmp_path, 13) as (cluster, leader):
        follower = others(cluster, leader)[0]
        await follower.kill()
        await cluster.until(lambda: len(leadership(leader).in_sync) == 2, "it is out")
        held, goes_on = proposals_held_back(leader)
        await follower.start()
        async with asyncio.timeout(WITHIN_S):
            await held.wait()
        follower.partition(TOPIC, 0).stop("its disk has failed")
        await asyncio.sleep(3)
        assert kept_aside(follower) == []
        goes_on.set()
        await cluster.until(lambda: bool(kept_aside(follower)), "it is copied again")
        await all_there(cluster)


async def test_INV_NRP5_a_proposal_of_a_former_life_does_not_say_that_a_lost_log_was_copied_again(
    tmp_path: Path,
) -> None:
    """1. A leader proposes to take a node in. 2. The node dies, and its disk loses a log. 3. It starts. 4. It is taken in, late."""
    async with full_segments(tmp_path, 20) as (cluster, leader):
        follower = others(cluster, leader)[0]
        await follower.kill()
        await cluster.until(lambda: len(leadership(leader).in_sync) == 2, "it is out")
        held, goes_on = proposals_held_back(leader)
        await follower.start()
        async with asyncio.timeout(WITHIN_S):
            await held.wait()
        await follower.kill()
        lose_log(follower, TOPIC, 0)
        follower.disk.write_out()
        follower.on_open = _copy_nothing
        await follower.start()
        await cluster.until(
            lambda: not leader.node.storage.metadata.image.nodes[follower.node_id].fenced,
            "it is heard",
        )
        goes_on.set()
        await cluster.until(lambda: len(leadership(follower).in_sync) == 3, "it is in sync")
        await asyncio.sleep(3)
        assert follower.partition(TOPIC, 0).log_end_offset == 0
        assert follower.node.storage.partitions.lost() == [f"{TOPIC}-0"]
        follower.on_open = None
        await follower.kill()
        await follower.start()
        await all_there(cluster)
        await cluster.until(lambda: not follower.node.storage.partitions.lost(), "it has it again")


def _copy_nothing(node: Node) -> None:
    """Let a node connect to nobody that it would copy from."""
    replication = node._replication
    assert replication is not None
    replication.following._perform_on_line = lambda effect: None  # type: ignore[method-assign]


async def test_INV_T9_a_follower_whose_disk_refused_a_new_log_copies_it_once_it_takes_it(
    tmp_path: Path,
) -> None:
    """There is no folder that could be put aside."""
    async with full_segments(tmp_path, 14) as (cluster, leader):
        follower = others(cluster, leader)[0]
        logs = follower.folder / "logs"
        known = set(follower.disk.list_dir(logs))

        def fail(operation: str, path: Path) -> None:
            if (
                path.is_relative_to(logs)
                and path != logs
                and path.relative_to(logs).parts[0] not in known
            ):
                raise OSError(errno.EIO, "it fails", str(path))

        follower.disk.fault = fail
        await leader.node.topics.create_topic("another", 1, {})
        await cluster.until(lambda: bool(follower.node.storage.partitions.failures()), "one stops")
        await asyncio.sleep(3)
        follower.disk.fault = None
        await cluster.until(lambda: follower.partition("another", 0).failed is None, "it runs")
        await all_there(cluster)
