"""Runs of pytest in a process of their own, and how tests can end without a word.

INV-MU7  whoever ends the tool ends its tests, and takes its folder away
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TIME_OUT: Final = "a time-out"
CRASH: Final = "an end of the process"
ARGUMENTS: Final = (
    "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-m", "not process and not own_process and not spark",
    "-p", "tests.mutants.few_examples",
)  # fmt: skip


def run(
    root: Path, arguments: list[str], environment: Mapping[str, str], limit_s: float | None
) -> tuple[int, str] | None:
    """Return the exit code of a pytest and what it said; None where it took too long (INV-MU7)."""
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *ARGUMENTS, *arguments],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as running:
        try:
            output, _ = running.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
    return running.returncode, output
