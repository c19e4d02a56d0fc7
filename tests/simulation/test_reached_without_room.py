"""A mirror whose disk is full for a moment goes on by itself when there is room."""

import errno
from pathlib import Path

import pytest

from tests.simulation.region_pair import region_pair
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_T16_a_mirror_that_had_no_room_for_a_moment_reaches_tidemarks_again(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        failed = 0

        def full(operation: str, path: Path) -> None:
            nonlocal failed
            if path.name.startswith("reached") and operation in {"pwrite", "open"}:
                failed += 1
                raise OSError(errno.ENOSPC, "no space left on device")

        pair.us.disk.fault = full
        await write(pair.eu, b"four")
        await pair.until(lambda: failed > 0, "the fact cannot be written")
        pair.us.disk.fault = None
        await write(pair.eu, b"five")
        await pair.until(lambda: shown(pair.us) == 5, "it shows all")
