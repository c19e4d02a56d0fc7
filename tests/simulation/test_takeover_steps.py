"""A takeover goes on from wherever the process died: at every disk operation of FENCING, CUTTING and ADOPTING.

The candidate's disk and folder are copied at the moment before the takeover; each run starts from such a copy, dies
at another disk operation (by SIGKILL or by a power cut), is started again, and must end where the run ended
that nothing disturbed: same base, same records, same quarantine, nothing open. Then the same for the return of the
old primary: from its start over the cutting of its logs until it mirrors.
"""

import asyncio
import contextlib
import copy
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from chaos.history import Seen, seen
from geo_replicator.failover import Phase
from region_broker.region.mirror.mirror_log import key_of
from tests.simulation.bank import ACCOUNTS, TOPIC, Bank, Teller
from tests.simulation.cut_judge import batches_of, whole
from tests.simulation.disk import Crashed
from tests.simulation.kafka_client import Connection, Reader
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Pair, Region, region_pair, until

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
COMMITS = 25
CRASHES_MAX = 60


@dataclass(frozen=True)
class Result:
    """What a takeover led to, as far as it must be the same however often it was interrupted."""

    base: dict[str, int]
    acting: tuple[str, int, int]
    shown: list[Seen]
    data: list[tuple[int, int, int, tuple[tuple[int, bytes], ...]]]
    markers: dict[tuple[int, int], int]
    quarantine: dict[tuple[str, int, int], bytes]


class Outset:
    """The candidate as it stood when the primary died; every run starts from here."""

    def __init__(self, region: Region, fabric: Fabric | None = None) -> None:
        self._name, self._folder = region.name, region.folder
        self._fabric = fabric
        self._disk = region.disk
        # What the primary wrote and never synced may be lost or not: runs that may differ in that cannot be compared.
        self._disk.write_out()
        self.steps = 0

    def region(self) -> Region:
        """Return a region that stands where the outset stood; one at a time."""
        fabric = self._fabric or Fabric(random.Random(1))
        region = Region(self._name, self._folder, fabric, random.Random(1))
        region.disk = copy.deepcopy(self._disk)
        return region


def mirror_is_past_the_last_tidemark(pair: Pair) -> bool:
    """Whether the mirror holds records of the topic that no tidemark covers, published or under way to it."""
    leader = pair.eu.node.tidemarks.cut_leader
    assert leader is not None
    cut = leader.published_cut()
    mirrored = (pair.us.partition(TOPIC, number) for number in range(ACCOUNTS))
    return any(log.log_end_offset > cut.position_of(key_of(log)) for log in mirrored)


async def transfers_cut_short(pair: Pair) -> None:
    """Let transfers run, cut the link in the middle of some, let more run, and kill the primary."""
    await pair.create_topic(TOPIC, ACCOUNTS)
    bank = Bank(pair)
    async with asyncio.TaskGroup() as tasks:
        work = [
            tasks.create_task(Teller(bank, f"teller-{n}", random.Random(n)).run()) for n in range(4)
        ]
        await pair.until(lambda: bank.committed(0) >= COMMITS, "commits")
        await pair.until(
            lambda: pair.us.partition(TOPIC, 0).sight.last_stable_offset > 0, "a tidemark"
        )
        before = bank.committed(0)
        await pair.until(lambda: bank.committed(0) > before, "one more commit")
        await pair.until(lambda: mirror_is_past_the_last_tidemark(pair), "a tail for quarantine")
        pair.fabric.cut("eu", "us")
        for task in work:
            task.cancel()
    await pair.eu.kill()


def acts(region: Region) -> bool:
    return region.phase is Phase.ACTING and region.node.role.acting


async def take_over(region: Region) -> None:
    """Order the takeover, unless one is under way, and wait for its end or the node's."""
    if region.phase is Phase.MIRRORING:
        region.node.operations.begin_failover(confirmed=True)
    await until(lambda: acts(region) or region.died, "the takeover ends, or the node")
    region.disk.crash_at = None


