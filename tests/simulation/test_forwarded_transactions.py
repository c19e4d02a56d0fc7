"""Transactions of the second generation at a mirror's address, while the link between the regions breaks.

Each seed is one life of a pair of regions. Answers are lost after their requests were executed, and requests arrive
after their sender has gone on over another connection. Nothing of that may be fatal to a client that tries again by
the Java client's rules, and each transaction must be in both partitions, once and in order.
To run one seed: `pytest tests/simulation/test_forwarded_transactions.py -k "[17]"`.
"""

import asyncio
import random
from pathlib import Path

import pytest

from tests.simulation.cut_judge import batches_of
from tests.simulation.modern_producer import ModernProducer
from tests.simulation.region_pair import Pair, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
SEEDS = 4
TOPIC = "accounts"
TRANSACTIONS = 40


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_link_that_breaks_under_forwarded_transactions_is_not_fatal(
    seed: int, tmp_path: Path
) -> None:
    chance = random.Random(seed)
    async with region_pair(tmp_path, seed, delay_ms_max=chance.choice([0.0, 1.0, 3.0])) as pair:
        await pair.create_topic(TOPIC, 2)
        producers = [
            ModernProducer(pair, TOPIC, f"p{number}", random.Random(chance.random()))
            for number in range(2)
        ]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            breaking = tasks.create_task(_break_the_link(pair, chance))
            async with asyncio.TaskGroup() as working:
                for producer in producers:
                    working.create_task(producer.run(TRANSACTIONS))
            breaking.cancel()
        assert [producer.fatal for producer in producers] == [[], []]
        # Values of both producers alternate as they come; each one's own are in order.
        for number in (0, 1):
            values: dict[int, list[int]] = {}
            for batch in batches_of(pair.eu.partition(TOPIC, number)):
                for _, value in batch.values:
                    values.setdefault(batch.producer_id, []).append(int(value))
            assert sorted(values.values()) == [list(range(TRANSACTIONS))] * 2


async def _break_the_link(pair: Pair, chance: random.Random) -> None:
    """Drop what is between the regions again and again, at moments drawn by the seed."""
    while True:
        await asyncio.sleep(chance.expovariate(1 / 0.03))
        pair.fabric.drop("eu", "us")
