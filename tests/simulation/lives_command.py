"""The command that plays lives of regions of several nodes by seed: one for each kind of life.

Not here: the lives (`cluster_swarm`, `regions_swarm`).
"""

import contextlib
import gc
import logging
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

import click

from tests.simulation.__main__ import _log
from tests.simulation.node_faults.life import Outcome


def command(name: str, play: Callable[..., Outcome], faults: type[StrEnum]) -> click.Command:
    """Return ``python -m tests.simulation.NAME``; `play` plays the life of a seed."""

    @click.command(
        epilog=f"Example: python -m tests.simulation.{name} --seed 7 --minutes 1 --verbose"
    )
    @click.option("--seed", default=1, show_default=True, help="The first life.")
    @click.option("--seeds", default=1, show_default=True, help="How many.")
    @click.option("--minutes", default=0.5, show_default=True, help="Simulated minutes of trouble.")
    @click.option("--without", default="", help="Faults to leave out, by commas.")
    @click.option("--first", type=int, help="Only so many events: to compare traces.")
    @click.option("--verbose", is_flag=True, help="Say what happens, and what the nodes log.")
    @click.option(
        "--events", type=click.Path(path_type=Path), help="Write every event, a line each."
    )
    def main(
        *,
        seed: int,
        seeds: int,
        minutes: float,
        without: str,
        first: int | None,
        verbose: bool,
        events: Path | None,
    ) -> None:
        """Play lives, and say what is wrong in each."""
        left_out = frozenset(filter(None, without.split(",")))
        if unknown := left_out - {each.value for each in faults}:
            raise click.UsageError(
                f"no such faults: {sorted(unknown)}; there are {', '.join(faults)}"
            )
        _log(verbose=verbose)
        failed = []
        for number in range(seed, seed + seeds):
            began_s = time.monotonic()
            with contextlib.ExitStack() as open_files:
                write = None if events is None else open_files.enter_context(events.open("w")).write
                outcome = play(
                    number, minutes=minutes, without=left_out, say=click.echo if verbose else None, write=write, events_max=first
                )  # fmt: skip
            gc.unfreeze()  # what is left of this life is to be found when the next one begins
            for violation in outcome.violations:
                click.echo(f"violation: {violation}")
            click.echo(
                f"seed {number}: {outcome.simulated_s:.0f} simulated s in {time.monotonic() - began_s:.1f} s;"
                f" {dict(sorted(outcome.counted.items()))}"
            )
            click.echo(
                f"trace {outcome.trace} events {outcome.events} violations {len(outcome.violations)}"
            )
            if outcome.violations:
                failed.append(number)
                chosen = f" --without {without}" if without else ""
                click.echo(
                    f"again: python -m tests.simulation.{name} --seed {number} --minutes {minutes}{chosen} --verbose"
                )
        if seeds > 1:
            click.echo(
                f"{seeds - len(failed)} of {seeds} seeds without violations; others: {failed}"
            )
        logging.disable(logging.NOTSET)
        sys.exit(1 if failed else 0)

    return main
