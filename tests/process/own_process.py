"""Runs a test's clients in a process of their own.

librdkafka 2.16 now and then aborts its own process ("double free or corruption") when a broker dies under a
transactional producer. An end by a signal is the client library's and begins the run anew; any other end is
the verdict.
"""

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

LIVES_MAX: Final = 3
TIMEOUT_S: Final = 400


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
            cwd=Path(__file__).parents[2], env=environment,
        )  # fmt: skip
        print(done.stdout[-4000:], done.stderr[-8000:])
        code = done.returncode
        if code >= 0:
            break
        print(f"librdkafka ended its process by signal {-code}")
    assert code == 0
