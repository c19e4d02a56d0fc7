"""Which mutants there are of the pure cores, and which of them a seed draws.

INV-MU3  the same seed over the same text draws the same mutants
"""

from pathlib import Path
from random import Random
from typing import Final

from tests.mutants.operators import OPERATORS, Mutant, is_one, proposed

PURE_PACKAGES: Final = ("idempotency", "txn_coordinator", "geo_replicator")
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
        for name in PURE_PACKAGES
        for path in (root / name).rglob("*.py")
    )
    return sorted(path for path in found if path not in NOT_PURE)


def path_of(module: str) -> str:
    """Return the path of a module's dotted name."""
    return module.replace(".", "/") + ".py"


def drawn(sources: dict[str, str], seed: int, count: int) -> list[Mutant]:
    """Return up to `count` mutants, each once: operators by turns, so that the frequent ones do not crowd out the rest (INV-MU3)."""
    chance = Random(seed)
    waiting: dict[str, list[Mutant]] = {operator: [] for operator in OPERATORS}
    for path in sorted(sources):
        for mutant in proposed(path, sources[path]):
            waiting[mutant.operator].append(mutant)
    for mutants in waiting.values():
        chance.shuffle(mutants)
    chosen: list[Mutant] = []
    while len(chosen) < count and any(waiting.values()):
        drawn_now = [mutants.pop() for mutants in waiting.values() if mutants]
        chosen += [mutant for mutant in drawn_now if is_one(mutant, sources[mutant.path])]
    return chosen[:count]
