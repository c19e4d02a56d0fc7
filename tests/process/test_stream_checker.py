"""The judge of streams finds a loss, a move, a repeat and a turn; and nothing in a sound stream."""

import pytest

from tests.process.stream import check_stream

ANSWERED = {0: {0: 0, 1: 1, 2: 3}}
SOUND = [(0, 0), (1, 1), (3, 2), (4, 3)]


def test_a_sound_stream_may_hold_what_was_not_answered() -> None:
    assert check_stream(ANSWERED, {0: SOUND}) == []


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([(0, 0), (3, 2)], "lost"),
        ([(0, 0), (2, 1), (3, 2)], "moved"),
        ([(0, 0), (1, 1), (2, 1), (3, 2)], "twice"),
        ([(0, 0), (1, 1), (3, 2), (4, 0)], "twice"),
        ([(0, 0), (1, 1), (3, 2), (4, 4), (5, 3)], "order"),
    ],
)
def test_each_fault_is_found(records: list[tuple[int, int]], expected: str) -> None:
    assert any(found.startswith(expected) for found in check_stream(ANSWERED, {0: records}))
