"""``python -m tests.simulation.raft``: lives of Raft groups under faults, from one seed each."""

import sys
from collections import Counter

import click

from tests.simulation.raft.play import play


@click.command()
@click.option("--seed", required=True, type=int, help="What everything is drawn from.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, from that one on.")
@click.option("--members", type=click.IntRange(1, 7), help="Members of each group; else drawn.")
@click.option("--verbose", is_flag=True, help="Print each life's trace hash.")
def main(*, seed: int, seeds: int, members: int | None, verbose: bool) -> None:
    """Play some seeds.

    Example: python -m tests.simulation.raft --seed 1 --seeds 1000
    """
    failed: list[int] = []
    counted: Counter[str] = Counter()
    for number in range(seed, seed + seeds):
        life = play(number, members)
        counted += life.counted
        if life.violation:
            failed.append(number)
            click.echo(f"seed {number}: {life.violation}")
        if verbose:
            click.echo(f"trace {number} {life.events} {life.digest}")
        if (done := number - seed + 1) % 500 == 0:
            click.echo(f"{done} played, {len(failed)} with violations")
    click.echo(", ".join(f"{name} {count}" for name, count in sorted(counted.items())))
    click.echo(f"{seeds - len(failed)} of {seeds} seeds without violations; others: {failed}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
