"""Rule T32: a folder without history never acts, wherever it stands; and whoever has one needs nobody to act."""

import asyncio
from pathlib import Path

import pytest

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import Event, ReturnBegun
from geo_replicator.folder_life import Birth
from idempotency.identity import RegionEpoch
from region_broker.node import Node, NodeRefused, Ports
from region_broker.node.birth import BirthOutcome, give_birth
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover import journal
from region_broker.region.failover.messages import AskPromise, PromiseAnswer
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.peers.protocol import PeerRefused
from tests.simulation.disk import Crashed
from tests.simulation.folder_faults import copy_of, empty_folder, restore
from tests.simulation.kafka_client import Connection, batch_of
from tests.simulation.region_pair import Pair, Region, SeededChance, region_pair, until

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

TOPIC = "orders"


async def write(region: Region, value: bytes, topic: str = TOPIC) -> None:
    """Append one record as an acknowledged write."""
    outcome = region.partition(topic, 0).writer.append(build_batch([Record(None, value)]))
    await region.partition(topic, 0).wait_committed(outcome.next_offset)


def shown(region: Region, topic: str = TOPIC) -> int:
    """Return how many records of the topic this region shows."""
    found = region.node.storage.partitions.get(topic, 0)
    return 0 if found is None else found.sight.visible_end


async def waits(region: Region) -> str:
    """Return why the region does not act, once it says so."""
    await until(lambda: "has no history" in region.node.role.reason_not_acting, "it says why")
    assert region.phase is Phase.UNBORN
    assert not region.node.role.acting
    return region.node.role.reason_not_acting


async def three_records(pair: Pair) -> None:
    """Write three records at the primary; the mirror shows them."""
    await pair.create_topic(TOPIC, 1)
    for value in (b"one", b"two", b"three"):
        await write(pair.eu, value)
    await pair.until(lambda: shown(pair.us) == 3, "the mirror shows all")


async def test_T32_an_emptied_primary_waits_and_the_mirror_keeps_all(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.eu.kill()
        empty_folder(pair.eu)
        await pair.eu.begin()
        reason = await waits(pair.eu)
        assert "region us has history" in reason
        assert "tidemark region failover --to us" in reason
        assert shown(pair.us) == 3
        await pair.fail_over()
        await pair.until(lambda: shown(pair.eu) == 3, "the emptied folder got all back")
        assert pair.eu.phase is Phase.MIRRORING
        await write(pair.us, b"four")
        await pair.until(lambda: shown(pair.eu) == 4, "and follows")


async def test_T32_an_emptied_primary_that_nobody_answers_waits(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 2) as pair:
        await three_records(pair)
        await pair.eu.kill()
        await pair.us.kill()
        empty_folder(pair.eu)
        await pair.eu.begin()
        assert "waits for a region that acts" in await waits(pair.eu)
        await pair.us.start()
        await until(lambda: "region us has history" in pair.eu.node.role.reason_not_acting, "told")
        assert shown(pair.us) == 3


async def test_T32_a_node_that_ends_while_it_joins_joins_at_its_next_start(tmp_path: Path) -> None:
    """The identity names the history by then, and the journal does not yet: nobody answers such a folder (seed 93751)."""
    async with region_pair(tmp_path, 4) as pair:
        await three_records(pair)
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.fail_over()
        empty_folder(pair.eu)
        joined = asyncio.Event()

        def hang_when_joined(node: Node) -> None:
            join = node.storage.folder.join

            async def joining(history: Birth) -> None:
                await join(history)
                joined.set()
                await asyncio.Event().wait()

            node.storage.folder.join = joining  # type: ignore[method-assign]

        pair.eu.on_open = hang_when_joined
        await pair.eu.begin()
        await until(joined.is_set, "the identity names the history")
        await pair.eu.kill()
        pair.eu.on_open = None
        await pair.eu.begin()
        pair.regions["eu"] = pair.eu
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it has joined")
        await pair.until(lambda: shown(pair.eu) == 3, "it got all")


@pytest.mark.parametrize("failovers", [1, 2, 3])
async def test_T32_an_emptied_folder_joins_whoever_acts_however_many_failovers_lie_behind(
    tmp_path: Path, failovers: int
) -> None:
    async with region_pair(tmp_path, 3) as pair:
        await three_records(pair)
        acts, follows = pair.eu, pair.us
        for _ in range(failovers):
            acts, follows = follows, acts
            operation = acts.node.operations.begin_switch()
            await pair.until(lambda o=operation: o.status != "running", "switched")  # type: ignore[misc]
            assert operation.status == "succeeded", operation
            await write(acts, b"more")
            await pair.until(lambda f=follows: f.phase is Phase.MIRRORING, "it follows")  # type: ignore[misc]
        await follows.kill()
        empty_folder(follows)
        await follows.start()
        await pair.until(lambda: shown(follows) == 3 + failovers, "it got all")
        assert follows.phase is Phase.MIRRORING
        assert acts.node.role.acting


@pytest.mark.parametrize("again", [False, True], ids=["at once", "in its second life"])
@pytest.mark.parametrize("room", [False, True], ids=["no room", "room"])
async def test_INV_FS7_the_return_of_an_emptied_folder_names_no_log_where_it_has_no_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, room: bool, again: bool
) -> None:
    """However many takeovers lie behind, and however many logs each of them names; a version that knows no such return reads others."""
    if not room:
        monkeypatch.setattr(journal, "EVENT_BYTES_MAX", 1_000)
    async with region_pair(tmp_path, 6) as pair:
        await three_records(pair)
        for region in (pair.us, pair.eu, pair.us):
            await pair.take_over(planned=True, by=region)
            other = pair.eu if region is pair.us else pair.us
            await pair.until(lambda o=other: o.phase is Phase.MIRRORING, "it follows")  # type: ignore[misc]
        await pair.eu.kill()
        empty_folder(pair.eu)
        returns: list[ReturnBegun] = []

        def watch(node: Node) -> None:
            told = node.failover.on_step

            def step(event: Event, before: State, after: State) -> None:
                told(event, before, after)
                if isinstance(event, ReturnBegun):
                    returns.append(event)
                    if again and len(returns) == 1:
                        raise Crashed

            node.failover.on_step = step

        pair.eu.on_open = watch
        if again:
            await pair.eu.begin()
            await until(lambda: pair.eu.died, "it ends with its return begun")
            await pair.eu.kill()
        await pair.eu.start()
        await pair.until(lambda: shown(pair.eu) == 3, "it got all")
        (begun,) = returns
        lineage = pair.us.node.storage.metadata.image.main_domain.lineage
        assert [entry.region_epoch for entry in begun.entries] == [
            entry.region_epoch for entry in lineage
        ]
        assert all(bool(entry.positions) is room for entry in begun.entries)
        assert pair.eu.node.storage.metadata.image.main_domain.lineage == lineage
        assert all(entry.positions for entry in lineage)
        await pair.take_over(planned=True, by=pair.eu)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "it is followed")


