"""What a cut syncs in threads, where something comes between: another cut, a fresh start, a disk that fails, a power cut."""

from pathlib import Path

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.pieces import drained
from region_broker.log import recovery_checkpoints
from region_broker.log.failures import PartitionFailed
from region_broker.log.file_names import file_name
from region_broker.log.indexes.recovery_checkpoint import RECOVERY_CHECKPOINT_SUFFIX
from region_broker.log.parts.durability import BATCH_COST_BYTES
from region_broker.log.parts.trimmer import LogTrimmer
from region_broker.log.replay import rebuild_state
from region_broker.records.batches import Origin
from region_broker.region.failover.log_surgery import truncate_aside
from tests.fixtures.node_logs import Fixture, all_bytes, batch, fixture
from tests.unit.region_broker.log.test_journal import KeepsNothing


def grown(count: int, configs: dict[str, str] | None = None, *, size_bytes: int = 20) -> Fixture:
    """Return a node whose log has so many batches, all of them in its own files."""
    some = fixture(configs)
    append(some, count, size_bytes=size_bytes)
    some.sync_files()
    return some


def append(some: Fixture, count: int, *, producer_id: int = 7, size_bytes: int = 20) -> None:
    for number in range(count):
        origin = Origin(ProducerId(producer_id), ProducerEpoch(0), SequenceNumber(number))
        some.partition.writer.append(batch(origin=origin, size_bytes=size_bytes))
        some.sync()


def trimmer_of(some: Fixture) -> LogTrimmer:
    return some.partition.log.trimmer


def test_INV_CTJ1_what_was_begun_before_another_cut_does_not_say_what_that_took() -> None:
    some = grown(8)
    lowering = trimmer_of(some).begin_lowering(5)
    assert lowering is not None
    some.partition.truncate_to(2)
    lowering.run()
    trimmer_of(some).finish_lowering(lowering)
    some.leads = False
    some.kill_and_reopen()
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 2)


def test_INV_CTJ1_what_was_not_synced_is_not_taken_for_durable() -> None:
    some = fixture()
    for _ in range(4):
        some.partition.writer.append(batch())
    assert (
        trimmer_of(some).begin_lowering(2) is None
    )  # it would go into the journal behind the fence
    some.sync()
    lowering = trimmer_of(some).begin_lowering(2)
    assert lowering is not None
    assert lowering.sync is not None
    trimmer_of(some).finish_lowering(lowering)  # its thread was never begun
    again = trimmer_of(some).begin_lowering(2)
    assert again is not None
    assert again.sync is not None
    again.run()
    trimmer_of(some).finish_lowering(again)
    assert (
        trimmer_of(some).begin_lowering(2) is None
    )  # all is in its own files, and the checkpoint says so


def test_INV_CTJ2_what_settles_one_cut_does_not_settle_the_next() -> None:
    some = grown(8)
    some.partition.truncate_to(5, settles=False)
    first = trimmer_of(some).begin_settling()
    some.partition.truncate_to(2, settles=False)
    second = trimmer_of(some).begin_settling()
    assert first is not None
    assert second is not None
    first.run()
    for not_yet in (first, second):
        trimmer_of(some).finish_settling(not_yet)
        assert trimmer_of(some).begin_settling() is not None
    second.run()
    trimmer_of(some).finish_settling(second)
    assert trimmer_of(some).begin_settling() is None


def test_INV_CTJ2_a_log_that_is_emptied_behind_a_cut_owes_nothing_of_that() -> None:
    some = grown(4)
    some.partition.truncate_to(2, settles=False)
    trimmer_of(some).start_at(7)
    some.partition.writer.append(batch())
    assert some.partition.log_end_offset == 8


def test_INV_CTJ2_what_is_gone_does_not_stand_behind_what_is_written_next() -> None:
    """The power goes once all is written that the log has then: of names nothing is kept that was not synced."""
    some = grown(6, {"segment.bytes": "4096"}, size_bytes=3_000)
    some.disk.fsync_dir(some.folder)
    gone = all_bytes(some.partition)
    lowering = trimmer_of(some).begin_lowering(2)
    assert lowering is not None
    lowering.run()
    trimmer_of(some).finish_lowering(lowering)
    some.partition.truncate_to(2, settles=False)
    settling = trimmer_of(some).begin_settling()
    assert settling is not None
    settling.run()
    some.disk.power_loss(KeepsNothing())
    names = some.disk.list_dir(some.folder)
    assert not [name for name in names if name[:20].isdigit() and int(name[:20]) > 2]
    some.leads = False
    some.open()
    assert some.partition.log_end_offset == 2
    assert gone.startswith(all_bytes(some.partition))


