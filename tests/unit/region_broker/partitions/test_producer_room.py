"""How many producers the logs of a node may know (INV-PRR1, INV-PRR2), by made-up producer ids."""

from dataclasses import replace
from functools import partial

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.pieces import drained
from idempotency.record_batch import ControlType
from region_broker.partitions import upkeep
from region_broker.partitions.admission import AppendOutcome, AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.partitions.producer_room import FOUND_MS, IDLE_MS
from region_broker.records.batches import Origin
from region_broker.wire.cooperative_yield import CooperativeYield
from tests.fixtures.node_logs import Fixture, append_marker, batch, fixture

DAY_MS = 86_400_000


def room_for(partition_max: int, node_max: int = 1_000, *, partition_count: int = 1) -> Fixture:
    some = fixture(partition_count=partition_count)
    some.config = replace(
        some.config, partition_producers_max=partition_max, producers_max=node_max
    )
    some.close_and_reopen()
    return some


def sent(
    partition: Partition, producer_id: int, sequence: int = 0, *, transactional: bool = False
) -> AppendOutcome:
    origin = Origin(
        ProducerId(producer_id), ProducerEpoch(0), SequenceNumber(sequence),
        transactional=transactional,
    )  # fmt: skip
    return partition.writer.append(batch(origin=origin))


def ids_of(partition: Partition) -> set[int]:
    return set(partition.state.producer_table.ids())


def test_INV_PRR1_a_log_takes_no_more_producers_than_it_may_know_and_serves_those_it_knows() -> (
    None
):
    some = room_for(3)
    first = [sent(some.partition, n) for n in range(3)]
    assert [each.verdict for each in first] == [AppendVerdict.APPENDED] * 3
    end = some.partition.log_end_offset
    refused = sent(some.partition, 3)
    assert refused.verdict is AppendVerdict.TOO_MANY_PRODUCERS
    assert "partition_producers_max = 3" in refused.detail
    assert some.partition.log_end_offset == end
    assert ids_of(some.partition) == {0, 1, 2}
    assert sent(some.partition, 1, 1).verdict is AppendVerdict.APPENDED
    assert sent(some.partition, 1, 1).verdict is AppendVerdict.DUPLICATE
    assert some.partition.writer.append(batch()).verdict is AppendVerdict.APPENDED  # without an id


def test_INV_PRR1_made_up_ids_do_not_shut_out_transactions() -> None:
    some = room_for(2)
    for n in range(2):
        sent(some.partition, n)
    assert sent(some.partition, 7, transactional=True).verdict is AppendVerdict.APPENDED


def test_INV_PRR1_a_full_node_refuses_only_where_there_are_more_than_their_share() -> None:
    some = room_for(100, 10, partition_count=2)
    busy, quiet = some.partitions
    verdicts = [sent(busy, n).verdict for n in range(11)]
    assert verdicts == [AppendVerdict.APPENDED] * 10 + [AppendVerdict.TOO_MANY_PRODUCERS]
    assert "producers_max = 10" in sent(busy, 12).detail
    some.maintain(lambda _: None)
    verdicts = [sent(quiet, 100 + n).verdict for n in range(4)]
    assert verdicts == [AppendVerdict.APPENDED] * 4
    some.maintain(lambda _: None)  # of ten the quiet one needs four, the busy one may have six
    assert sent(busy, 20).verdict is AppendVerdict.TOO_MANY_PRODUCERS
    verdicts = [sent(quiet, 200 + n).verdict for n in range(3)]
    assert verdicts == [AppendVerdict.APPENDED] * 2 + [AppendVerdict.TOO_MANY_PRODUCERS]


def test_INV_PRR1_what_was_refused_for_another_reason_takes_no_room() -> None:
    some = room_for(100, 2)
    late = batch(at_ms=1 << 50, origin=Origin(ProducerId(5), ProducerEpoch(0), SequenceNumber(0)))
    assert some.partition.writer.append(late).verdict is AppendVerdict.INVALID_TIMESTAMP
    assert [sent(some.partition, n).verdict for n in range(2)] == [AppendVerdict.APPENDED] * 2
    assert some.table.producers.known == 2


def test_INV_PRR1_what_a_start_finds_in_the_logs_counts() -> None:
    some = room_for(100, 4)
    for n in range(4):
        sent(some.partition, n)
    some.sync()
    some.close_and_reopen()
    some.table.finish_drops()
    some.clock.now_ms += FOUND_MS  # INV-PRR3
    assert sent(some.partition, 4).verdict is AppendVerdict.TOO_MANY_PRODUCERS


def test_INV_PRR1_a_refusal_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    some = room_for(1)
    for n in range(5):
        sent(some.partition, n)
    assert len([each for each in caplog.messages if "a new producer is refused" in each]) == 1
    some.clock.now_ms += 60_000
    sent(some.partition, 9)
    assert len([each for each in caplog.messages if "a new producer is refused" in each]) == 2