async def test_T32_an_emptied_old_primary_that_cannot_reach_the_new_one_waits(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 4) as pair:
        await three_records(pair)
        await pair.eu.kill()
        await pair.fail_over()
        pair.fabric.cut("eu", "us")
        empty_folder(pair.eu)
        await pair.eu.begin()
        await waits(pair.eu)
        pair.fabric.heal("eu", "us")
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it joins")
        await pair.until(lambda: shown(pair.eu) == 3, "it got all")


async def test_T32_an_emptied_mirror_joins_again_and_may_take_over_later(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 5) as pair:
        await three_records(pair)
        await pair.us.kill()
        empty_folder(pair.us)
        await pair.us.start()
        await pair.until(lambda: shown(pair.us) == 3, "it got all")
        await pair.eu.kill()
        await pair.fail_over()
        await pair.us.kill()
        await pair.us.start()
        await until(lambda: pair.us.node.role.acting, "it acts again after a restart")
        assert shown(pair.us) == 3


async def first_id(pair: Pair, region: Region) -> int:
    """Return the id that the next producer gets which connects to `region`, and write one record with it."""
    connection = await Connection.open(pair.fabric.site("client"), region.kafka_port)
    producer = await connection.init_producer_id(None)
    await connection.produce(TOPIC, {0: batch_of(b"mine", producer, 0, transactional=False)})
    return producer[0]


async def test_C11_no_life_of_a_region_gives_out_the_producer_ids_of_another(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 9) as pair:
        await three_records(pair)
        await pair.eu.kill()
        older = copy_of(pair.eu)
        await pair.eu.start()
        await until(lambda: pair.eu.node.role.acting, "the primary acts")
        ids = [await first_id(pair, pair.eu)]
        await pair.until(lambda: shown(pair.us) == 4, "mirrored")
        await pair.eu.kill()
        await pair.fail_over()
        empty_folder(pair.eu)
        await pair.eu.start()
        await pair.until(lambda: shown(pair.eu) == 4, "the emptied folder got all back")
        switch = pair.eu.node.operations.begin_switch()
        await pair.until(lambda: switch.status == "succeeded", "it acts again")
        ids.append(await first_id(pair, pair.eu))
        await pair.stop()
        restore(pair.eu, older)
        await pair.eu.start()
        await until(lambda: pair.eu.node.role.acting, "an older copy that meets nobody acts")
        ids.append(await first_id(pair, pair.eu))
        assert len(set(ids)) == 3, ids


