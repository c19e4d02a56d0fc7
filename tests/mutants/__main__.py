"""``python -m tests.mutants --seed N --count M``: draw mutants of the pure cores and ask the fast tests about each.

The last line is ``mutants <n> killed <k> equivalent <e> survived <s>``; the exit code is 0 where at most 2 % survived.
"""

import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Final

import click
import pytest

from tests.mutants.draw import drawn, path_of, pure_modules
from tests.mutants.equivalent import reason_for
from tests.mutants.forks import Forks
from tests.mutants.judge import SHARE_OF_TESTS, Judge, Runner
from tests.mutants.nearest import Nearest, Seen
from tests.mutants.operators import Mutant
from tests.mutants.runs import ARGUMENTS
from tests.mutants.scratch import Scratch

_TREE: Final = Path(__file__).resolve().parents[2]
_SURVIVORS_PERCENT_MAX: Final = 2
_SIGTERM_EXIT: Final = 143
_FATES: Final = ("killed", "equivalent", "survived")


@click.command()
@click.option("--seed", required=True, type=int, help="What the mutants are drawn from.")
@click.option("--count", default=20, show_default=True, help="How many mutants at most.")
@click.option("--module", multiple=True, help="Mutants of these modules only.")
@click.option("--limit-s", default=120.0, show_default=True, help="What one mutant may take.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Keep which test runs which line in this file, or read it from there: it belongs to one commit; tests that changed since are run again.",
)
def main(
    seed: int, count: int, module: tuple[str, ...], limit_s: float, record: Path | None
) -> None:
    """Say of each mutant which test killed it, and show those that survived.

    Example: python -m tests.mutants --seed 7 --count 40 --module geo_replicator.directory
    """
    signal.signal(signal.SIGTERM, _end)
    cores = {path: (_TREE / path).read_text("utf-8") for path in pure_modules(_TREE)}
    if unknown := [each for each in module if path_of(each) not in cores]:
        raise click.BadParameter(f"no module of a pure core: {unknown}", param_hint="--module")
    sources = {path_of(each): cores[path_of(each)] for each in module} or cores
    mutants = drawn(sources, seed, count)
    fates: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch(_TREE, Path(folder) / "tree", limit_s)
        seen = Seen.watched(_TREE, record or Path(folder) / "record")
        nearest = Nearest(seen, cores, limit_s / SHARE_OF_TESTS)

        def judge(forks: Forks) -> None:
            def runner_of(*mutant: *tuple[Mutant, str]) -> Runner:
                return forks if nearest.of_its_lines(*mutant) and forks.takes(*mutant) else scratch

            judge = Judge(nearest, runner_of)
            for number, mutant in enumerate(mutants, 1):
                fate, said = _judged(judge, mutant, sources[mutant.path])
                fates[fate] += 1
                line = sources[mutant.path].encode()[: mutant.begin].count(b"\n") + 1
                click.echo(f"{number} {mutant.path}:{line} {mutant.operator}: {said}")

        files = {
            test.partition("::")[0]
            for mutant in mutants
            for test in nearest.tests(mutant, sources[mutant.path])
        }
        asking = Forks(_TREE, sorted({mutant.path for mutant in mutants}), limit_s, judge)
        base = f"--basetemp={folder}/tests"
        pytest.main([*ARGUMENTS, "--capture=no", base, *sorted(files)], plugins=[asking])
    click.echo(f"mutants {len(mutants)} " + " ".join(f"{fate} {fates[fate]}" for fate in _FATES))
    if fates.total() < len(mutants):
        sys.exit(_SIGTERM_EXIT)
    sys.exit(0 if fates["survived"] * 100 <= _SURVIVORS_PERCENT_MAX * len(mutants) else 1)


def _judged(judge: Judge, mutant: Mutant, source: str) -> tuple[str, str]:
    """Return what became of a mutant, and that in words."""
    reason = reason_for(mutant, source)
    if reason is not None:
        return "equivalent", f"equivalent: {reason}"
    killer = judge.killer(mutant, source)
    if killer is not None:
        return "killed", f"killed by {killer}"
    asked = len(judge.nearest.tests(mutant, source))
    return "survived", f"survived {asked} tests\n{mutant.diff(source)}"


def _end(_number: int, _frame: FrameType | None) -> None:
    """Leave through everybody's `finally`, so that nothing stays behind."""
    sys.exit(_SIGTERM_EXIT)


if __name__ == "__main__":
    main()
