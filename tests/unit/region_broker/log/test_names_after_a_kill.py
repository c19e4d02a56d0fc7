"""What a killed process left unsynced, the next start syncs before it relies on it: names of files and of folders."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import file_name
from region_broker.ports.system.disk import RealDisk
from tests.fixtures.node_logs import LEADER_EPOCH, TOPIC_ID, Fixture, all_bytes, batch, fixture
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.unit.region_broker.log.test_journal import KeepsNothing, lose_everything

SMALL_SEGMENTS = {"segment.bytes": "4096"}


class KeepsAllNames(random.Random):
    """The power loss after which every name is as it was changed last, and no unsynced byte is there."""

    def random(self) -> float:
        return 0.0

    def choice(self, _seq: object) -> float:  # type: ignore[override]
        return 0.0


def kill_at(some: Fixture, step: int, act: Callable[[], object]) -> bool:
    """Kill the process at the step-th change of names or files within `act`; tell whether it came so far."""
    seen: list[str] = []
    changes = ("make_dir", "fsync_dir", "open", "write_file_atomic", "rename", "remove")

    def kill(operation: str, _path: Path) -> None:
        if operation in changes:
            seen.append(operation)
        if len(seen) > step:
            some.disk.crashed = True
            raise Crashed

    some.disk.fault = kill
    try:
        act()
    except Crashed:
        return True
    some.disk.fault = None
    return False


# Holds INV-DK2.
@pytest.mark.parametrize("step", range(40))
def test_INV_DK5_what_a_log_acknowledges_survives_a_kill_at_any_step_of_its_making(
    step: int,
) -> None:
    some = fixture()
    some.drop_topic(TOPIC_ID)
    kill_at(some, step, lambda: some.table.open_topic(some.topic))
    some.kill_and_reopen()
    some.partition.writer.append(batch(size_bytes=70_000))  # too large for the journal
    some.sync()
    assert some.partition.high_watermark == 1
    acknowledged = all_bytes(some.partition)
    lose_everything(some)
    assert some.partition.failed is None
    assert all_bytes(some.partition) == acknowledged


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("step", range(16))
def test_INV_R10_what_was_never_synced_damages_no_log_whose_making_was_killed(
    step: int, seed: int
) -> None:
    some = fixture(SMALL_SEGMENTS)
    some.drop_topic(TOPIC_ID)
    kill_at(some, step, lambda: some.table.open_topic(some.topic))
    some.kill_and_reopen()
    some.partition.writer.append(batch(size_bytes=1_000))
    some.sync()
    assert some.partition.high_watermark == 1, "it is in the journal"
    for _ in range(3):  # two more segments begin, and nothing of it is synced
        some.partition.writer.append(batch(size_bytes=4_000))
    some.disk.power_loss(random.Random(seed))
    some.open()
    assert some.partition.failed is None, some.partition.failed
    assert some.partition.log_end_offset >= 1


@pytest.mark.parametrize("step", range(16))
def test_INV_K4_a_log_that_is_made_again_takes_nothing_of_the_journal_however_its_making_ends(
    step: int,
) -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    some.drop_topic(TOPIC_ID)  # what it had is in the journal still
    kill_at(some, step, lambda: some.table.open_topic(some.topic))
    some.kill_and_reopen()
    assert some.partition.failed is None
    assert some.partition.log_end_offset == 0


@pytest.mark.parametrize("keeps", [KeepsNothing, KeepsAllNames])
@pytest.mark.parametrize("step", range(8))
def test_INV_R6_a_segment_that_a_cut_removed_stays_away_though_the_cut_was_killed(
    step: int, keeps: type[random.Random]
) -> None:
    some = fixture(SMALL_SEGMENTS)
    for _ in range(15):
        some.partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.sync_files()
    second = some.partition.log.segments.bases[1]
    kill_at(some, step, lambda: some.partition.truncate_to(second - 2))
    some.kill_and_reopen()
    if some.partition.log_end_offset != second - 2:
        some.partition.truncate_to(second - 2)
    for _ in range(2):  # up to where the removed segment began
        some.partition.writer.append(batch(size_bytes=300, at_ms=2_000_000))
    some.sync()
    some.sync_files()
    acknowledged = all_bytes(some.partition)
    some.disk.power_loss(keeps())
    some.open()
    assert some.partition.failed is None
    assert all_bytes(some.partition) == acknowledged


def test_INV_SD1_a_folder_whose_name_was_not_synced_is_gone_with_all_that_was_synced_in_it() -> (
    None
):
    disk = SimulatedDisk()
    disk.make_dir(Path("/data"))
    disk.write_file_atomic(Path("/data/file"), b"synced")
    disk.fsync_dir(Path("/data"))
    disk.power_loss(KeepsNothing())
    assert not disk.exists(Path("/data"))
    disk.make_dirs(Path("/data"))
    disk.power_loss(KeepsNothing())
    assert disk.exists(Path("/data"))


def test_INV_DK5_the_real_disk_makes_folders_from_the_outermost_on(tmp_path: Path) -> None:
    (tmp_path / "something").touch()
    synced: list[tuple[Path, bool, bool]] = []

    class Noting(RealDisk):
        def fsync_dir(self, path: Path) -> None:
            synced.append((path, (tmp_path / "a").exists(), (tmp_path / "a" / "b").exists()))
            super().fsync_dir(path)

    Noting().make_dirs(tmp_path / "a" / "b")
    assert synced == [(tmp_path, True, False), (tmp_path / "a", True, True)]
    Noting().make_dirs(tmp_path / "a" / "b")  # it is empty: its making may have been killed
    assert synced[2:] == [(tmp_path / "a", True, True)]
    RealDisk().write_file_atomic(tmp_path / "a" / "b" / "file", b"")
    Noting().make_dirs(tmp_path / "a" / "b")
    assert len(synced) == 3


def closed_with_two_epochs() -> tuple[Fixture, int]:
    """Return a log that was closed, whose second leader epoch began in the open segment, and where."""
    some = fixture(SMALL_SEGMENTS, leads=False)
    began = 0
    for leader_epoch, count in ((LEADER_EPOCH, 15), (LEADER_EPOCH + 1, 3)):
        some.partition.become_leader(LeaderEpoch(leader_epoch))
        began = some.partition.log_end_offset
        for _ in range(count):
            some.partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.table.close()
    return some, began


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_INV_BKM3_a_closed_log_without_its_recovery_checkpoint_is_read_and_knows_its_leader_epochs(
    how: str,
) -> None:
    some, began = closed_with_two_epochs()
    [name] = [name for name in some.disk.list_dir(some.folder) if name.endswith(".bookmark")]
    some.disk.process_killed()
    if how == "damaged":
        some.disk.damage(some.folder / name, 60)
    else:
        some.disk.remove(some.folder / name)
    some.open()
    assert some.partition.failed is None
    assert not some.partition.log.recovered_clean
    assert some.partition.log.epochs.entries() == [(LEADER_EPOCH, 0), (LEADER_EPOCH + 1, began)]
    assert some.partition.epoch_end_offset(LEADER_EPOCH) == (LEADER_EPOCH, began)
    assert len(all_bytes(some.partition)) > 0
    some.close_and_reopen()
    assert some.partition.log.recovered_clean


def test_INV_R3_a_sealed_segment_that_lost_whole_batches_and_its_index_is_damaged() -> None:
    some = fixture(SMALL_SEGMENTS)
    for _ in range(30):
        some.partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.sync_files()
    size_bytes = len(batch(size_bytes=300))
    some.disk.process_killed()
    del some.disk.content(some.folder / file_name(0, ".log"))[-size_bytes:]
    some.disk.remove(some.folder / file_name(0, ".index"))
    some.open()
    assert some.partition.failed is not None
    assert "ends at offset" in some.partition.failed


def test_INV_X3_so_it_is_when_its_index_is_built_again_while_it_is_read() -> None:
    some = fixture(SMALL_SEGMENTS)
    for _ in range(30):
        some.partition.writer.append(batch(size_bytes=300))
    some.sync()
    some.close_and_reopen()
    size_bytes = len(batch(size_bytes=300))
    segment = some.partition.log.segments.segments[0]
    some.disk.remove(segment.index_path())
    del some.disk.content(segment.path)[-size_bytes:]
    segment.size_bytes -= size_bytes
    with pytest.raises(LogDamaged, match="ends at offset"):
        segment.index()


def test_INV_R7_damage_that_one_start_refused_is_no_torn_tail_for_the_next() -> None:
    some = fixture()
    some.partition.writer.append(batch(size_bytes=70_000))
    some.sync()
    some.sync_files()
    some.partition.writer.append(batch(size_bytes=70_000))  # too large for the journal
    some.sync()
    assert some.partition.high_watermark == 2
    acknowledged = all_bytes(some.partition)
    segment = some.partition.log.segments.segments[-1]
    flipped = segment.size_bytes - 100
    some.disk.process_killed()
    some.disk.damage(segment.path, flipped)
    some.open()
    assert "bytes were durable" in str(some.partition.failed)
    lose_everything(some)
    assert "bytes were durable" in str(some.partition.failed)
    some.disk.process_killed()
    some.disk.damage(segment.path, flipped)  # it is given back
    some.open()
    assert some.partition.failed is None
    assert all_bytes(some.partition) == acknowledged


def test_INV_R7_a_proof_that_cannot_be_synced_changes_no_refusal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = fixture()
    some.partition.writer.append(batch(size_bytes=70_000))
    some.sync()
    segment = some.partition.log.segments.segments[-1]
    some.disk.process_killed()
    some.disk.damage(segment.path, segment.size_bytes - 100)

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.name == "checkpoint":
            raise OSError(5, "Input/output error")

    some.disk.fault = fail
    some.open()
    assert "bytes were durable" in str(some.partition.failed)
    assert "could not be synced" in caplog.text
