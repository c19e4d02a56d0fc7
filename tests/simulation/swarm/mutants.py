"""``python -m tests.simulation.swarm.mutants``: rules taken out of the product, one at a time, and what seeds see of it.

INV-SWM1  a mutant is one edit of one file, which must be there exactly once; it is made in a copy of the tree
INV-SWM2  caught is only what shows as the violation that is expected; the same seed is clean without the edit

A mutant that no seed catches, or that only crashes, is a failure of the simulator.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[3]
COPIED: Final = (
    "region_broker", "txn_coordinator", "geo_replicator", "idempotency", "chaos", "tests", "pyproject.toml",
)  # fmt: skip
TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` is what the edit takes out. `expected`: a pattern of the violation; `seed` shows it within `minutes`."""

    name: str
    rule: str
    path: str
    old: str
    new: str
    expected: str
    seed: int
    minutes: float = 0.5


MUTANTS: Final = (
    Mutant(
        "a-retry-is-not-known", "C2", "idempotency/window.py",
        "if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:",
        "if False:", "a producer is refused", 1,
    ),
    Mutant(
        "readers-see-open-transactions", "C36", "region_broker/partitions/partition.py",
        "stable = state.last_stable_offset(bound)", "stable = bound", "gone without a word", 1,
    ),
)  # fmt: skip
"""Those that seeds catch today; `tests/simulation/test_teeth.py` has more, caught by runs made for them."""


@click.command()
@click.option("--only", default="", help="Those whose name contains it.")
@click.option("--find", is_flag=True, help="Try seeds 1 to 12 for each, and print what each says.")
def main(only: str, *, find: bool) -> None:
    """Play each mutant's seed, without and with the edit.

    Example: python -m tests.simulation.swarm.mutants --only sync
    """
    chosen = [mutant for mutant in MUTANTS if only in mutant.name]
    with tempfile.TemporaryDirectory(prefix="tidemark-mutants-") as place:
        failed = [m.name for m in chosen if not _caught(m, Path(place) / m.name, find=find)]
    click.echo(f"mutants {len(chosen)} caught {len(chosen) - len(failed)} others {failed}")
    sys.exit(1 if failed else 0)


def _caught(mutant: Mutant, place: Path, *, find: bool) -> bool:
    _copy_with(mutant, place)
    for seed in range(1, 13) if find else [mutant.seed]:
        said = _play(place, seed, mutant.minutes)
        seen = any(re.search(mutant.expected, violation) for violation in said)
        click.echo(f"{mutant.name} ({mutant.rule}), seed {seed}: {(said or ['nothing'])[0][:160]}")
        if seen:
            clean = not _play(ROOT, seed, mutant.minutes)
            if not clean:
                click.echo(f"  seed {seed} is not clean without it")
            shutil.rmtree(place)
            return clean
    return False


def _copy_with(mutant: Mutant, place: Path) -> None:
    """Make a copy of the tree with the edit (INV-SWM1)."""
    place.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, place / name, ignore=shutil.ignore_patterns("__pycache__", "compat")
            )
        else:
            shutil.copy(source, place / name)
    path = place / mutant.path
    text = path.read_text()
    assert text.count(mutant.old) == 1, (mutant.name, text.count(mutant.old))
    path.write_text(text.replace(mutant.old, mutant.new))


def _play(tree: Path, seed: int, minutes: float) -> list[str]:
    """Return the violations that a seed finds in that tree; one of them says if it ended otherwise."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", "--seed", str(seed), "--minutes", str(minutes)],
        cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True, text=True,
        check=False, timeout=TIMEOUT_S,
    )  # fmt: skip
    lines = run.stdout.splitlines()
    found = [line.removeprefix("violation: ") for line in lines if line.startswith("violation: ")]
    if not lines or not lines[-1].startswith("trace "):
        found.append(f"CRASH: {run.stderr[-500:]}")
    return found


if __name__ == "__main__":
    main()
