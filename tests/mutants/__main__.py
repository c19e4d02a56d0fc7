"""``python -m tests.mutants --seed N --count M``: draw mutants of the pure cores and ask the fast tests about each.

The last line is ``mutants <n> killed <k> survived <s>``; the exit code is 0 where at most 2 % survived.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

import click

from tests.mutants.draw import drawn, path_of, pure_modules
from tests.mutants.scratch import Scratch

_TREE: Final = Path(__file__).resolve().parents[2]
_SURVIVORS_PERCENT_MAX: Final = 2


@click.command()
@click.option("--seed", required=True, type=int, help="What the mutants are drawn from.")
@click.option("--count", default=20, show_default=True, help="How many mutants at most.")
@click.option("--module", help="Mutants of this module only.")
@click.option("--limit-s", default=60.0, show_default=True, help="What one mutant may take.")
def main(seed: int, count: int, module: str | None, limit_s: float) -> None:
    """Say of each mutant which test killed it, and show those that survived.

    Example: python -m tests.mutants --seed 7 --count 40 --module geo_replicator.directory
    """
    paths = pure_modules(_TREE)
    if module is not None:
        if path_of(module) not in paths:
            raise click.BadParameter(f"{module} is no module of a pure core", param_hint="--module")
        paths = [path_of(module)]
    sources = {path: (_TREE / path).read_text("utf-8") for path in paths}
    mutants = drawn(sources, seed, count)
    survived = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        scratch = Scratch.of(_TREE, Path(folder), limit_s)
        for number, mutant in enumerate(mutants, 1):
            source = sources[mutant.path]
            line = source.encode()[: mutant.begin].count(b"\n") + 1
            named = f"{number} {mutant.path}:{line} {mutant.operator}"
            if mutant.applied(source) == source:
                click.echo(f"{named}: did not apply")
                survived += 1
                continue
            killer = scratch.killer(mutant, source)
            if killer is None:
                survived += 1
                click.echo(f"{named}: survived\n{mutant.diff(source)}")
            else:
                click.echo(f"{named}: killed by {killer}")
    click.echo(f"mutants {len(mutants)} killed {len(mutants) - survived} survived {survived}")
    sys.exit(0 if survived * 100 <= _SURVIVORS_PERCENT_MAX * len(mutants) else 1)


if __name__ == "__main__":
    main()
