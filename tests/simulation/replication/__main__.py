"""``python -m tests.simulation.replication``: many lives of a replica group by seed, or its mutants."""

import sys
from typing import Final

import click

from tests.simulation.replication.mutants import MUTANTS, noticed
from tests.simulation.replication.play import play

SHOWN: Final = 40


@click.command()
@click.option("--seed", default=1, help="The first life.")
@click.option("--seeds", default=1_000, help="How many.")
@click.option("--mutants", is_flag=True, help="Play the mutants instead, each until it is noticed.")
def main(seed: int, seeds: int, *, mutants: bool) -> None:
    """Play lives, and say what is wrong in the first one in which something is.

    Example: python -m tests.simulation.replication --seed 7 --seeds 1
    """
    sys.exit(1 if (_missed() if mutants else _wrong(seed, seeds)) else 0)


def _wrong(first: int, seeds: int) -> bool:
    for seed in range(first, first + seeds):
        played = play(seed)
        if played.violation:
            click.echo("\n".join(played.steps[-SHOWN:]))
            click.echo(f"seed {seed}: {played.violation}")
            return True
    click.echo(f"{seeds} lives, nothing wrong")
    return False


def _missed() -> bool:
    missed = False
    for mutant in MUTANTS:
        seed, violation = noticed(mutant)
        click.echo(
            f"{mutant.name} ({mutant.rule}): {f'seed {seed}, {violation}' if violation else 'NOT NOTICED'}"
        )
        missed = missed or not violation
    return missed


if __name__ == "__main__":
    main()
