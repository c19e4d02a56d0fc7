"""What separates a held log from what a mirror has shown of it."""

from uuid import UUID

import pytest

from geo_replicator.history import HeldLog, HistoryDifference, LastBatch, ShownLog, difference_of
from geo_replicator.lineage import LogKey
from idempotency.identity import LeaderEpoch

KEY = LogKey(UUID(int=1), 0)
LAST = LastBatch(LeaderEpoch(9), 6, 0xABC)
SHOWN = ShownLog(KEY, cut_offset=8, end_offset=11, last=LAST)


@pytest.mark.parametrize(
    ("held", "agreed_end", "reason"),
    [
        (None, 0, "it is not there"),
        (HeldLog(0, 5, LastBatch(LeaderEpoch(9), 4, 1), epoch_end=5), 5, "it ends at 5"),
        (HeldLog(0, 5, LastBatch(LeaderEpoch(7), 4, 1), epoch_end=3), 3, "it ends at 5"),
        (HeldLog(0, 9, LastBatch(LeaderEpoch(9), 6, 0xABD), epoch_end=9), 6, "0x00000abd"),
        (HeldLog(0, 9, LastBatch(LeaderEpoch(12), 7, 1), epoch_end=7), 7, "leader epoch 12"),
    ],
)
def test_T33_a_difference_says_where_both_agree_what_was_shown_and_what_was_copied(
    held: HeldLog | None, agreed_end: int, reason: str
) -> None:
    found = difference_of(SHOWN, held)
    assert isinstance(found, HistoryDifference)
    assert (found.key, found.agreed_end, found.shown_end, found.copied_end) == (
        KEY, agreed_end, 8, 11,
    )  # fmt: skip
    assert reason in found.reason


@pytest.mark.parametrize(
    ("shown", "held"),
    [
        (SHOWN, HeldLog(0, 8, LAST)),
        (SHOWN, HeldLog(8, 9)),  # forgotten here
        (SHOWN, HeldLog(0, 9, readable=False)),
        (SHOWN, HeldLog(0, 9, whole_from=7)),  # cleaned here
        (ShownLog(KEY, 8, 8), HeldLog(0, 8, LAST)),
        (ShownLog(KEY, 0, 8, LAST), None),  # nothing was shown
    ],
)
def test_T33_nothing_separates_logs_that_agree_or_cannot_be_compared(
    shown: ShownLog, held: HeldLog | None
) -> None:
    assert difference_of(shown, held) is None
