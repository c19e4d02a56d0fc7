"""The disk, one of the four ports: positioned reads and writes, syncs, and folders made durable.

INV-DK2  nothing is durable before `fdatasync` of its file returned, and a new, renamed or removed name not
        before `fsync_dir` of its folder returned
INV-DK4  `pread_cached` never waits for the device where the file system can tell (RWF_NOWAIT: ext4, xfs, btrfs); elsewhere
        it reads as `pread` does
INV-DK5  a folder that `make_dirs` made holds nothing before its own name is durable
INV-DK6  what a start finds in a file, or by its name, is durable before anything is done for it: a process may be killed
        between a write and its sync, or end for a sync that failed, and the page cache outlives it
INV-DK3  a failed `fdatasync` is never repeated on the same file by anyone: the kernel may have dropped the
        dirty pages and answer the second call with success
`pwrite` writes everything or raises `OSError`; after an error the bytes from `position` on are unknown.

Every failure is an `OSError` whose `errno` says which (ENOSPC: full, EIO: broken).
Not here: what the bytes mean; when to sync (`group_commit`).
"""

import errno
from pathlib import Path
from typing import Final, Protocol

Buffer = bytes | bytearray | memoryview

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of errors: no file can be opened now. That says nothing of the disk."""
TEMPORARY_SUFFIX: Final = ".tmp"


class DiskFile(Protocol):
    """One open file. Only `fdatasync` may run in another thread than the rest."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Return up to `size_bytes` bytes from `position`; fewer only at the end of the file."""
        ...

    def pread_cached(self, size_bytes: int, position: int) -> bytearray:
        """Return what of that range is in memory, up to the first byte that is not, or the end of the file."""
        ...

    def pwrite(self, position: int, *buffers: Buffer) -> int:
        """Write all buffers one after the other from `position`; return the number of bytes."""
        ...

    def truncate(self, size_bytes: int) -> None:
        """Cut the file to `size_bytes`."""
        ...

    def size(self) -> int:
        """Return the size in bytes."""
        ...

    def start_writeback(self) -> None:
        """Begin writing to the device, without waiting: a hint. If it fails, `fdatasync` raises the error."""
        ...

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """Let the memory go that holds this range, which is synced: a hint; what reads it then waits for the disk."""
        ...

    def fdatasync(self) -> None:
        """Return once content and size are on stable storage."""
        ...

    def close(self) -> None:
        """Close; says nothing about durability."""
        ...


class Lock(Protocol):
    """A file that no other process locks until `close`, or until this process ends."""

    def close(self) -> None:
        """Let others lock it."""
        ...


class Disk(Protocol):
    """A file system as the log needs it."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """Open for reading and writing; FileNotFoundError unless `create`."""
        ...

    def warm(self, path: Path, position: int, size_bytes: int) -> None:
        """Read a range of a file into memory, and begin with what lies behind it; waits, may run in any thread."""
        ...

    def exists(self, path: Path) -> bool:
        """Return whether a file or folder has that name."""
        ...

    def file_size(self, path: Path) -> int:
        """Return the size of a file in bytes; FileNotFoundError if it is not there."""
        ...

    def changed_ms(self, path: Path) -> int:
        """Return when a file's content was last changed, in ms of the wall clock; FileNotFoundError if it is not there."""
        ...

    def list_dir(self, path: Path) -> list[str]:
        """Return the names in a folder, sorted."""
        ...

    def is_empty(self, path: Path) -> bool:
        """Return whether a folder holds nothing; FileNotFoundError if it is not there."""
        ...

    def make_dir(self, path: Path) -> None:
        """Create one folder, unless it is there; durable after `fsync_dir` of its parent."""
        ...

    def make_dirs(self, path: Path) -> None:
        """Create a folder and its parents durably; no error if it is there (INV-DK5)."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing `target`; durable after `fsync_dir`."""
        ...

    def remove(self, path: Path) -> None:
        """Remove a file; FileNotFoundError if it is not there."""
        ...

    def remove_tree(self, path: Path) -> None:
        """Remove a folder with all that it holds."""
        ...

    def fsync_dir(self, path: Path) -> None:
        """Make the names in a folder durable."""
        ...

    def read_file(self, path: Path) -> bytes:
        """Return the whole content."""
        ...

    def write_file_atomic(self, path: Path, data: Buffer) -> None:
        """Replace a file durably: afterwards, and after any crash, it is the old or the new one."""
        ...

    def volume_bytes(self, path: Path) -> tuple[int, int]:
        """Return (size, what is free for us) of the volume that a folder is on, in bytes."""
        ...

    def lock(self, path: Path) -> Lock:
        """Keep every other process from locking that file, made if need be; BlockingIOError where one has."""
        ...


def make_dirs_durably(disk: Disk, path: Path) -> None:
    """Create a folder and its parents durably (INV-DK5).

    1. A folder is made, and the process is killed before its name is synced. 2. The next start finds the folder, and
    puts files into it that it syncs, in a folder that it syncs. 3. The power fails: all of it is gone. So a folder gets
    nothing before its name is durable, and one that has nothing is not trusted to have a durable name.
    """
    missing: list[Path] = []
    folder = path
    while not disk.exists(folder):
        missing.append(folder)
        folder = folder.parent
    if folder != folder.parent and disk.is_empty(folder):
        disk.fsync_dir(folder.parent)
    for folder in reversed(missing):
        disk.make_dir(folder)
        disk.fsync_dir(folder.parent)


def sync_as_found(disk: Disk, path: Path) -> None:
    """Make a file, which is small, and its name durable as this start finds them (INV-DK6); raises OSError.

    It is written once more: what a sync failed for is in the page cache as if it were durable, and no later sync finds it.
    """
    file = disk.open(path)
    try:
        file.pwrite(0, file.pread(file.size(), 0))
        file.fdatasync()
    finally:
        file.close()
    disk.fsync_dir(path.parent)
