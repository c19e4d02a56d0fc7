"""Runs a test's clients in a process of their own, and once more if a memory error of librdkafka ends it.

librdkafka 2.16 may free one text twice when a producer is dropped (see `region_broker.client.retirement`, which
avoids it). Only an end by SIGABRT or SIGSEGV begins the run anew, once, and every such end is shown at the end of the
test run with the Python stacks; any other end is the verdict.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

LIVES_MAX: Final = 2
MEMORY_ERRORS: Final = (-signal.SIGABRT, -signal.SIGSEGV)
TIMEOUT_S: Final = 400
# What each process said that ended so, for the summary of the test run.
aborted: Final[list[str]] = []


def run_in_own_process(module: str, folder: Path, *arguments: str) -> None:
    """Run ``python -m module FOLDER *arguments``, each life in a folder of its own."""
    run_until_no_signal(lambda life: ["-m", module, str(folder / str(life)), *arguments])


def run_until_no_signal(
    arguments: Callable[[int], Sequence[str]], environment: Mapping[str, str] | None = None
) -> None:
    """Run this Python with `arguments(life)`; fails unless it ends with 0."""
    code = -1
    for life in range(LIVES_MAX):
        done = subprocess.run(
            [sys.executable, *arguments(life)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            cwd=Path(__file__).parents[2],
            env={**(environment or os.environ), "PYTHONFAULTHANDLER": "1"},
        )  # fmt: skip
        print(done.stdout[-4000:], done.stderr[-8000:])
        code = done.returncode
        if code not in MEMORY_ERRORS:
            break
        name = signal.Signals(-code).name
        aborted.append(f"{name} in: {' '.join(arguments(life))}\n{done.stderr[-8000:]}")
    assert code == 0