def test_INV_PRR2_above_half_the_idlest_go_early_and_make_room() -> None:
    some = room_for(4)
    for n in range(4):
        sent(some.partition, n)
    some.maintain(lambda _: None)  # found idle
    some.clock.now_ms += IDLE_MS - 1
    some.maintain(lambda _: None)
    assert ids_of(some.partition) == {0, 1, 2, 3}
    sent(some.partition, 0, 1)  # heard of again
    some.maintain(lambda _: None)
    some.clock.now_ms += 1
    some.maintain(lambda _: None)
    assert ids_of(some.partition) == {0, 3}
    assert sent(some.partition, 9).verdict is AppendVerdict.APPENDED


def test_INV_PRR2_a_long_round_counts_who_wrote_meanwhile_from_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A round begins, and takes a minute. 2. Meanwhile a producer writes to a log that it has not come to, and hears no answer. 3. It tries again
    within fifteen minutes: forgotten, its batch would be written twice.
    """
    monkeypatch.setattr(upkeep, "CooperativeYield", partial(CooperativeYield, 1))
    some = room_for(4, partition_count=2)
    round_ = some.table.upkeep.maintain(lambda _: None)
    next(round_)
    some.clock.now_ms += 60_000
    for n in range(4):
        sent(some.partitions[1], n)
    drained(round_)
    some.clock.now_ms += IDLE_MS - 60_000
    some.maintain(lambda _: None)
    assert ids_of(some.partitions[1]) == {0, 1, 2, 3}


def test_INV_PRR2_half_of_them_stay_a_day_as_in_Kafka() -> None:
    some = room_for(4)
    for n in range(2):
        sent(some.partition, n)
    some.maintain(lambda _: None)
    some.clock.now_ms += DAY_MS - 1
    some.maintain(lambda _: None)
    assert ids_of(some.partition) == {0, 1}


def test_INV_PRR2_who_ended_a_transaction_here_stays_before_made_up_ids() -> None:
    some = room_for(4)
    sent(some.partition, 0, transactional=True)
    append_marker(
        some.partition, producer_id=0, producer_epoch=0, control_type=ControlType.COMMIT,
        coordinator_epoch=1, decision=None, timestamp_ms=1_000_000,
    )  # fmt: skip
    some.maintain(lambda _: None)
    for n in range(1, 4):
        some.clock.now_ms += 60_000
        sent(some.partition, n)
        some.maintain(lambda _: None)
    some.clock.now_ms += IDLE_MS
    some.maintain(lambda _: None)
    assert ids_of(some.partition) == {0, 3}


def test_INV_PRR2_a_full_node_keeps_of_each_log_no_more_than_its_share() -> None:
    some = room_for(100, 8, partition_count=2)
    for n in range(8):
        sent(some.partitions[0], n)
    sent(some.partitions[1], 50)
    some.maintain(lambda _: None)
    some.clock.now_ms += IDLE_MS
    some.maintain(lambda _: None)
    assert ids_of(some.partitions[0]) == {5, 6, 7}  # half of eight, of which the other needs one
    assert ids_of(some.partitions[1]) == {50}


def test_INV_PRR2_an_open_transaction_is_never_forgotten() -> None:
    some = room_for(2)
    for n in range(4):
        sent(some.partition, n, transactional=True)
    for _ in range(3):
        some.maintain(lambda _: None)
        some.clock.now_ms += DAY_MS
    assert ids_of(some.partition) == {0, 1, 2, 3}


def test_INV_PRR3_a_start_that_finds_many_goes_on_with_new_ones_for_a_while() -> None:
    """An older version let in any number, and none of them is known to be idle yet: clients take a refusal for final."""
    some = room_for(100)
    for n in range(30):
        sent(some.partition, n)
    some.sync()
    some.config = replace(some.config, partition_producers_max=4, producers_max=10)
    some.close_and_reopen()
    some.table.finish_drops()
    verdicts = [sent(some.partition, 100 + n).verdict for n in range(3)]
    assert verdicts == [AppendVerdict.APPENDED] * 2 + [AppendVerdict.TOO_MANY_PRODUCERS]
    some.clock.now_ms += FOUND_MS
    assert sent(some.partition, 200).verdict is AppendVerdict.TOO_MANY_PRODUCERS
    some.maintain(lambda _: None)
    some.clock.now_ms += IDLE_MS
    some.maintain(lambda _: None)
    assert len(ids_of(some.partition)) == 2
    assert sent(some.partition, 300).verdict is AppendVerdict.APPENDED


def test_INV_PRR3_so_does_a_node_that_found_many_in_all_its_logs() -> None:
    some = room_for(100, partition_count=3)
    for partition in some.partitions:
        for n in range(4):
            sent(partition, n)
    some.sync()
    some.config = replace(some.config, partition_producers_max=50, producers_max=6)
    some.close_and_reopen()
    some.table.finish_drops()
    verdicts = [sent(some.partition, 100 + n).verdict for n in range(4)]
    assert verdicts == [AppendVerdict.APPENDED] * 3 + [AppendVerdict.TOO_MANY_PRODUCERS]