def test_INV_TRM1_what_was_prepared_before_a_log_was_emptied_is_not_taken() -> None:
    some = grown(8)
    for _ in trimmer_of(some).prepare_cut(5):
        pass
    trimmer_of(some).start_at(0)
    append(some, 8, producer_id=9)
    some.partition.truncate_to(5)
    taken = some.partition.state.encode()
    assert taken == rebuild_state(some.folder, some.partition.log.segments.segments, 5).encode()
    assert list(some.partition.state.producer_table.ids()) == [9]


def test_INV_TRM3_what_is_synced_beside_a_cut_that_the_disk_refused_is_refused_too() -> None:
    """A disk that has failed once may say of the next sync that all is well: of what it lost before."""
    some = grown(4)
    lowering = trimmer_of(some).begin_lowering(2)
    some.partition.writer.append(batch())
    group = some.partition.log.durability.begin_sync()
    assert group is not None
    assert lowering is not None

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(5, "input/output error")

    some.disk.fault = fail
    lowering.run()
    some.disk.fault = None
    error = group.run()
    assert error is not None
    assert "input/output error" in str(error)


def test_INV_CTJ1_a_group_commit_that_seals_meanwhile_stops_no_log() -> None:
    """It closes what it has sealed."""
    some = fixture({"segment.bytes": "4096"})
    for _ in range(3):
        some.partition.writer.append(batch(size_bytes=3_000))
    durability = some.partition.log.durability
    group = durability.begin_sync()
    assert group is not None
    assert group.seals
    lowering = trimmer_of(some).begin_lowering(1)
    durability.finish_sync(group, group.run())
    if lowering is not None:
        lowering.run()
        trimmer_of(some).finish_lowering(lowering)
    some.partition.truncate_to(1)
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 1)


async def test_INV_CTJ1_a_log_that_grew_behind_what_was_prepared_is_lowered_by_its_cut() -> None:
    some = grown(4)
    await some.partition.trimming.lower(2)
    append(some, 3, producer_id=9)
    some.sync_files()
    some.partition.truncate_to(2)
    some.leads = False
    some.kill_and_reopen()
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 2)


async def test_INV_TRM3_a_cut_aside_writes_the_checkpoint_in_a_thread_only() -> None:
    some = grown(4)
    await some.partition.trimming.lower(2)
    touched: list[str] = []
    some.disk.fault = lambda operation, path: touched.append(f"{operation} {path.name}")
    some.partition.truncate_to(2, settles=False)
    some.disk.fault = None
    assert not [each for each in touched if "sync" in each]
    await some.partition.trimming.settle()
    await truncate_aside(some.partition, 1)
    assert some.partition.log_end_offset == 1


async def test_INV_CTJ2_a_cut_is_settled_once_also_where_its_segment_was_sealed_since() -> None:
    some = grown(4, {"segment.bytes": "4096"})
    await truncate_aside(some.partition, 2)
    append(some, 4, producer_id=9, size_bytes=3_000)
    await truncate_aside(some.partition, 6)  # where it ends
    append(some, 1, producer_id=10)
    assert (some.partition.failed, some.partition.log_end_offset) == (None, 7)


def test_INV_CTJ2_no_recovery_checkpoint_is_put_that_the_syncs_of_a_cut_remove() -> None:
    some = grown(4)
    some.partition.truncate_to(2, settles=False)
    durability = some.partition.log.durability
    job = drained(durability.begin_recovery_checkpoint())
    if job is not None:
        durability.finish_recovery_checkpoint(job, job.run())
    settling = trimmer_of(some).begin_settling()
    assert settling is not None
    settling.run()
    trimmer_of(some).finish_settling(settling)
    is_put = file_name(0, RECOVERY_CHECKPOINT_SUFFIX) in some.disk.list_dir(some.folder)
    assert is_put == (durability.unread_bytes == 0)


async def test_INV_BKD4_what_a_cut_aside_had_to_read_is_behind_a_recovery_checkpoint_soon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery_checkpoints, "LOG_UNREAD_BYTES_MIN", 20 * BATCH_COST_BYTES)
    some = grown(100)
    assert some.table.recovery_checkpoints.due() == []
    await truncate_aside(some.partition, 90)
    assert some.table.recovery_checkpoints.due() == [some.partition.log.durability]


async def test_INV_TRM3_a_disk_that_cannot_be_read_before_a_cut_stops_the_log() -> None:
    """Who cuts takes an OSError for a quarantine without room, and would try again for ever (INV-FS4)."""
    some = grown(4)

    def fail(operation: str, path: Path) -> None:
        raise OSError(5, f"input/output error of {operation}")

    some.disk.fault = fail
    with pytest.raises(PartitionFailed, match="input/output error"):
        await some.partition.trimming.lower(2)
    assert "input/output error" in str(some.partition.failed)
