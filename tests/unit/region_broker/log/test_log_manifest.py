"""The manifest of logs: what it names is durable, what it cannot read costs nothing else."""

import errno
import random
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.log.indexes.log_manifest import LogEntry, LogManifest
from tests.simulation.disk import SimulatedDisk

FOLDER = Path("/logs")
A, B, C = ((UUID(int=number), number) for number in (1, 2, 3))


def disk_with_folder() -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_dirs(FOLDER)
    return disk


def test_INV_MF1_what_was_named_survives_a_power_loss_and_a_restart() -> None:
    disk = disk_with_folder()
    manifest = LogManifest(disk, FOLDER)
    manifest.note([A, B, C], LogEntry.MADE)
    manifest.note([B], LogEntry.REMOVED)
    manifest.note([C], LogEntry.LOST)
    disk.power_loss(random.Random(1))
    again = LogManifest(disk, FOLDER)
    assert [again.of(key) for key in (A, B, C)] == [LogEntry.MADE, LogEntry.REMOVED, LogEntry.LOST]
    assert again.lost() == [C]


def test_INV_MF3_a_damaged_entry_costs_only_itself() -> None:
    disk = disk_with_folder()
    LogManifest(disk, FOLDER).note([A, B, C], LogEntry.MADE)
    path = FOLDER / "manifest"
    disk.damage(path, len(disk.read_file(path)) // 2)
    again = LogManifest(disk, FOLDER)
    assert [again.of(key) for key in (A, B, C)] == [LogEntry.MADE, LogEntry.REMOVED, LogEntry.MADE]


def test_a_failed_sync_says_nothing_and_is_not_repeated_on_the_same_file() -> None:
    disk = disk_with_folder()
    manifest = LogManifest(disk, FOLDER)
    manifest.note([A], LogEntry.MADE)

    def fail(operation: str, _path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "the disk fails")

    disk.fault = fail
    with pytest.raises(OSError, match="the disk fails"):
        manifest.note([B], LogEntry.MADE)
    assert manifest.of(B) is LogEntry.REMOVED
    disk.fault = None
    manifest.note([C], LogEntry.MADE)
    again = LogManifest(disk, FOLDER)
    assert [again.of(key) for key in (A, B, C)] == [LogEntry.MADE, LogEntry.REMOVED, LogEntry.MADE]
