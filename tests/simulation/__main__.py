"""``python -m tests.simulation --seed N``: whole regions in one process, on simulated time, disk, network and chance.

The last line is ``trace <hash> events <n> violations <n>``; the exit code is 0 only without violations. The same seed gives
the same trace, on any machine and in any process. A run that fails is played again with less and less of it, and
the smallest that still fails is printed as a command.
"""

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
from typing_extensions import override

from tests.simulation.swarm.minimise import Minimiser, Run
from tests.simulation.swarm.plan import Choice


@click.command()
@click.option("--seed", required=True, type=int, help="What everything is drawn from.")
@click.option("--seeds", default=1, show_default=True, help="How many seeds, from that one on.")
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
    seed: int, seeds: int, minutes: float, regions: int, without: str, actions: str | None,
    *, first: int | None, no_minimise: bool, verbose: bool, events: Path | None,
) -> None:  # fmt: skip
    """Play the lives of some seeds.

    Example: python -m tests.simulation --seed 17 --minutes 2 --verbose
    """
    _log(verbose=verbose)
    try:
        choice = Choice.of(without, actions)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    say = click.echo if verbose else None
    failed = [
        number
        for number in range(seed, seed + seeds)
        if not _played(
            Run(number, minutes, regions, choice, first),
            say,
            events,
            smaller=not (no_minimise or first),
        )
    ]
    if seeds > 1:
        click.echo(f"{seeds - len(failed)} of {seeds} seeds without violations; others: {failed}")
    sys.exit(1 if failed else 0)


def _played(
    run: Run, say: Callable[[str], None] | None, events: Path | None, *, smaller: bool
) -> bool:
    """Play one seed, print what it came to, and return whether nothing was wrong."""
    began_s = time.monotonic()
    with contextlib.ExitStack() as open_files:
        write = None if events is None else open_files.enter_context(events.open("w")).write
        outcome = run.play(say=say, write=write)
    took_s = time.monotonic() - began_s
    for violation in outcome.violations:
        click.echo(f"violation: {violation}")
    click.echo(
        f"seed {run.seed}: {outcome.simulated_s:.0f} simulated s in {took_s:.1f} s,"
        f" {outcome.simulated_s / took_s:.0f} times as fast as time"
    )
    if outcome.violations:
        click.echo(f"again: {run} --verbose")
        if smaller:
            click.echo(f"smallest: {Minimiser(run, outcome, say=click.echo).smallest()}")
    click.echo(
        f"trace {outcome.trace} events {outcome.events} violations {len(outcome.violations)}"
    )
    return not outcome.violations


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
