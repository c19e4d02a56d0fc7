"""When a mirror waits for the whole cut, for how long, and what it says meanwhile; time is moved by hand."""

import logging
from dataclasses import dataclass, field

import pytest

from geo_replicator.lineage import LogKey
from idempotency.decision import DecisionId
from idempotency.record_batch import ControlType
from region_broker.partitions.parts.sight import Isolation
from region_broker.region.mirror.mirror_view import MirrorView
from region_broker.wire.batches import Origin
from tests.fixtures.node_logs import TOPIC_ID, Fixture, ManualClock, append_marker, batch, fixture

TWO_MINUTES_MS = 120_000
ALL = (LogKey(TOPIC_ID, 0), LogKey(TOPIC_ID, 1))


@dataclass
class Mirror:
    """Two partitions of a mirror and their view; a transaction over both has one of its two markers.

    partition 0: data at 0, COMMIT at 1. partition 1: data at 0, the marker is still to come.
    """

    wait_ms: int = TWO_MINUTES_MS
    clock: ManualClock = field(default_factory=ManualClock)
    fixture: Fixture = field(default_factory=lambda: fixture(partition_count=2))

    def __post_init__(self) -> None:
        self.view = MirrorView(self.fixture.table, self.clock, self.wait_ms)
        for partition in self.fixture.partitions:
            partition.become_mirror()
        self.write(producer_id=7)
        self.mark(0)

    def write(self, producer_id: int) -> None:
        """Write the data of a transaction to both, as the primary would."""
        for partition in self.fixture.partitions:
            partition.sight.is_leader = True
            partition.writer.append(batch(origin=Origin(producer_id, 0, 0, transactional=True)))
            partition.sight.is_leader = False

    def mark(self, number: int, producer_id: int = 7, serial: int = 1) -> None:
        """Write a COMMIT marker."""
        partition = self.fixture.partitions[number]
        partition.sight.is_leader = True
        append_marker(
            partition,
            producer_id=producer_id,
            producer_epoch=0,
            control_type=ControlType.COMMIT,
            coordinator_epoch=1,
            decision=DecisionId(0, 1, serial, serial),
            timestamp_ms=1_000_000,
        )
        partition.sight.is_leader = False

    def show(self) -> int:
        """Show a tidemark at the ends of both logs."""
        self.fixture.sync()
        ends = [partition.log_end_offset for partition in self.fixture.partitions]
        return self.view.show(dict(zip(ALL, ends, strict=True)))

    @property
    def shown(self) -> list[int]:
        """What read-committed readers may read up to."""
        return [p.sight.readable_end(Isolation.READ_COMMITTED) for p in self.fixture.partitions]


def test_a_log_waits_for_the_other_half_and_is_asked_again() -> None:
    mirror = Mirror()
    again_ms = mirror.show()
    assert mirror.shown == [0, 0]
    assert mirror.fixture.partitions[0].sight.readable_end(Isolation.READ_UNCOMMITTED) == 2
    assert again_ms > 0
    assert mirror.view.status() == {"logs": 1, "ms": 0, "splits": 0}
    mirror.mark(1)
    mirror.clock.pass_ms(again_ms)
    assert mirror.show() == 0
    assert mirror.shown == [2, 2]
    assert mirror.view.status() == {"logs": 0, "ms": 0, "splits": 0}


def test_INV_MV2_after_the_wait_each_log_is_shown_by_itself_and_counted() -> None:
    mirror = Mirror()
    mirror.show()
    mirror.clock.pass_ms(TWO_MINUTES_MS - 1)
    mirror.show()
    assert mirror.shown == [0, 0]
    assert mirror.view.status() == {"logs": 1, "ms": TWO_MINUTES_MS - 1, "splits": 0}
    mirror.clock.pass_ms(1)
    mirror.show()
    # 1 has an open transaction: as in Kafka nobody reads past it.
    assert mirror.shown == [2, 0]
    assert mirror.view.status()["splits"] == 1


def test_INV_MV2_the_wait_begins_anew_with_each_step_forward() -> None:
    mirror = Mirror()
    mirror.show()
    mirror.clock.pass_ms(TWO_MINUTES_MS - 1)
    mirror.mark(1)
    mirror.write(producer_id=8)
    mirror.mark(0, producer_id=8, serial=2)
    mirror.show()
    assert mirror.shown == [2, 2]
    mirror.clock.pass_ms(TWO_MINUTES_MS - 1)
    mirror.show()
    assert mirror.shown == [2, 2]
    assert mirror.view.status() == {"logs": 1, "ms": TWO_MINUTES_MS - 1, "splits": 0}
    mirror.clock.pass_ms(1)
    mirror.show()
    assert mirror.shown == [4, 2]


def test_INV_MV2_zero_never_waits() -> None:
    mirror = Mirror(wait_ms=0)
    mirror.show()
    assert mirror.shown == [2, 0]
    assert mirror.view.status()["splits"] == 1


def test_INV_MV2_below_zero_waits_for_ever() -> None:
    mirror = Mirror(wait_ms=-1)
    mirror.show()
    mirror.clock.pass_ms(365 * 24 * 3_600_000)
    mirror.show()
    assert mirror.shown == [0, 0]
    assert mirror.view.status()["splits"] == 0


def test_INV_MV2_a_warning_says_so_once_for_each_standstill(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mirror = Mirror()
    with caplog.at_level(logging.WARNING, "tidemark.mirror"):
        mirror.show()
        mirror.clock.pass_ms(9_999)
        mirror.show()
        assert caplog.records == []
        mirror.clock.pass_ms(1)
        mirror.show()
        mirror.show()
        assert len(caplog.records) == 1
        assert "1 logs stand still for read-committed readers since 10 s" in caplog.text
        assert "mirror_whole_wait_ms" in caplog.text
        mirror.mark(1)
        mirror.show()
        mirror.write(producer_id=8)
        mirror.mark(0, producer_id=8, serial=2)
        mirror.show()
        assert len(caplog.records) == 1
        mirror.clock.pass_ms(10_000)
        mirror.show()
        assert len(caplog.records) == 2


def test_INV_MV3_looking_at_many_transactions_is_followed_by_a_rest() -> None:
    mirror = Mirror()
    count = 200  # of which each has a half here, and nobody its other half: 3 ms at 64 a ms
    for producer_id in range(100, 100 + count):
        mirror.write(producer_id)
        mirror.mark(0, producer_id, serial=producer_id)
    mirror.show()
    mirror.mark(1)
    mirror.clock.pass_ms(2)
    rest_ms = mirror.show()
    # What it takes no search to show is shown at once: D, to those who read everything.
    end = mirror.fixture.partitions[1].log_end_offset
    assert mirror.fixture.partitions[1].sight.readable_end(Isolation.READ_UNCOMMITTED) == end
    assert mirror.shown == [0, 0]
    # 201 committed halves and 201 open ones were looked at.
    assert rest_ms == 402 // 64 - 2
    mirror.clock.pass_ms(rest_ms - 1)
    assert mirror.show() == 1
    assert mirror.shown == [0, 0]
    mirror.clock.pass_ms(1)
    mirror.show()
    assert mirror.shown == [2, 1]


def test_INV_MV3_few_transactions_are_looked_at_without_a_rest() -> None:
    mirror = Mirror()
    mirror.show()
    mirror.mark(1)
    mirror.show()
    assert mirror.shown == [2, 2]
