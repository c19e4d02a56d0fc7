"""Runs of the simulation, told in lines: one after another, or side by side in processes."""

import contextlib
import io
import logging
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import click

from tests.simulation.swarm.minimise import Minimiser, Run


def side_by_side(runs: Iterable[Run], jobs: int, *, smaller: bool) -> Iterator[bool]:
    """Play runs in processes of their own, and yield in their order whether nothing was wrong.

    They are forks: what a life imports costs two seconds of the processor, and is imported here already.
    """
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("fork")) as processes:
        for sound, told in processes.map(partial(_told, smaller=smaller), runs):
            click.echo(told, nl=False)
            yield sound


def _told(run: Run, *, smaller: bool) -> tuple[bool, str]:
    """Play one seed; return whether nothing was wrong, and what is to be printed."""
    logging.disable(logging.CRITICAL)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        sound = play_and_print(run, None, None, smaller=smaller)
    return sound, told.getvalue()


def play_and_print(
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
