"""Files of the chain: rotation, every crash, full and broken disks (INV-ACF1..5)."""

import errno
import random
from pathlib import Path
from typing import Any

import pytest

from region_broker.ports.disk import Buffer, DiskFile
from region_broker.security.audit.chain import Head, make_line, read_line
from region_broker.security.audit.chain_files import (
    AuditRefused,
    ChainFiles,
    Owner,
    file_name,
    owner_problem,
)
from tests.simulation.disk import Crashed, SimulatedDisk
from tests.unit.region_broker.security.audit.chains import (
    FOLDER,
    MIB,
    OWNER,
    files_on,
    is_sound_by_hand,
    lines_on,
    opened,
    operations,
    record,
    verified_on,
)

SMALL = 600
"""A file of two or three records."""


def test_the_chain_goes_on_across_files_and_starts() -> None:
    """INV-ACF3, INV-ACF4."""
    disk = SimulatedDisk()
    for start in range(3):
        chain = opened(disk, file_bytes_max=SMALL)
        for number in range(6):
            chain.write([record(f"op{start}.{number}")], 5)
        chain.close()
    files = files_on(disk)
    assert len(files) > 3
    assert all(operations(data.splitlines())[0] in {"chain-begun", "file-begun"} for data in files.values())  # fmt: skip
    assert is_sound_by_hand(lines_on(disk))
    assert verified_on(disk).is_sound
    assert opened(disk).total_bytes == sum(map(len, files.values()))


def test_a_file_that_is_gone_is_found() -> None:
    disk = SimulatedDisk()
    chain = opened(disk, file_bytes_max=SMALL)
    for number in range(12):
        chain.write([record(f"op{number}")], 5)
    names = list(files_on(disk))
    disk.remove(FOLDER / names[1])
    assert any("are missing" in str(each) for each in verified_on(disk).findings)


@pytest.mark.parametrize(
    "other",
    [Owner("world", "eu", 2, "cd" * 16), Owner("world", "us", 1, "cd" * 16), Owner("moon", "eu", 1, "cd" * 16)],
)  # fmt: skip
def test_another_node_does_not_write_into_it(other: Owner) -> None:
    disk = SimulatedDisk()
    opened(disk).close()
    with pytest.raises(AuditRefused, match=r"that of node 1 of region eu.*audit_dir of its own"):
        opened(disk, other)
    assert "that of node 1 of region eu" in str(owner_problem(disk, FOLDER, other))


def test_INV_ACF3_a_chain_of_another_node_whose_newest_file_says_nothing_is_not_written_to() -> (
    None
):
    """Its node ended while it began a file; a copy of its folder is no less its own."""
    disk = SimulatedDisk()
    opened(disk, Owner("world", "us", 1, "cd" * 16)).close()
    disk.write_file_atomic(FOLDER / file_name(2), b'{"seq":2,"prev"')
    with pytest.raises(AuditRefused, match="that of node 1 of region us"):
        opened(disk)


def test_a_new_data_folder_of_the_same_node_is_told() -> None:
    disk = SimulatedDisk()
    opened(disk).close()
    opened(disk, Owner("world", "eu", 1, "cd" * 16)).close()
    report = verified_on(disk)
    assert report.is_sound
    assert report.notes == ["from record 2 on the node has another data folder"]


@pytest.mark.parametrize("size", [1, 40, 200])
def test_a_line_that_a_crash_cut_is_kept_aside_and_noted(size: int) -> None:
    """INV-ACF2."""
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record("whole"), record("torn")], 5)
    path = FOLDER / "audit-00000001.jsonl"
    whole, torn = disk.read_file(path)[: len(b"".join(lines_on(disk)[:2]))], lines_on(disk)[2]
    file = disk.open(path)
    file.truncate(len(whole) + size)
    file.fdatasync()
    chain = opened(disk)
    chain.write([record("next")], 5)
    assert operations(lines_on(disk)) == ["chain-begun", "whole", "torn", "next"]
    assert is_sound_by_hand(lines_on(disk))
    report = verified_on(disk)
    assert report.is_sound
    assert any(f"left {size} bytes of a record" in note for note in report.notes)
    [aside] = [name for name in disk.list_dir(FOLDER) if name.startswith("torn-")]
    assert disk.read_file(FOLDER / aside) == torn[:size]


