"""Two random sequences of faults and orders over real regions; `python -m chaos.shuffle` plays more."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.parametrize(("seed", "regions"), [(59, 2), (203, 3)])
def test_nothing_that_clients_saw_disappears_without_an_operators_word(
    tmp_path: Path, seed: int, regions: int
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "chaos.shuffle", "--seed", str(seed), "--regions", str(regions),
         "--folder", str(tmp_path), "--keep"],
        capture_output=True, text=True, check=False, timeout=400, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
