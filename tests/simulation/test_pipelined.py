"""Idempotent producers with five requests in flight live through kills, cuts and takeovers: nothing twice.

Each seed is one life of a pair of regions. Producers talk to either region, so half of what they send is
forwarded. None may ever be answered that a sequence or an epoch is wrong: librdkafka then takes a new epoch, and
writes again what may be in the log. To run one seed: `pytest tests/simulation/test_pipelined.py -k "[17]"`.
"""

import asyncio
import enum
import random
from pathlib import Path

import pytest

from tests.simulation.cut_judge import batches_of
from tests.simulation.kafka_client import DAY_MS
from tests.simulation.pipeliner import Pipeliner
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
SEEDS = 10
TOPIC = "stream"
PRODUCERS = 3
TROUBLES = 5


class Trouble(enum.Enum):
    """What happens; only a failover may lose what was answered."""

    PRIMARY_KILLED_BRIEFLY = enum.auto()
    MIRROR_KILLED = enum.auto()
    BOTH_KILLED = enum.auto()
    LINK_DROPPED = enum.auto()
    LINK_CUT = enum.auto()
    SWITCH = enum.auto()
    FAILOVER = enum.auto()
    FAILOVER_ALIVE = enum.auto()
    CLOCKS_SET = enum.auto()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_is_twice_and_nobody_is_told_that_a_sequence_is_wrong(
    seed: int, tmp_path: Path
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    delay_ms_max = chance.choice([0.0, 0.0, 1.0, 3.0])
    async with region_pair(tmp_path, seed, delay_ms_max=delay_ms_max) as pair:
        await Life(pair, chance).run()


class Life:
    """One run. `may_be_lost[n]`: what producer n had been answered when a failover last began to act."""

    def __init__(self, pair: Pair, chance: random.Random) -> None:
        self.pair, self.chance = pair, chance
        self.primary, self.mirror = pair.eu, pair.us
        self.producers = [
            Pipeliner(pair, TOPIC, number, random.Random(chance.random()))
            for number in range(PRODUCERS)
        ]
        self.may_be_lost = [0] * PRODUCERS

    async def run(self) -> None:
        await self.pair.create_topic(TOPIC, PRODUCERS)
        async with asyncio.TaskGroup() as tasks:
            for producer in self.producers:
                tasks.create_task(producer.run())
            for _ in range(TROUBLES):
                await self.progress(self.chance.randrange(1, 40))
                await asyncio.sleep(self.chance.uniform(0, 0.01))
                await self.strike(self.chance.choice(list(Trouble)))
                self.mind()
            await self.progress(20)
            for producer in self.producers:
                producer.closed.set()
        self.judge()

    async def progress(self, count: int) -> None:
        wanted = [len(producer.answered) + count for producer in self.producers]
        await self.pair.until(
            lambda: (
                any(p.refused_for_good for p in self.producers)
                or all(len(p.answered) >= n for p, n in zip(self.producers, wanted, strict=True))
            ),
            "progress",
        )
        self.mind()

    def mind(self) -> None:
        for producer in self.producers:
            assert producer.refused_for_good == []

    async def strike(self, trouble: Trouble) -> None:
        print(trouble.name)
        fabric = self.pair.fabric
        match trouble:
            case Trouble.PRIMARY_KILLED_BRIEFLY:
                await self.restarted(self.primary)
            case Trouble.MIRROR_KILLED:
                await self.restarted(self.mirror)
            case Trouble.BOTH_KILLED:
                both = [self.primary, self.mirror]
                self.chance.shuffle(both)
                await self.restarted(*both)
            case Trouble.LINK_DROPPED:
                fabric.drop("eu", "us")
            case Trouble.LINK_CUT:
                fabric.cut("eu", "us")
                await self.pause()
                fabric.heal("eu", "us")
            case Trouble.SWITCH:
                await self.taken_over(planned=True)
            case Trouble.FAILOVER:
                await self.primary.kill()
                await self.pause()
                await self.taken_over(planned=False)
                await self.pause()
                await self.mirror.start()
            case Trouble.FAILOVER_ALIVE:
                await self.taken_over(planned=False)
            case Trouble.CLOCKS_SET:
                await self.clocks_set()
        await self.pair.until(
            lambda: self.primary.node.role.acting and self.mirror.node.role.mirrors, "both are back"
        )

    async def restarted(self, *regions: Region) -> None:
        for region in regions:
            await region.kill()
        await self.pause()
        for region in regions:
            await region.open()  # one after the other: Alembic migrates once at a time in a process
        async with asyncio.TaskGroup() as tasks:
            for region in regions:
                tasks.create_task(region.run())

    async def clocks_set(self) -> None:
        for region in (self.primary, self.mirror):
            region.wall.off_ms = self.chance.randrange(2 * DAY_MS)
        await self.pause()

    async def pause(self) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.03))

    async def taken_over(self, *, planned: bool) -> None:
        """Let the mirror act; what was answered until it did may be lost, unless it was planned."""
        operations = self.mirror.node.operations
        await self.pair.until(
            lambda: self.mirror.node.role.mirrors and self.mirror.node.failover.running, "a mirror"
        )
        operation = (
            operations.begin_switch() if planned else operations.begin_failover(confirmed=True)
        )
        await self.pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        self.primary, self.mirror = self.mirror, self.primary
        if not planned:
            self.may_be_lost = [len(producer.answered) for producer in self.producers]

    def judge(self) -> None:
        for number, producer in enumerate(self.producers):
            written = [
                (int(value), offset)
                for batch in batches_of(self.primary.partition(TOPIC, number))
                for offset, value in batch.values
            ]
            there = dict(written)
            assert [value for value, _ in written] == sorted(there), "twice, or out of order"
            for value, offset in enumerate(producer.answered):
                found = there.get(value)
                if found is None:
                    assert value < self.may_be_lost[number], f"{number}/{value} is lost"
                elif offset is not None:
                    assert found == offset, f"{number}/{value} moved"