async def test_T32_a_primary_with_its_own_folder_acts_without_any_peer(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 6) as pair:
        await three_records(pair)
        await pair.us.kill()
        await pair.eu.kill()
        await pair.eu.start()
        await until(lambda: pair.eu.node.role.acting, "it acts alone")
        await write(pair.eu, b"four")


async def test_T32_a_folder_without_history_refuses_a_takeover_and_promises_nothing(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 7) as pair:
        await three_records(pair)
        await pair.eu.kill()
        empty_folder(pair.eu)
        await pair.eu.begin()
        await waits(pair.eu)
        with pytest.raises(OperationRefused, match="cannot take over"):
            pair.eu.node.operations.begin_failover(confirmed=True)
        message = AskPromise(
            domain="main", region_epoch=RegionEpoch(17), candidate="us", planned=False
        )
        with pytest.raises(PeerRefused, match="promises nothing"):
            await pair.us.node.failover.parts.peers.ask(
                "eu", message, PromiseAnswer, timeout_ms=1_000
            )


@pytest.mark.parametrize("region_epoch", [-1, 1 << 15, (1 << 64) - 1])
async def test_INV_PHL1_a_region_epoch_that_there_cannot_be_is_not_promised(
    tmp_path: Path, region_epoch: int
) -> None:
    """They have 15 bits (T19), and a promise is for good: nobody could take over any more."""
    async with region_pair(tmp_path, 7) as pair:
        before = pair.eu.node.failover.state
        message = AskPromise(
            domain="main", region_epoch=RegionEpoch(region_epoch), candidate="us", planned=False
        )
        with pytest.raises(PeerRefused, match="there is no region epoch"):
            await pair.us.node.failover.parts.peers.ask(
                "eu", message, PromiseAnswer, timeout_ms=1_000
            )
        assert pair.eu.node.failover.state == before


async def test_T32_a_new_cluster_waits_for_its_birth_and_a_second_one_is_refused(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, 8)
    try:
        for region in pair.regions.values():
            region.made = True  # without history
            region.disk.make_dirs(region.folder)
        await pair.us.begin()
        assert "waits for a region that acts" in await waits(pair.us)

        async def born(region: Region = pair.eu, **how: bool) -> BirthOutcome:
            ports = Ports(
                region.clock, SeededChance(pair.chance), region.disk, pair.fabric.site(region.name)
            )
            return await give_birth(
                region.config(), ports, **{"no_history_elsewhere": False, **how}
            )

        assert await born(dry_run=True) is BirthOutcome.WOULD_BE_BORN
        await pair.us.kill()
        with pytest.raises(NodeRefused, match="cannot be asked"):
            await born()
        await pair.us.begin()
        assert await born() is BirthOutcome.BORN
        await pair.eu.start()
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "the mirror joined")
        await pair.eu.kill()
        assert await born() is BirthOutcome.BORN_ALREADY
        empty_folder(pair.eu)
        with pytest.raises(NodeRefused, match="region us has history"):
            await born(no_history_elsewhere=True)
        elsewhere = Region("us", tmp_path / "new", pair.fabric, pair.chance)
        with pytest.raises(NodeRefused, match="its primary region"):
            await born(elsewhere)
    finally:
        await pair.stop()


async def test_T32_what_a_former_life_told_an_emptied_region_voids_nothing_that_it_reaches(
    tmp_path: Path,
) -> None:
    """1. us takes over, and is emptied. 2. It hears of that from eu. 3. eu gets an older folder, and acts; us joins."""
    async with region_pair(tmp_path, 30) as pair:
        await three_records(pair)
        await pair.eu.kill()
        older = copy_of(pair.eu)
        await pair.eu.start()
        await pair.until(lambda: pair.eu.node.role.acting, "the primary acts again")
        await pair.take_over(planned=True)
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "eu follows")
        base = pair.eu.node.failover.outlook.domain.lineage[-1].base_number
        await pair.us.kill()
        empty_folder(pair.us)
        await pair.us.begin()
        await until(lambda: "region eu has history" in pair.us.node.role.reason_not_acting, "told")
        await pair.eu.kill()
        restore(pair.eu, older)
        await pair.eu.start()
        await pair.until(lambda: shown(pair.us) == 3, "us joins eu")
        written = 3
        while pair.us.node.tidemarks.claim().point.number <= base:
            await write(pair.eu, b"more")
            written += 1
            await pair.until(lambda count=written: shown(pair.us) == count, "us shows it")  # type: ignore[misc]
        assert pair.us.node.failover.outlook.claim().point.number > base
