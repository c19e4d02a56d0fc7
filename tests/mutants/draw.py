"""Which mutants there are of the pure cores, and which of them a seed draws.

INV-MU3  the same seed over the same text of a module draws the same mutants of it
"""

import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from tests.mutants.operators import OPERATORS, Mutant, is_one, proposed

PURE_PACKAGES: Final = ("idempotency", "txn_coordinator", "geo_replicator")
ROOMS_WITH_CORES: Final = tuple(
    f"region_broker/{room}"
    for room in ("partitions", "log", "groups", "region", "ledgers", "replication", "controller")
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
    """Return up to `count` mutants, each once: modules take turns, so that large ones do not crowd out the rest (INV-MU3)."""
    turns = sorted(sources)
    Random(seed).shuffle(turns)
    waiting = {path: _by_turns(path, sources[path], seed) for path in turns}
    chosen: list[Mutant] = []
    while waiting and len(chosen) < count:
        for path in list(waiting):
            mutant = next(waiting[path], None)
            if mutant is None:
                del waiting[path]
            else:
                chosen.append(mutant)
    return chosen[:count]


def _by_turns(path: str, source: str, seed: int) -> Iterator[Mutant]:
    """Yield a module's mutants; operators take turns, as some are frequent. Other modules do not matter."""
    chance = Random(f"{seed} {path}")
    kinds: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    for mutant in proposed(path, source):
        kinds[mutant.operator].append(mutant)
    turns = list(kinds.values())
    chance.shuffle(turns)
    for mutants in turns:
        chance.shuffle(mutants)
    while any(turns):
        for mutants in turns:
            while mutants:
                if is_one(mutant := mutants.pop(), source):
                    yield mutant
                    break
