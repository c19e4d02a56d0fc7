"""``python -m tests.mutants --seed N --count M``: draw mutants of the pure cores and ask the fast tests about each.

The last line is ``mutants <n> killed <k> equivalent <e> survived <s>``; the exit code is 0 where at most 2 % survived.
"""

import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Final

import click

from tests.mutants.draw import drawn, path_of, pure_modules
from tests.mutants.equivalent import reason_for
from tests.mutants.operators import Mutant
from tests.mutants.scratch import Scratch

_TREE: Final = Path(__file__).resolve().parents[2]
_SURVIVORS_PERCENT_MAX: Final = 2
_SIGTERM_EXIT: Final = 143


@click.command()
@click.option("--seed", required=True, type=int, help="What the mutants are drawn from.")
@click.option("--count", default=20, show_default=True, help="How many mutants at most.")
@click.option("--module", multiple=True, help="Mutants of these modules only.")
@click.option("--limit-s", default=120.0, show_default=True, help="What one mutant may take.")
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    help="Keep which test runs which function in this file, or read it from there: it belongs to one commit.",
)
def main(
    seed: int, count: int, module: tuple[str, ...], limit_s: float, record: Path | None
) -> None:
    """Say of each mutant which test killed it, and show those that survived.

    Example: python -m tests.mutants --seed 7 --count 40 --module geo_replicator.directory
    """
    signal.signal(signal.SIGTERM, _end)
    paths = pure_modules(_TREE)
    if unknown := [each for each in module if path_of(each) not in paths]:
        raise click.BadParameter(f"no module of a pure core: {unknown}", param_hint="--module")
    sources = {
        path: (_TREE / path).read_text("utf-8")
        for path in ([path_of(each) for each in module] or paths)
    }
    mutants = drawn(sources, seed, count)
    survived = equivalent = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch.of(_TREE, Path(folder), limit_s)
        scratch.watch(record or Path(folder) / "record")
        for number, mutant in enumerate(mutants, 1):
            source = sources[mutant.path]
            said, alive = _judged(scratch, mutant, source)
            equivalent += alive is None
            survived += alive is True
            line = source.encode()[: mutant.begin].count(b"\n") + 1
            click.echo(f"{number} {mutant.path}:{line} {mutant.operator}: {said}")
    killed = len(mutants) - survived - equivalent
    click.echo(
        f"mutants {len(mutants)} killed {killed} equivalent {equivalent} survived {survived}"
    )
    sys.exit(0 if survived * 100 <= _SURVIVORS_PERCENT_MAX * len(mutants) else 1)


def _judged(scratch: Scratch, mutant: Mutant, source: str) -> tuple[str, bool | None]:
    """Return what became of a mutant, and whether it is alive; None: it is the same behaviour."""
    reason = reason_for(mutant, source)
    if reason is not None:
        return f"equivalent: {reason}", None
    killer = scratch.killer(mutant, source)
    if killer is not None:
        return f"killed by {killer}", False
    asked = len(scratch.asked(mutant, source))
    return f"survived {asked} tests\n{mutant.diff(source)}", True


def _end(_number: int, _frame: FrameType | None) -> None:
    """Leave through everybody's `finally`, so that nothing stays behind."""
    sys.exit(_SIGTERM_EXIT)


if __name__ == "__main__":
    main()
