"""``python -m chaos.shuffle --seed N --sequences M --regions 2``: random sequences, each judged from what clients saw.

Sequence i of seed N is the only one of seed N + i: one command replays it. Each sequence runs in a process of its own
and ends in time; what ends by a memory error of librdkafka (see docs/TESTING.md) is played once more. The folders of a
sequence that failed stay, with what the nodes logged; of others only with --keep.
"""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import click

from chaos.shuffle.plan import draw
from chaos.shuffle.play import play
from region_broker.workbench.cluster_plan import REGION_NAMES

SEQUENCE_S: Final = 300.0
_MEMORY_ERRORS: Final = (-signal.SIGABRT, -signal.SIGSEGV)


@click.command()
@click.option("--seed", required=True, type=int, help="What is drawn from.")
@click.option("--sequences", default=1, show_default=True, help="How many.")
@click.option("--regions", default=2, show_default=True, type=click.IntRange(2, 8))
@click.option(
    "--folder", type=click.Path(path_type=Path), help="Where regions live; default: temporary."
)
@click.option("--keep", is_flag=True, help="Leave the folders of sound sequences, too.")
@click.option("--in-this-process", is_flag=True, hidden=True)
def main(
    seed: int,
    sequences: int,
    regions: int,
    folder: Path | None,
    *,
    keep: bool,
    in_this_process: bool,
) -> None:
    """Play random sequences of faults and orders, and judge them from what clients saw."""
    root = folder or Path(tempfile.mkdtemp(prefix="tidemark-shuffle-"))
    if in_this_process:
        sys.exit(min(1, len(play(seed, regions, root))))
    failed = _run_all(range(seed, seed + sequences), regions, root, keep=keep)
    if not failed and not keep:
        with contextlib.suppress(OSError):
            root.rmdir()
    click.echo(
        f"{sequences - len(failed)} of {sequences} sequences are sound; failed seeds: {failed}"
    )
    sys.exit(1 if failed else 0)


def _run_all(seeds: Iterable[int], regions: int, root: Path, *, keep: bool) -> list[int]:
    """Return the seeds that failed."""
    failed = []
    for number in seeds:
        place = root / f"{number}"
        began_s = time.monotonic()
        sound = _run(number, regions, place)
        click.echo(
            f"seed {number}: {'sound' if sound else 'FAILED'}, {time.monotonic() - began_s:.0f} s"
        )
        if not sound:
            failed.append(number)
            click.echo(f"  folders: {place}")
            click.echo(
                f"  again:   {sys.executable} -m chaos.shuffle --seed {number} --regions {regions}"
            )
        elif not keep:
            shutil.rmtree(place, ignore_errors=True)
    return failed


def _run(seed: int, regions: int, folder: Path) -> bool:
    """Return whether the sequence is sound; its words go to standard output."""
    click.echo(
        f"seed {seed}, {regions} regions: "
        + "; ".join(map(str, draw(seed, REGION_NAMES[:regions])))
    )
    command = [sys.executable, "-m", "chaos.shuffle", "--seed", str(seed), "--regions", str(regions),
               "--folder", str(folder), "--in-this-process"]  # fmt: skip
    code = 1
    for _ in range(2):
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
        try:
            code = subprocess.run(command, check=False, timeout=SEQUENCE_S).returncode
        except subprocess.TimeoutExpired:
            click.echo(f"  not over after {SEQUENCE_S:.0f} s")
            return False
        if code not in _MEMORY_ERRORS:
            break
        click.echo(f"  ended by {signal.Signals(-code).name}: librdkafka, see docs/TESTING.md")
    return code == 0


if __name__ == "__main__":
    main()