async def result_of(region: Region) -> Result:
    """Read everything that must not depend on interruptions."""
    storage = region.node.storage
    domain = storage.metadata.image.main_domain
    (entry,) = domain.lineage
    connection = await Connection.open(region.fabric.site("auditor"), region.kafka_port)
    reader = Reader(TOPIC, ACCOUNTS, committed=True)
    while await reader.read(connection):
        pass
    data, markers = [], Counter[tuple[int, int]]()
    for number in range(ACCOUNTS):
        partition = region.partition(TOPIC, number)
        assert partition.state.open_transactions() == []
        for batch in batches_of(partition):
            if batch.marker is None:
                data.append((number, batch.offset, batch.producer_id, batch.values))
            else:
                markers[number, batch.producer_id] += 1
    return Result(
        base=entry.positions,
        acting=(domain.acting_region, domain.region_epoch, region.node.role.region_epoch),
        shown=sorted(seen(*each) for each in reader.records),
        data=data,
        markers=dict(markers),
        quarantine=quarantine_of(region),
    )


async def undisturbed(outset: Outset) -> Result:
    region = outset.region()
    await region.start()
    before = region.disk.operations
    await take_over(region)
    outset.steps = region.disk.operations - before
    result = await result_of(region)
    await region.kill()
    return result


async def interrupted(outset: Outset, at: int, chance: random.Random) -> Result:
    """Die at disk operation `at` of the takeover, and perhaps again soon after the start."""
    region = outset.region()
    await region.start()
    region.disk.crash_after(at)
    await take_over(region)
    again = chance.random() < 0.3
    while not acts(region) or region.died:
        await region.kill(power=chance if chance.random() < 0.5 else None)
        if again:
            region.disk.crash_after(chance.randrange(200))
            again = False
        with contextlib.suppress(Crashed, BaseExceptionGroup):
            await region.start()
            await take_over(region)
    result = await result_of(region)
    await region.kill()
    return result


async def test_T18_a_takeover_killed_at_any_disk_operation_ends_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path / "pair", seed=5) as pair:
        await transfers_cut_short(pair)
        await pair.us.kill()
        outset = Outset(pair.us)
        expected = await undisturbed(outset)
        assert sum(record.change for record in expected.shown) == 0
        assert expected.shown
        assert any(topic == TOPIC for topic, _, _ in expected.quarantine)
        assert expected.acting == ("us", 17, 17)
        stride = max(1, outset.steps // CRASHES_MAX)
        print(f"{outset.steps} disk operations, every {stride}th")
        for at in range(0, outset.steps, stride):
            assert await interrupted(outset, at, random.Random(at)) == expected, at


def quarantine_of(region: Region) -> dict[tuple[str, int, int], bytes]:
    store = region.node.storage.quarantine
    return {
        (tail.topic, tail.partition, tail.first_offset): b"".join(store.chunks(tail))
        for tail in store.tails()
    }


async def come_back(region: Region) -> bool:
    """Start and wait until the region mirrors or died; return whether it mirrors."""
    with contextlib.suppress(Crashed, BaseExceptionGroup):
        await region.start()
        await until(lambda: region.node.role.mirrors or region.died, "the primary mirrors, or died")
        region.disk.crash_at = None
        return not region.died
    return False


async def test_T18_a_return_killed_at_any_disk_operation_ends_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path / "pair", seed=6) as pair:
        await transfers_cut_short(pair)
        await pair.fail_over()
        pair.fabric.heal("eu", "us")
        outset = Outset(pair.eu, pair.fabric)
        pair.eu = pair.regions["eu"] = outset.region()
        before = pair.eu.disk.operations
        assert await come_back(pair.eu)
        steps = pair.eu.disk.operations - before
        expected = quarantine_of(pair.eu)
        assert any(topic == TOPIC for topic, _, _ in expected)
        stride = max(1, steps // CRASHES_MAX)
        print(f"{steps} disk operations, every {stride}th")
        for at in range(0, steps, stride):
            await pair.eu.kill()
            pair.eu = pair.regions["eu"] = outset.region()
            pair.eu.disk.crash_after(at)
            while not await come_back(pair.eu):
                await pair.eu.kill(power=random.Random(at) if at % 2 else None)
            assert quarantine_of(pair.eu) == expected, at
            await shows_the_same(pair)


async def shows_the_same(pair: Pair) -> None:
    """The old primary ends as a mirror of all that us has."""
    final = await pair.us.node.role.final_round()
    await pair.until(
        lambda: pair.eu.node.tidemarks.claim().point >= final, "the last tidemark is reached"
    )
    for number in range(ACCOUNTS):
        ours, theirs = (pair.regions[name].partition(TOPIC, number) for name in ("eu", "us"))
        assert whole(ours, ours.log_start_offset) == whole(theirs, theirs.log_start_offset)
        assert ours.sight.last_stable_offset == theirs.sight.last_stable_offset
