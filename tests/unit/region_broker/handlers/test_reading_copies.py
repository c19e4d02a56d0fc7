"""What a reader is told that asks a follower beside what it has (INV-HRD3)."""

from typing import Any, NoReturn, cast

import pytest
from kio.schema.errors import ErrorCode

from idempotency.identity import LeaderEpoch
from region_broker.handlers.fetch.reading import Reading
from region_broker.partitions.fetch_sessions import Wanted
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.identity import ANONYMOUS

START, HIGH_WATERMARK = 5, 9


class Asked(Exception):
    """The copy is read."""


class Copy:
    """A follower's copy, which has offsets 5 to 8."""

    log_start_offset, high_watermark = START, HIGH_WATERMARK

    def __init__(self) -> None:
        self.reader = self

    def fetch(self, *_: object, **_more: object) -> NoReturn:
        raise Asked


def told(offset: int) -> int:
    item = Wanted(cast("Any", "orders"), 0, LeaderEpoch(-1), offset, 100)
    reading = Reading(
        cast("Any", None), (item,), Isolation.READ_UNCOMMITTED, bytes_min=1, bytes_max=100, wait_ms_max=0,
        identity=ANONYMOUS,
    )  # fmt: skip
    return reading._row_of_copy(cast("Any", Copy()), item, 100, first=True, wait=True).error_code


def test_INV_HRD3_below_its_start_the_leader_is_to_be_asked() -> None:
    """The leader may have it still, or says that it is gone: a follower's word would have the reader begin anew."""
    assert told(START - 1) == ErrorCode.not_leader_or_follower


def test_INV_HRD3_beyond_its_hw_it_is_not_there_yet() -> None:
    assert told(HIGH_WATERMARK + 1) == ErrorCode.offset_not_available


@pytest.mark.parametrize("offset", [START, HIGH_WATERMARK])
def test_INV_HRD3_from_its_start_up_to_its_hw_it_is_read(offset: int) -> None:
    with pytest.raises(Asked):
        told(offset)
