"""The manifest of logs: what it names is durable, what it cannot read costs nothing else."""

import errno
import random
import threading
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.log.indexes.log_manifest import LogEntry, LogManifest
from tests.simulation.disk import SimulatedDisk

FOLDER = Path("/logs")
WAIT_S = 30
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


def test_INV_MF4_what_two_say_at_once_is_said_one_after_the_other_and_looking_waits_for_none() -> (
    None
):
    disk = disk_with_folder()
    manifest = LogManifest(disk, FOLDER)
    begun, goes = threading.Event(), threading.Event()
    syncs: list[str] = []

    def slow() -> None:
        syncs.append(threading.current_thread().name)
        begun.set()
        assert goes.wait(WAIT_S)

    disk.on_sync = slow
    threads = [
        threading.Thread(target=manifest.note, args=([key], entry), name=name)
        for name, key, entry in (("makes", A, LogEntry.MADE), ("loses", B, LogEntry.LOST))
    ]
    threads[0].start()
    assert begun.wait(WAIT_S)
    threads[1].start()
    assert (manifest.of(A), manifest.named(LogEntry.MADE), manifest.lost()) == (
        LogEntry.REMOVED,
        [],
        [],
    )
    manifest.note([], LogEntry.REMOVED)
    assert syncs == ["makes"]
    goes.set()
    for thread in threads:
        thread.join(WAIT_S)
    disk.on_sync = None
    assert syncs == ["makes", "loses"]
    for seen in (manifest, LogManifest(disk, FOLDER)):
        assert (seen.named(LogEntry.MADE), seen.lost()) == ([A], [B])
