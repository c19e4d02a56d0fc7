"""Some rows of docs/FAULTS.md about whole folders, with real processes; `tests.process.folder_faults` plays all."""

from pathlib import Path
from typing import Final

import pytest

from tests.process.faults.cases import runs
from tests.process.faults.runner import play_all

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.own_process]

SAMPLE: Final = frozenset(
    {
        "empty-primary-before-up-failover",
        "older-primary-before-later-accept-loss",
        "no-logs-mirror-before-up-own-back",
    }
)


def test_T32_T33_T36_folders_that_are_empty_older_or_half(tmp_path: Path) -> None:
    chosen = [run for run in runs() if run.name in SAMPLE]
    assert len(chosen) == len(SAMPLE)
    assert not play_all(tmp_path, chosen)
