"""Slow, idle and greedy clients against a real process: a few seconds of `tests.process.greedy`."""

from pathlib import Path

import pytest

from tests.process.greedy import play

pytestmark = [pytest.mark.process, pytest.mark.slow]


async def test_a_good_client_is_served_among_greedy_ones_and_nothing_is_left(
    tmp_path: Path,
) -> None:
    print(await play(tmp_path, seconds=3, seed=5))
