"""What comes of jobs that end late: after a cut, after a later job, after a segment that they do not speak of."""

from collections.abc import Callable

import pytest

from idempotency.pieces import drained
from region_broker.log.parts.durability import BATCH_COST_BYTES, LogDurability
from tests.fixtures.node_logs import Fixture, batch, fixture


def written(count: int) -> Fixture:
    """Return a log with so many records, none of them durable."""
    some = fixture()
    for _ in range(count):
        some.partition.writer.append(batch())
    return some


def synced_late(durability: LogDurability) -> Callable[[], None]:
    job = durability.begin_sync()
    assert job is not None
    return lambda: durability.finish_sync(job, None)


def journaled_late(durability: LogDurability) -> Callable[[], None]:
    job = durability.begin_sync()
    assert job is not None
    return lambda: durability.finish_journaled(job, None)


def checkpointed_late(durability: LogDurability) -> Callable[[], None]:
    job = drained(durability.begin_recovery_checkpoint())
    assert job is not None
    outcome = job.run()
    assert outcome.error is None
    return lambda: durability.finish_recovery_checkpoint(job, outcome)


LATE = pytest.mark.parametrize("begun", [synced_late, journaled_late, checkpointed_late])


@LATE
def test_INV_PT2_what_was_begun_before_a_cut_makes_nothing_durable(
    begun: Callable[[LogDurability], Callable[[], None]],
) -> None:
    some = written(5)
    finish = begun(some.partition.log.durability)
    some.partition.truncate_to(2)
    some.partition.writer.append(batch())
    finish()
    assert (some.partition.high_watermark, some.partition.log_end_offset) == (2, 3)


@LATE
def test_INV_PT2_what_was_begun_earlier_takes_nothing_back(
    begun: Callable[[LogDurability], Callable[[], None]],
) -> None:
    some = written(5)
    finish = begun(some.partition.log.durability)
    some.partition.writer.append(batch())
    some.sync()
    assert some.partition.high_watermark == 6
    finish()
    assert some.partition.high_watermark == 6


@LATE
def test_INV_PT2_what_ends_after_the_log_has_stopped_acknowledges_nothing(
    begun: Callable[[LogDurability], Callable[[], None]],
) -> None:
    some = written(5)
    finish = begun(some.partition.log.durability)
    some.partition.stop("for the test")
    finish()
    assert some.partition.high_watermark == 0


def rolled() -> Fixture:
    """Return a log whose second segment has begun; nothing is durable."""
    some = fixture({"segment.bytes": "4096"})
    while not some.partition.log.durability.pending_seals:
        some.partition.writer.append(batch(size_bytes=500))
    return some


def test_INV_PL5_no_recovery_checkpoint_speaks_of_a_log_whose_last_segment_is_not_sealed() -> None:
    """It syncs the open segment alone, and says that all below its end is durable."""
    some = rolled()
    assert drained(some.partition.log.durability.begin_recovery_checkpoint()) is None
    some.sync()
    assert drained(some.partition.log.durability.begin_recovery_checkpoint()) is not None


def test_a_recovery_checkpoint_of_the_segment_before_says_nothing_of_the_open_one() -> None:
    some = rolled()
    some.sync()
    durability = some.partition.log.durability
    finish = checkpointed_late(durability)
    while not durability.pending_seals:
        some.partition.writer.append(batch(size_bytes=500))
    some.sync()
    finish()
    active = some.partition.log.content.active
    assert active is not None
    assert durability.unread_bytes == active.size_bytes + BATCH_COST_BYTES * active.batch_count


def test_INV_PL5_a_log_that_begins_again_seals_nothing_of_what_was_given_up() -> None:
    some = rolled()
    some.partition.start_at(500)
    assert not some.partition.log.durability.pending_seals
    some.sync()
    assert some.sealed == []


def test_what_a_stopped_log_has_in_the_journal_stays_until_its_folder_is_gone() -> None:
    some = written(5)
    some.sync()
    durability = some.partition.log.durability
    generation = durability.generation
    some.partition.stop("for the test")
    some.partition.log.close()
    assert durability.generation != generation
    assert not durability.in_file(generation, 5)
    durability.give_up()
    assert durability.in_file(generation, 5)
