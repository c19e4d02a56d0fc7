"""The lives of `test_transfers`, with ledgers that are compacted all the while, in both regions (ADR 25).

Segments are tiny, the cleaner hardly rests, and tombstones go at once: what a takeover, a start or a return reads of a
ledger was compacted before. Everything is judged as there.
"""

import random
from pathlib import Path

import pytest

from idempotency.identity import OFFSETS_LEDGER, TRANSACTION_LEDGER
from region_broker.node import storage
from region_broker.partitions import cleaner
from region_broker.partitions.cleaner import Cleaner
from region_broker.partitions.partition import Partition
from tests.simulation.region_pair import region_pair
from tests.simulation.test_transfers import Life

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
SEEDS = 6
ALWAYS_COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "50",
}


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let ledgers be compacted all the while; return the topics of cleanings as they come."""
    topics: list[str] = []
    clean = Cleaner.clean

    async def noting(self: Cleaner, partition: Partition) -> bool:
        done = await clean(self, partition)
        if done:
            topics.append(partition.tp.topic)
        return done

    configs = dict.fromkeys((TRANSACTION_LEDGER, OFFSETS_LEDGER), ALWAYS_COMPACTED)
    monkeypatch.setattr(storage, "LEDGER_CONFIGS", configs)
    monkeypatch.setattr(cleaner, "PAUSE_MS", 20)
    monkeypatch.setattr(Cleaner, "clean", noting)
    return topics


@pytest.mark.parametrize("seed", range(1000, 1000 + SEEDS))
async def test_B5_transfers_survive_on_compacted_ledgers(
    seed: int, tmp_path: Path, cleaned: list[str]
) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    delay_ms_max = chance.choice([0.0, 0.0, 1.0, 3.0])
    async with region_pair(tmp_path, seed, delay_ms_max=delay_ms_max) as pair:
        await Life(pair, chance).run()
    print(f"{len(cleaned)} cleanings")


async def test_these_lives_do_compact(tmp_path: Path, cleaned: list[str]) -> None:
    """One life may be too short for a full segment."""
    for seed in range(8):
        async with region_pair(tmp_path / str(seed), seed) as pair:
            await Life(pair, random.Random(seed)).run()
        if TRANSACTION_LEDGER in cleaned:
            return
    raise AssertionError(f"only {sorted(set(cleaned))} were ever compacted")
