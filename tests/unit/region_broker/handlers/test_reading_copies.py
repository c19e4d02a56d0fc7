"""What a reader is told that asks a follower beside what it has (INV-HRD3)."""

from typing import Any, NoReturn, cast

import pytest
from kio.schema.errors import ErrorCode

from idempotency.identity import LeaderEpoch
from region_broker.handlers.fetch.reading import Reading
from region_broker.log.failures import CorruptRange, LogError, SealedRecords
from region_broker.partitions.fetch_sessions import Wanted
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.identity import ANONYMOUS

START, HIGH_WATERMARK = 5, 9


class Asked(Exception):
    """The copy is read."""


class Readers:
    """Hears that a node is to serve nobody."""

    def __init__(self) -> None:
        self.readers = self.counts = self
        self.copy_bytes = 0
        self.stopped: list[tuple[object, int, str]] = []

    def stop_serving(self, key: object, offset: int, name: str) -> None:
        self.stopped.append((key, offset, name))


@pytest.mark.parametrize("refusal", [CorruptRange(5, "damage"), SealedRecords("no key")])
def test_INV_HRD4_what_a_follower_cannot_read_the_leader_is_asked_for(refusal: LogError) -> None:
    class Unreadable(Copy):
        key, tp = "the log", "orders-0"

        def fetch(self, *_: object, **_more: object) -> NoReturn:
            raise refusal

    services = Readers()
    item = Wanted(cast("Any", "orders"), 0, LeaderEpoch(-1), START, 100)
    reading = Reading(
        cast("Any", services), (item,), Isolation.READ_UNCOMMITTED, bytes_min=1, bytes_max=100, wait_ms_max=0, identity=ANONYMOUS
    )  # fmt: skip
    row = reading._row_of_copy(cast("Any", Unreadable()), item, 100, first=True, wait=True)
    assert row.error_code == ErrorCode.not_leader_or_follower
    assert services.stopped == [("the log", START, "orders-0")]


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
