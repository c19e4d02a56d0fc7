"""``python -m tests.simulation.region_nodes``: lives of a region's nodes under faults, from one seed each."""

import logging
import sys
from collections import Counter

import click

from tests.simulation.region_nodes.play import play


@click.command()
@click.option("--seed", required=True, type=int, help="What everything is drawn from.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, from that one on.")
@click.option("--verbose", is_flag=True, help="Print each life's trace hash.")
def main(*, seed: int, seeds: int, verbose: bool) -> None:
    """Play some seeds.

    Example: python -m tests.simulation.region_nodes --seed 1 --seeds 100
    """
    logging.disable(logging.WARNING)  # connections break all the time
    failed: list[int] = []
    counted: Counter[str] = Counter()
    for number in range(seed, seed + seeds):
        life = play(number)
        counted += life.counted
        if life.violation:
            failed.append(number)
            click.echo(f"seed {number}: {life.violation}")
        if verbose:
            click.echo(f"trace {number} {life.digest}")
    click.echo(", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    click.echo(f"{seeds - len(failed)} of {seeds} seeds without violations; others: {failed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