def test_a_change_by_hand_is_not_healed_by_a_start() -> None:
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record(f"op{number}") for number in range(5)], 5)
    path = FOLDER / "audit-00000001.jsonl"
    disk.damage(path, disk.read_file(path).index(b"op2"))
    assert not verified_on(disk).is_sound
    opened(disk).write([record("next")], 5)
    assert "so does a change by hand" in str(verified_on(disk).findings[0])


@pytest.mark.parametrize("how", ["forged", "doubled", "left out"])
def test_a_start_goes_on_behind_the_last_record_that_follows_those_before_it(how: str) -> None:
    """INV-ACF2: each line has a hash that is right, and yet they are no chain."""
    disk = SimulatedDisk()
    opened(disk).write([record(f"op{number}") for number in range(4)], 5)
    path, lines = FOLDER / "audit-00000001.jsonl", lines_on(disk)
    forged, _ = make_line(Head(2, "f" * 64), record("forged"))
    third = {"forged": [forged], "doubled": [lines[1]], "left out": []}[how]
    disk.write_file_atomic(path, b"".join([*lines[:2], *third, *lines[3:]]))
    opened(disk).write([record("next")], 5)
    assert operations(lines_on(disk)) == ["chain-begun", "op0", "torn", "next"]
    assert is_sound_by_hand(lines_on(disk))
    assert "so does a change by hand" in str(verified_on(disk).findings[0])


def test_what_a_start_builds_on_is_durable_first() -> None:
    """INV-DK6: a process was killed between a write and its sync, and power fails behind the next start."""
    for seed in range(20):
        disk = SimulatedDisk()
        opened(disk).write([record("op0")], 5)
        line, _ = make_line(read_line(lines_on(disk)[-1][:-1]).head, record("op1"))
        path = FOLDER / "audit-00000001.jsonl"
        disk.open(path).pwrite(disk.file_size(path), line)
        disk.process_killed()
        opened(disk, Owner("world", "eu", 1, "cd" * 16)).write([record("next")], 5)
        disk.power_loss(random.Random(seed))
        assert is_sound_by_hand(lines_on(disk)), seed
        assert operations(lines_on(disk)) == ["chain-begun", "op0", "op1", "file-begun", "next"]


def test_INV_ACF1_the_head_that_a_start_tells_outlives_the_power() -> None:
    """It is kept elsewhere, and a chain without it is one whose end was cut off."""
    for seed in range(20):
        disk = SimulatedDisk()
        head = opened(disk).head
        disk.power_loss(random.Random(seed))
        assert verified_on(disk, head).is_sound, seed


def test_INV_ACF2_what_a_start_cut_off_does_not_come_back_in_a_file_that_it_left() -> None:
    """A node with another data folder begins a file: nobody looks into the one before it again."""
    for seed in range(20):
        disk = SimulatedDisk()
        opened(disk).write([record("op0")], 5)
        path = FOLDER / file_name(1)
        disk.write_file_atomic(path, disk.read_file(path) + b'{"seq":3,"half')
        opened(disk, Owner("world", "eu", 1, "cd" * 16))
        disk.power_loss(random.Random(seed))
        assert operations(lines_on(disk)) == ["chain-begun", "op0", "file-begun", "torn"], seed
        assert is_sound_by_hand(lines_on(disk)), seed


def test_each_crash_leaves_a_chain_that_holds_what_was_durable() -> None:
    """INV-ACF1: at every operation of the disk, killed or without power."""
    for seed in range(120):
        rng = random.Random(seed)
        disk = SimulatedDisk()
        written: list[str] = []
        disk.crash_after(seed // 2)
        try:
            chain = opened(disk, file_bytes_max=SMALL)
            for number in range(8):
                chain.write([record(f"op{number}", reason="x" * rng.randrange(400))], 5)
                written.append(f"op{number}")
        except Crashed:
            pass
        disk.process_killed() if seed % 2 else disk.power_loss(rng)
        chain = opened(disk, file_bytes_max=SMALL)
        chain.write([record("after")], 5)
        found = [name for name in operations(lines_on(disk)) if name.startswith("op")]
        assert found[: len(written)] == written, seed
        assert len(found) <= len(written) + 1, seed
        assert is_sound_by_hand(lines_on(disk)), seed
        assert all("power loss" in str(each) for each in verified_on(disk).findings), seed


def test_a_full_disk_refuses_and_takes_it_again_when_there_is_room() -> None:
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record("before")], 5)
    disk.room_bytes = 100
    for _ in range(3):
        with pytest.raises(OSError, match="No space") as caught:
            chain.write([record("refused")], 5)
        assert caught.value.errno == errno.ENOSPC
    disk.room_bytes = None
    assert chain.write([record("after")], 5) == [3]
    assert operations(lines_on(disk)) == ["chain-begun", "before", "after"]
    assert verified_on(disk).is_sound


