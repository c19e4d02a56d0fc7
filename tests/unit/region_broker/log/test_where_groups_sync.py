"""Where a group is synced: on the loop, in threads; and what an error of the hint does."""

import ctypes
import errno
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from region_broker.log.group_commit import (
    AWAY_MS_MAX,
    AWAY_MS_MIN,
    INLINE_BYTES_MAX,
    DiskRunner,
    SyncPace,
)
from region_broker.log.indexes.checked_file import Checkpoint
from region_broker.log.journal.sync_job import Seal, SyncJob
from region_broker.ports.disk import DiskFile
from region_broker.ports.system import disk as disk_module
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk


@dataclass(eq=False)
class Target:
    """A log that notes in which thread its jobs ran."""

    error: OSError | None = None
    ran_in: list[str] = field(default_factory=list)
    generation: int = 0

    def in_file(self, generation: int, offset: int) -> bool:
        """See `SyncTarget`."""
        return True

    def begin_file_sync(self) -> SyncJob | None:
        """See `SyncTarget`."""
        return None

    def finish_journaled(self, job: SyncJob, error: OSError | None) -> None:
        """See `SyncTarget`."""

    def run_sync(self, job: SyncJob) -> OSError | None:
        """See `SyncTarget`."""
        self.ran_in.append(threading.current_thread().name)
        for file in job.files:
            file.fdatasync()
        return self.error

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """See `SyncTarget`."""

    def take_sealed(self) -> list[Path]:
        """See `SyncTarget`."""
        return []


def job_of(
    target: Target, *, size_bytes: int = 1, files: Sequence[DiskFile] = (), seals: int = 0
) -> SyncJob:
    """Return a job of `target`."""
    seal = object.__new__(Seal)
    return SyncJob(
        log=target,
        generation=0,
        files=tuple(files),
        folder_version=0,
        seals=(seal,) * seals,
        checkpoint=Checkpoint(synced_offset=1, segment_base=0, segment_bytes=1),
        size_bytes=size_bytes,
    )


async def outcomes(jobs: Sequence[SyncJob]) -> list[OSError | None]:
    runner = DiskRunner(SystemClock())
    try:
        return await runner.sync_all(jobs)
    finally:
        runner.close()


async def test_INV_CM2_each_job_runs_once_and_has_its_own_outcome() -> None:
    broken = OSError(errno.EIO, "broken")
    targets = [Target(), Target(broken), Target(), Target(OSError(errno.ENOSPC, "full"))]
    jobs = [job_of(target, seals=number % 2) for number, target in enumerate(targets)]
    assert await outcomes(jobs) == [target.error for target in targets]
    assert all(len(target.ran_in) == 1 for target in targets)


async def test_a_small_group_is_synced_on_the_loop() -> None:
    targets = [Target(), Target()]
    await outcomes([job_of(target) for target in targets])
    here = threading.current_thread().name
    assert [target.ran_in for target in targets] == [[here], [here]]


@pytest.mark.parametrize(
    ("size_bytes", "seals"), [(INLINE_BYTES_MAX + 1, 0), (1, 1)], ids=["large", "full-segment"]
)
async def test_INV_CM4_not_on_the_loop(size_bytes: int, seals: int) -> None:
    target = Target()
    await outcomes([job_of(target, size_bytes=size_bytes, seals=seals)])
    assert target.ran_in != [threading.current_thread().name]


def test_INV_CM4_slow_syncs_stay_away_from_the_loop_for_twice_as_long_each_time() -> None:
    pace = SyncPace()
    now_ms, away_ms = 100_000, AWAY_MS_MIN
    for _ in range(9):
        assert pace.on_loop(now_ms)
        pace.took(now_ms, now_ms + 30)
        now_ms += 30
        assert not pace.on_loop(now_ms + away_ms - 1)
        assert pace.on_loop(now_ms + away_ms)
        now_ms += away_ms
        away_ms = min(2 * away_ms, AWAY_MS_MAX)


def test_quick_syncs_stay_on_the_loop_and_one_hiccup_of_a_few_ms_changes_nothing() -> None:
    pace = SyncPace()
    for now_ms in range(0, 1000, 10):
        pace.took(now_ms, now_ms + (4 if now_ms == 500 else now_ms % 20 // 10))
        assert pace.on_loop(now_ms + 10)


def test_a_while_without_slow_syncs_forgives() -> None:
    pace = SyncPace()
    for at_ms in (0, 10_000, 1_000_000):
        pace.took(at_ms, at_ms + 30)
    assert pace.on_loop(1_000_030 + AWAY_MS_MIN)


@pytest.mark.parametrize(
    ("number", "fatal"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.ENOSYS, False)]
)
def test_a_failed_write_out_fails_every_later_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fatal: bool
) -> None:
    def refuse(_descriptor: int, _offset: int, _count: int, _flags: int) -> int:
        ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(disk_module, "_sync_file_range", refuse)
    file = RealDisk().open(tmp_path / "file", create=True)
    file.pwrite(0, b"bytes")
    file.start_writeback()
    for _ in range(2):
        if fatal:
            with pytest.raises(OSError, match=os.strerror(number)):
                file.fdatasync()
        else:
            file.fdatasync()
    file.close()


async def test_INV_CM5_real_files_are_durable_with_the_hint(tmp_path: Path) -> None:
    disk = RealDisk()
    files = [disk.open(tmp_path / str(number), create=True) for number in range(3)]
    for file in files:
        file.pwrite(0, b"bytes")
    assert await outcomes([job_of(Target(), files=[file]) for file in files]) == [None] * 3
    for file in files:
        file.close()
