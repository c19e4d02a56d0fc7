"""When a mirror waits for the whole cut, for how long, what it says meanwhile, and what it shows again after a start."""

import logging
from dataclasses import dataclass, field

import pytest

from geo_replicator.lineage import LogKey
from geo_replicator.whole_cut import NO_ROUND
from geo_replicator.whole_ends import AS_FORGOTTEN, NOTHING_WHOLE, Unlisted, WholeEnds
from idempotency.decision import DecisionId
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, Round, SequenceNumber
from idempotency.record_batch import ControlType
from region_broker.log.log_config import NodeLogConfig
from region_broker.partitions.parts.retention import Due
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin
from region_broker.region.mirror.mirror_view import MirrorView
from tests.fixtures.node_logs import (
    TOPIC_ID,
    Fixture,
    ManualClock,
    Topic,
    append_marker,
    batch,
    fixture,
)
from tests.simulation.disk import SimulatedDisk

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
    durable: WholeEnds = AS_FORGOTTEN
    has_half: bool = True
    before: Round = NO_ROUND
    """The round of the newest tidemark that ends each log at or below any offset."""

    def __post_init__(self) -> None:
        self.view = MirrorView(self.fixture.table, self.clock, self.wait_ms, lambda *_: self.before)
        for partition in self.fixture.partitions:
            partition.become_mirror()
        if self.has_half:
            self.write(producer_id=7)
            self.mark(0)

    def write(self, producer_id: int, *numbers: int, sequence: int = 0) -> None:
        """Write the data of a transaction to these partitions, or to both, as the primary would."""
        for number in numbers or (0, 1):
            partition = self.fixture.partitions[number]
            partition.sight.is_leader = True
            origin = Origin(
                ProducerId(producer_id),
                ProducerEpoch(0),
                SequenceNumber(sequence),
                transactional=True,
            )
            partition.writer.append(batch(origin=origin))
            partition.sight.is_leader = False

    def mark(
        self,
        number: int,
        producer_id: int = 7,
        serial: int = 1,
        kind: ControlType = ControlType.COMMIT,
    ) -> None:
        """Write a marker."""
        partition = self.fixture.partitions[number]
        partition.sight.is_leader = True
        append_marker(
            partition,
            producer_id=producer_id,
            producer_epoch=0,
            control_type=kind,
            coordinator_epoch=1,
            decision=DecisionId(0, LeaderEpoch(1), serial, Round(serial)),
            timestamp_ms=1_000_000,
        )
        partition.sight.is_leader = False

    def show(self) -> int:
        """Show a tidemark at the ends of both logs."""
        self.fixture.sync()
        ends = [partition.log_end_offset for partition in self.fixture.partitions]
        view = self.view.view(dict(zip(ALL, ends, strict=True)))
        self.durable = view.whole
        self.view.show(view)
        return view.again_ms

    def start_again(self, *cuts: int) -> None:
        """Lose all that the process knew of what it showed, but what is durable of it; D is `cuts`, else the ends."""
        for partition in self.fixture.partitions:
            partition.rewind_cut(0)
        self.view = MirrorView(self.fixture.table, self.clock, self.wait_ms, lambda *_: self.before)
        ends = cuts or [partition.log_end_offset for partition in self.fixture.partitions]
        self.view.show_again(dict(zip(ALL, ends, strict=True)), self.durable)

    def act(self, *numbers: int) -> None:
        """Act here, and maintain these logs, or both: what is completed is forgotten."""
        self.fixture.sync()
        for number in numbers or (0, 1):
            partition = self.fixture.partitions[number]
            partition.sight.is_leader = True
            partition.retention.maintain(
                Due(now_ms=0, monotonic_ms=0, producer_expiration_ms=1 << 40)
            )
            partition.sight.is_leader = False

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


# Holds INV-MV4 and INV-WE1.
def test_T16_a_start_hides_no_transaction_again_for_a_later_one_of_its_producer() -> None:
    """Transactions v1: what is open in 1 may be a part of what is committed in 0, for all that the logs say."""
    mirror = Mirror()
    mirror.mark(1)
    mirror.write(8, 0)
    mirror.mark(0, 8, serial=2)
    mirror.show()
    assert mirror.shown == [4, 2]
    mirror.write(8, 1)
    mirror.show()
    assert mirror.shown == [4, 2]
    mirror.start_again()
    assert mirror.shown == [4, 2]
    mirror.show()
    assert mirror.shown == [4, 2]


# Holds INV-MV4.
def test_T16_a_start_shows_again_what_was_shown_by_halves_after_the_wait() -> None:
    mirror = Mirror()
    mirror.show()
    mirror.clock.pass_ms(TWO_MINUTES_MS)
    mirror.show()
    assert mirror.shown == [2, 0]
    mirror.start_again()
    assert mirror.shown == [2, 0]
    mirror.show()
    assert mirror.shown == [2, 0]