@pytest.mark.parametrize("torn", [True, False])
@pytest.mark.parametrize("room_bytes", [10, 1_000])
def test_INV_ACF6_a_full_disk_keeps_no_node_from_starting(torn: bool, room_bytes: int) -> None:
    """A region whose audit disk is full must still take over (ADR 62): also where a crash left half a record on it."""
    disk = SimulatedDisk()
    if torn:
        opened(disk).write([record("before")], 5)
        name = FOLDER / file_name(1)
        disk.write_file_atomic(name, disk.read_file(name) + b'{"seq":3,"half' + b"x" * 300)
    disk.room_bytes = room_bytes if torn else 10
    moved = Owner("world", "eu", 1, "cd" * 16)
    chain = opened(disk, moved)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            chain.write([record("refused", reason="x" * 2_000)], 5)
    disk.room_bytes = None
    chain.write([record("after")], 5)
    begun = ["chain-begun", "before", "file-begun", "torn"] if torn else ["chain-begun"]
    assert operations(lines_on(disk)) == [*begun, "after"]
    assert is_sound_by_hand(lines_on(disk))
    assert verified_on(disk).is_sound


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EROFS])
def test_a_disk_that_is_not_full_but_fails_keeps_the_node_from_starting(code: int) -> None:
    """Room comes again by itself; a folder that is not to be written is a mistake that is told at once."""
    disk = SimulatedDisk()

    def broken(operation: str, _path: Path) -> None:
        if operation == "pwrite":
            raise OSError(code, "no")

    disk.fault = broken
    with pytest.raises(OSError, match="no") as refused:
        opened(disk)
    assert refused.value.errno == code
    disk.fault = None
    ChainFiles.open(disk, FOLDER, OWNER, file_bytes_max=MIB, wall_ms=1).close()


def test_a_start_that_a_full_disk_refuses_leaves_no_file_open() -> None:
    """It is tried again with each change that is to be recorded: a node would end with no descriptors left."""
    disk = SimulatedDisk()
    opened(disk).close()
    name = FOLDER / file_name(1)
    disk.write_file_atomic(name, disk.read_file(name) + b'{"seq":2,"half')

    def refuse(asked: str, path: Path) -> None:
        if asked == "truncate" and path == name:  # where what is cut is copied first
            raise OSError(errno.ENOSPC, "No space", str(path))

    before, disk.fault = disk.open_files, refuse
    chain = opened(disk)
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            chain.write([record("refused")], 5)
    assert disk.open_files == before
    disk.fault = None
    chain.write([record("after")], 5)
    assert operations(lines_on(disk)) == ["chain-begun", "torn", "after"]
    assert verified_on(disk).is_sound


def test_INV_ACF2_what_was_cut_is_told_though_the_next_file_has_no_room_at_first() -> None:
    """1. A torn tail is copied and cut. 2. There is no room for the file that goes on. 3. The next try finds nothing torn."""
    disk = SimulatedDisk()
    opened(disk).close()
    name = FOLDER / file_name(1)
    disk.write_file_atomic(name, disk.read_file(name) + b'{"half')

    def refuse(asked: str, path: Path) -> None:
        if asked == "pwrite" and path == FOLDER / file_name(2):
            raise OSError(errno.ENOSPC, "No space", str(path))

    disk.fault = refuse
    chain = opened(disk, Owner("world", "eu", 1, "cd" * 16))
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            chain.write([record("refused")], 5)
    disk.fault = None
    chain.write([record("after")], 5)
    assert operations(lines_on(disk)) == ["chain-begun", "file-begun", "torn", "after"]
    assert verified_on(disk).is_sound


