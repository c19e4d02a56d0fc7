"""Which mutants there are of the pure cores, and which of them a seed draws.

INV-MU3  the same seed over the same text draws the same mutants
"""

import re
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from tests.mutants.operators import OPERATORS, Mutant, is_one, proposed

PURE_PACKAGES: Final = ("idempotency", "txn_coordinator", "geo_replicator")
ROOMS_WITH_CORES: Final = tuple(
    f"region_broker/{room}" for room in ("partitions", "log", "groups", "region", "ledgers")
)
"""Beside drivers they have modules that decide: those that wait for nothing and import nothing that does I/O."""
_DOES_IO: Final = re.compile(
    r"^\s*(async def|(import|from) (asyncio|os|pathlib|socket|sqlalchemy|region_broker\.ports)\b)",
    re.MULTILINE,
)
# What does I/O or runs in Spark: judged by whole nodes and by Spark, not by the fast tests.
NOT_PURE: Final = frozenset(
    {
        "txn_coordinator/driver.py",
        "txn_coordinator/serving/hold_limit.py",
        "txn_coordinator/serving/id_stock.py",
        "txn_coordinator/serving/ledger_queue.py",
        "txn_coordinator/serving/loading.py",
        "txn_coordinator/serving/marker_orders.py",
        "txn_coordinator/serving/shard_driver.py",
        "geo_replicator/link/driver.py",
        "geo_replicator/link/reaching.py",
        "geo_replicator/reconciliation/spark_job.py",
        "geo_replicator/reconciliation/spark_source.py",
    }
)


def pure_modules(root: Path) -> list[str]:
    """Return the paths of the pure cores' modules, sorted."""
    found = (
        path.relative_to(root).as_posix()
        for name in (*PURE_PACKAGES, *ROOMS_WITH_CORES)
        for path in (root / name).rglob("*.py")
        if name in PURE_PACKAGES or not _DOES_IO.search(path.read_text("utf-8"))
    )
    return sorted(path for path in found if path not in NOT_PURE)


def path_of(module: str) -> str:
    """Return the path of a module's dotted name."""
    return module.replace(".", "/") + ".py"


def drawn(sources: dict[str, str], seed: int, count: int) -> list[Mutant]:
    """Return up to `count` mutants, each once (INV-MU3).

    Modules take turns, and each gives one of the operator that was drawn least: neither large modules nor frequent
    operators crowd out the rest.
    """
    chance = Random(seed)
    waiting: dict[str, list[Mutant]] = {}
    for path in sorted(sources):
        waiting[path] = proposed(path, sources[path])
        chance.shuffle(waiting[path])
    turns = sorted(sources)
    chance.shuffle(turns)
    often = Counter(dict.fromkeys(OPERATORS, 0))
    chosen: list[Mutant] = []
    while len(chosen) < count and (turns := [path for path in turns if waiting[path]]):
        for path in turns:
            mutant = _least_drawn(waiting[path], often, sources[path])
            if mutant is not None:
                often[mutant.operator] += 1
                chosen.append(mutant)
    return chosen[:count]


def _least_drawn(waiting: list[Mutant], often: Counter[str], source: str) -> Mutant | None:
    """Take a mutant of the operator that was drawn least out of those that wait."""
    while waiting:
        mutant = min(waiting, key=lambda each: often[each.operator])
        waiting.remove(mutant)
        if is_one(mutant, source):
            return mutant
    return None