def test_INV_MV4_a_start_shows_nothing_that_is_not_durable_yet() -> None:
    mirror = Mirror()
    mirror.show()
    mirror.mark(1)
    mirror.start_again()
    assert mirror.shown == [0, 0]
    mirror.show()
    assert mirror.shown == [2, 2]


def test_INV_MV4_a_start_shows_again_what_was_shown_before_a_rest() -> None:
    mirror = Mirror()
    mirror.mark(1)
    mirror.show()
    for producer_id in range(100, 200):
        mirror.write(producer_id)
        mirror.mark(0, producer_id, serial=producer_id)
    assert mirror.show() > 0
    mirror.show()  # in the rest after so many: a tidemark, and no search
    mirror.start_again()
    assert mirror.shown == [2, 2]


def test_internal_topics_take_no_part_in_the_whole_cut() -> None:
    """Groups and transactions are asked of the primary; the other half would hold the offsets of 0 back."""
    offsets = Topic(partition_count=2, name="__consumer_offsets", internal=True)
    mirror = Mirror(
        fixture=Fixture(SimulatedDisk(), offsets, NodeLogConfig(journal_bytes=1 << 16), leads=True)
    )
    for _ in range(2):
        assert mirror.show() == 0
        assert mirror.shown == [2, 0]
        assert mirror.view.status()["logs"] == 0
        assert mirror.durable == WholeEnds(Unlisted.AT_CUT)
        for durable in (mirror.durable, NOTHING_WHOLE):
            mirror.durable = durable
            mirror.start_again()
            assert mirror.shown == [2, 0]


def returned() -> Mirror:
    """A region that acted, forgot, and mirrors: 7 is committed in both, in 1 behind 8, which is open there.

    partition 0: 7 at 0, COMMIT at 1. partition 1: 8 at 0, 7 at 1, COMMIT at 2.
    """
    mirror = Mirror(durable=NOTHING_WHOLE, has_half=False)
    mirror.write(8, 1)
    mirror.write(7)
    mirror.mark(0)
    mirror.mark(1)
    mirror.act()
    return mirror


# Holds INV-WC4.
def test_T17_a_region_that_acted_returns_and_shows_no_half_of_what_it_forgot() -> None:
    mirror = returned()
    mirror.start_again()
    mirror.show()
    assert mirror.shown == [0, 0], "7 lies behind the open 8 in partition 1"
    mirror.write(9)
    mirror.mark(0, 9, serial=3)
    mirror.show()
    assert mirror.shown == [0, 0]
    mirror.mark(1, 8, serial=2, kind=ControlType.ABORT)
    mirror.show()
    # 9, whose marker is still to come in partition 1, began after it had returned: it holds back its own data only.
    assert mirror.shown == [2, 3]
    mirror.mark(1, 9, serial=3)
    mirror.show()
    assert mirror.shown == [4, 6]


def test_INV_MV5_a_region_that_acts_again_forgets_again() -> None:
    """What covered the forgotten of its first term says nothing of the second."""
    mirror = returned()
    mirror.start_again()
    mirror.mark(1, 8, serial=2, kind=ControlType.ABORT)
    mirror.show()
    mirror.show()
    assert mirror.shown == [2, 4]
    mirror.write(10, 1)
    mirror.write(11)
    mirror.mark(0, 11, serial=4)
    mirror.mark(1, 11, serial=4)
    mirror.act()
    for partition in mirror.fixture.partitions:
        partition.rewind_cut(0)
    ends = [partition.log_end_offset for partition in mirror.fixture.partitions]
    mirror.view.show_again(dict(zip(ALL, ends, strict=True)), NOTHING_WHOLE)
    mirror.show()
    assert mirror.shown == [0, 0], "11 lies behind the open 10 in partition 1"


def test_INV_MV5_nothing_forgotten_is_shown_before_a_tidemark_covers_it() -> None:
    """The disk lost the end of what was shown: a lower tidemark counts, and the primary sends the rest again."""
    mirror = returned()
    mirror.mark(1, 8, serial=2, kind=ControlType.ABORT)
    mirror.act()
    mirror.start_again(2, 2)
    mirror.view.show(mirror.view.view({}))
    assert mirror.shown == [0, 0]
    mirror.show()
    assert mirror.shown == [2, 4]


def test_INV_MV5_what_was_forgotten_is_held_against_the_tidemark_that_covers_it() -> None:
    """7 is committed in 0, and forgotten there; in 1 its data came again, and its marker has not yet."""
    mirror = Mirror(durable=NOTHING_WHOLE)
    mirror.act()
    mirror.start_again(1, 0)
    mirror.view.show(mirror.view.view({}))
    mirror.show()
    assert mirror.shown == [0, 0]
    mirror.mark(1)
    mirror.show()
    assert mirror.shown == [2, 2]


