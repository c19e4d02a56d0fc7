"""``python -m tests.simulation --seed N``: whole regions in one process, on simulated time, disk, network and chance.

The last line is ``trace <hash> events <n> violations <n>``; the exit code is 0 only without violations. The same seed gives
the same trace, on any machine and in any process. A run that fails is played again with less and less of it, and
the smallest that still fails is printed as a command.
"""

import asyncio
import logging
import sys
from pathlib import Path

import click
from typing_extensions import override

from tests.simulation.printed_runs import play_and_print, side_by_side
from tests.simulation.swarm.minimise import Run
from tests.simulation.swarm.plan import Choice


@click.command()
@click.option("--seed", required=True, type=int, help="What everything is drawn from.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, from that one on.")
@click.option(
    "--jobs", default=1, show_default=True, type=click.IntRange(1), help="Processes for --seeds."
)
@click.option("--minutes", default=1.0, show_default=True, help="Simulated minutes of trouble.")
@click.option("--regions", default=2, show_default=True, type=click.IntRange(2, 3))
@click.option(
    "--without",
    default="",
    help="Faults to leave out: kinds of actions and of weather, power, delay, late.",
)
@click.option("--actions", help="Of what has a number only these, as 3,7-9,w1.4; none for none.")
@click.option("--first", type=int, help="Only so many events of each seed: to compare traces.")
@click.option("--no-minimise", is_flag=True, help="Leave a run that fails as it is.")
@click.option("--verbose", is_flag=True, help="Say what happens, and what the nodes log.")
@click.option(
    "--events", type=click.Path(path_type=Path), help="Write every event into a file, a line each."
)
def main(
    *, seed: int, seeds: int, jobs: int, minutes: float, regions: int, without: str, actions: str | None,
    first: int | None, no_minimise: bool, verbose: bool, events: Path | None,
) -> None:  # fmt: skip
    """Play the lives of some seeds.

    Example: python -m tests.simulation --seed 17 --minutes 2 --verbose
    """
    _log(verbose=verbose)
    try:
        choice = Choice.of(without, actions)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if jobs > 1 and (verbose or events):
        raise click.UsageError(
            "--verbose and --events tell of one run after another: leave --jobs away"
        )
    numbers = range(seed, seed + seeds)
    runs = [Run(number, minutes, regions, choice, first) for number in numbers]
    smaller = not (no_minimise or first)
    if jobs > 1:
        played = side_by_side(runs, jobs, smaller=smaller)
    else:
        say = click.echo if verbose else None
        played = (play_and_print(run, say, events, smaller=smaller) for run in runs)
    failed = [number for number, sound in zip(numbers, played, strict=True) if not sound]
    if seeds > 1:
        click.echo(f"{seeds - len(failed)} of {seeds} seeds without violations; others: {failed}")
    sys.exit(1 if failed else 0)


class _SimulatedTimes(logging.Formatter):
    """Stamps what is logged with the loop's time."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        try:
            at_s = asyncio.get_running_loop().time()
        except RuntimeError:
            at_s = 0.0
        return f"{at_s:8.2f}    {record.levelname} {record.name}: {super().format(record)}"


def _log(*, verbose: bool) -> None:
    if not verbose:
        logging.disable(logging.CRITICAL)
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_SimulatedTimes("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


if __name__ == "__main__":
    main()
