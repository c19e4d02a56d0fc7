"""kill -9 of a node under load, six times; `tests.process.kill_nine` is the run, for any number of kills."""

from pathlib import Path

import pytest

from tests.process.own_process import run_until_no_signal

pytestmark = [pytest.mark.process, pytest.mark.slow]
KILLS = 6


def test_nothing_acknowledged_is_lost_by_kill_nine(tmp_path: Path) -> None:
    run_until_no_signal(
        lambda life: ["-m", "tests.process.kill_nine", str(KILLS), "9", str(tmp_path / str(life))]
    )
