"""The main rows of docs/FAULTS.md about folders, with real processes, before and after failovers."""

from pathlib import Path

import pytest

from tests.process.folder_faults import MAIN, play

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.own_process]


def test_T32_T33_T36_folders_that_are_empty_old_exchanged_or_half(tmp_path: Path) -> None:
    play(tmp_path, MAIN)