def test_T16_a_region_that_acted_shows_at_least_what_it_had_shown_whole_before() -> None:
    mirror = returned()
    mirror.durable = WholeEnds(Unlisted.AT_CUT, {ALL[0]: 1, ALL[1]: 0})
    mirror.start_again()
    mirror.show()
    assert mirror.shown == [1, 0]


def test_T17_positions_of_a_base_that_is_not_held_yet_are_no_cut() -> None:
    """A mirror was behind the base that it is cut to: what it copied of 0 ends there, 1 has come less far."""
    mirror = Mirror(has_half=False)
    mirror.write(7, 0)
    mirror.mark(0)
    mirror.fixture.sync()
    mirror.fixture.partitions[0].rewind_cut(2)
    mirror.view.show_again(dict.fromkeys(ALL, 0), NOTHING_WHOLE)
    mirror.view.show(mirror.view.view({}))
    assert mirror.shown[0] == 0, "the other half of 7 is not copied yet"


def test_INV_WE1_the_folder_of_an_older_version_shows_what_it_forgot_as_a_mirror() -> None:
    mirror = Mirror()
    mirror.mark(1)
    mirror.show()
    for partition in mirror.fixture.partitions:
        partition.retention.maintain(Due(now_ms=0, monotonic_ms=0, producer_expiration_ms=1 << 40))
    mirror.write(8)
    mirror.durable = AS_FORGOTTEN
    mirror.start_again()
    assert mirror.shown == [2, 2]


def test_INV_MV7_where_a_stopped_log_was_shown_whole_is_known_until_another_is_shown_more() -> None:
    mirror = Mirror()
    mirror.mark(1)
    mirror.write(8, sequence=0)
    mirror.show()
    assert mirror.durable == WholeEnds(Unlisted.AT_CUT, dict.fromkeys(ALL, 2))
    mirror.fixture.partitions[0].log.fail("its disk fails")
    view = mirror.view.view({})
    assert view.whole == WholeEnds(Unlisted.AT_CUT, dict.fromkeys(ALL, 2))
    mirror.view.show(view)
    mirror.mark(1, producer_id=8, serial=2, kind=ControlType.ABORT)
    mirror.fixture.sync()
    view = mirror.view.view({ALL[1]: 4})
    assert (view.ends[ALL[1]], view.whole.listed) == (4, {ALL[0]: 0})
    mirror.view.show(view)
    assert mirror.view.view({}).whole.listed == {ALL[0]: 0}, "it stays so"


def test_INV_MV6_a_view_that_was_taken_back_does_not_rest() -> None:
    """Within the rest nobody would look, and readers would be told that the logs end at their beginning."""
    mirror = Mirror(has_half=False)
    for number in range(128):
        mirror.write(100 + number)
        mirror.mark(0, 100 + number, number + 1)
        mirror.mark(1, 100 + number, number + 1)
    mirror.show()
    assert mirror.shown == [256, 256]
    for partition in mirror.fixture.partitions:
        partition.rewind_cut(0, is_end=False)
    mirror.view.show_again(dict.fromkeys(ALL, 256), NOTHING_WHOLE)
    mirror.view.show(mirror.view.view({}))
    assert mirror.shown == [256, 256]


def test_INV_MV6_what_another_log_forgot_keeps_an_end_unknown() -> None:
    """A reader that had seen 7 in log 1 would be told that the log ends at its beginning (T16, seed 92827)."""
    mirror = Mirror()
    mirror.mark(1)
    mirror.show()
    assert mirror.shown == [2, 2]
    mirror.act(0)
    for partition in mirror.fixture.partitions:
        partition.rewind_cut(0, is_end=False)
    mirror.view = MirrorView(
        mirror.fixture.table, mirror.clock, mirror.wait_ms, lambda *_: NO_ROUND
    )
    mirror.view.show_again({ALL[0]: 1, ALL[1]: 2}, NOTHING_WHOLE)
    mirror.view.show(mirror.view.view({}))
    other = mirror.fixture.partitions[1].sight
    assert other.readable_end(Isolation.READ_COMMITTED) == 0
    assert not other.knows_end(Isolation.READ_COMMITTED)
    assert other.knows_end(Isolation.READ_UNCOMMITTED)
    mirror.show()
    assert mirror.shown == [2, 2]
    assert other.knows_end(Isolation.READ_COMMITTED)


def test_INV_WC5_another_node_shows_no_less_while_the_next_transaction_of_a_producer_is_open() -> (
    None
):
    mirror = Mirror(has_half=False)
    mirror.write(7, 0)
    mirror.mark(0)
    mirror.show()
    mirror.write(7, 1)
    mirror.show()
    assert mirror.shown == [2, 0]
    mirror.durable, mirror.before = NOTHING_WHOLE, Round(2)  # it has a file of its own
    mirror.start_again()
    mirror.show()
    assert mirror.shown == [2, 0]