class HalfWritten:
    """A file whose writes end half way: no more fits."""

    def __init__(self, file: DiskFile) -> None:
        """Write into `file`."""
        self._file = file

    def pwrite(self, position: int, *buffers: Buffer) -> int:
        """See `DiskFile`."""
        self._file.pwrite(position, b"".join(buffers)[:30])
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_what_fitted_of_a_refused_record_is_cut_off() -> None:
    """INV-ACF1: a crash right behind it leaves nothing of it."""
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record("before")], 5)
    assert chain._file is not None
    whole, chain._file = chain._file, HalfWritten(chain._file)
    with pytest.raises(OSError, match="No space"):
        chain.write([record("refused")], 5)
    assert all(line.endswith(b"\n") for line in lines_on(disk))
    chain._file = whole
    chain.write([record("after")], 5)
    assert verified_on(disk).is_sound


def test_a_full_disk_at_the_border_of_files() -> None:
    disk = SimulatedDisk()
    chain = opened(disk, file_bytes_max=1)
    disk.room_bytes = 10
    with pytest.raises(OSError, match="No space"):
        chain.write([record("refused")], 5)
    assert list(files_on(disk)) == ["audit-00000001.jsonl"]
    disk.room_bytes = None
    chain.write([record("after")], 5)
    assert operations(lines_on(disk)) == ["chain-begun", "file-begun", "after"]
    assert verified_on(disk).is_sound


def test_a_sync_that_failed_is_not_tried_again() -> None:
    """INV-ACF1, INV-DK3."""
    disk = SimulatedDisk()
    chain = opened(disk)

    def broken(operation: str, _path: Path) -> None:
        if operation == "fdatasync":
            raise OSError(errno.EIO, "Input/output error")

    disk.fault = broken
    with pytest.raises(OSError, match="Input/output"):
        chain.write([record("unknown")], 5)
    disk.fault = None
    with pytest.raises(OSError, match="restart the node"):
        chain.write([record("refused")], 5)


def test_a_sync_of_the_folder_that_failed_is_not_tried_again() -> None:
    """INV-ACF1, INV-DK3: at the border of files, where the next one gets its name."""
    disk = SimulatedDisk()
    chain = opened(disk, file_bytes_max=1)

    def broken(operation: str, _path: Path) -> None:
        if operation == "fsync_dir":
            raise OSError(errno.EIO, "Input/output error")

    disk.fault = broken
    with pytest.raises(OSError, match="Input/output"):
        chain.write([record("unknown")], 5)
    disk.fault = None
    with pytest.raises(OSError, match="restart the node"):
        chain.write([record("refused")], 5)


def test_INV_ACF5_two_processes_do_not_write_over_each_other() -> None:
    """A copy of a data folder that is started elsewhere has the same identity, and may name the same audit_dir."""
    disk = SimulatedDisk()
    first = opened(disk)
    with pytest.raises(AuditRefused, match="written by another process"):
        ChainFiles.open(disk, FOLDER, OWNER, file_bytes_max=MIB, wall_ms=1)
    first.close()
    ChainFiles.open(disk, FOLDER, OWNER, file_bytes_max=MIB, wall_ms=1).close()


def test_what_lies_beside_the_chain_keeps_no_node_from_starting() -> None:
    """A copy that somebody made by hand sorts behind all files of the chain."""
    disk = SimulatedDisk()
    opened(disk).write([record("a")], 1)
    disk.write_file_atomic(FOLDER / "audit-old.jsonl", disk.read_file(FOLDER / file_name(1)))
    chain = opened(disk)
    chain.write([record("b")], 1)
    assert operations(lines_on(disk)) == ["chain-begun", "a", "b"]
    assert is_sound_by_hand(lines_on(disk))


def test_INV_ACF4_a_newest_file_that_was_moved_away_is_followed_by_another_one() -> None:
    """Who moves old files to an archive moves the newest one, too: what came then would be in a file without a name."""
    disk = SimulatedDisk()
    chain = opened(disk)
    chain.write([record("a")], 1)
    moved = disk.read_file(FOLDER / file_name(1))
    disk.remove(FOLDER / file_name(1))
    chain.write([record("b")], 1)
    lines = moved.splitlines(keepends=True) + lines_on(disk)
    assert operations(lines) == ["chain-begun", "a", "file-begun", "b"]
    assert is_sound_by_hand(lines)
