"""The disk, one of the four ports: positioned reads and writes, syncs, and folders made durable.

INV-DK1  `pwrite` writes everything or raises `OSError`; after an error the bytes from `position` on are unknown
INV-DK2  nothing is durable before `fdatasync` of its file returned, and a new, renamed or removed name not
        before `fsync_dir` of its folder returned
INV-DK4  `pread_cached` never waits for the device where the file system can tell (RWF_NOWAIT: ext4, xfs, btrfs); elsewhere
        it reads as `pread` does
INV-DK5  a folder that `make_dirs` made holds nothing before its own name is durable
INV-DK6  what a start finds in a file, or by its name, is durable before anything is done for it: a process may be killed
        between a write and its sync, and the page cache outlives it
INV-DK3  a failed `fdatasync` is never repeated on the same file by anyone: the kernel may have dropped the
        dirty pages and answer the second call with success

Every failure is an `OSError` whose `errno` says which (ENOSPC: full, EIO: broken).
Not here: what the bytes mean; when to sync (`group_commit`).
"""

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final, Generic, Protocol, TypeVar

K = TypeVar("K")
V = TypeVar("V")
Buffer = bytes | bytearray | memoryview

_SYNC_FILE_RANGE_WRITE: Final = 2
_HINT_REFUSED: Final = {errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.ESPIPE, errno.EOPNOTSUPP}


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is None:
        return None
    function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    function.restype = ctypes.c_int
    call: Callable[[int, int, int, int], int] = function
    return call


_sync_file_range: Final = _find_sync_file_range()
_NOWAIT: Final[int | None] = getattr(os, "RWF_NOWAIT", None)
NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
"""Of errors: no file can be opened now. That says nothing of the disk."""
PROBED_BYTES_MIN: Final = 64 * 1024
WARM_STEP_BYTES: Final = 256 * 1024
WARM_AHEAD_BYTES: Final = 4 << 20


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


class RealFile:
    """A `DiskFile` on a POSIX descriptor."""

    __slots__ = ("_descriptor", "_is_random", "_tells_cached", "_writeback_error")

    def __init__(self, descriptor: int) -> None:
        """Own an open descriptor."""
        self._descriptor = descriptor
        self._tells_cached = _NOWAIT is not None
        self._is_random = False
        self._writeback_error: OSError | None = None

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `DiskFile`."""
        data = os.pread(self._descriptor, size_bytes, position)
        if len(data) == size_bytes or not data:
            return data
        parts = [data]
        missing = size_bytes - len(data)
        while missing > 0:
            data = os.pread(self._descriptor, missing, position + size_bytes - missing)
            if not data:
                break
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def pread_cached(self, size_bytes: int, position: int) -> bytearray:
        """See `DiskFile`."""
        if size_bytes > PROBED_BYTES_MIN and not self._read_cached(bytearray(1), position):
            return bytearray()
        data = bytearray(size_bytes)
        count = self._read_cached(data, position)
        if count < size_bytes:
            del data[count:]
        return data

    def _read_cached(self, data: bytearray, position: int) -> int:
        """Read what is in memory into `data`; return how much that is.

        A read that is refused makes the kernel read ahead, and finding memory for that takes time, too: so it is told
        not to guess, and a large read is tried with one byte first.
        """
        if self._tells_cached and _NOWAIT is not None:
            if not self._is_random:
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
                self._is_random = True
            try:
                return os.preadv(self._descriptor, (data,), position, _NOWAIT)
            except BlockingIOError:
                return 0
            except OSError as error:
                if error.errno not in _HINT_REFUSED:
                    raise
                self._tells_cached = False
        found = self.pread(len(data), position)
        data[: len(found)] = found
        return len(found)

    def pwrite(self, position: int, *buffers: Buffer) -> int:
        """See `DiskFile`."""
        total = sum(map(len, buffers))
        written = os.pwritev(self._descriptor, buffers, position)
        if written == total:
            return total
        rest = memoryview(b"".join(buffers))
        while written < total:
            count = os.pwrite(self._descriptor, rest[written:], position + written)
            if count == 0:
                raise OSError(errno.EIO, "the disk accepted no more bytes")
            written += count
        return total

    def truncate(self, size_bytes: int) -> None:
        """See `DiskFile`."""
        os.ftruncate(self._descriptor, size_bytes)

    def size(self) -> int:
        """See `DiskFile`."""
        return os.fstat(self._descriptor).st_size

    def start_writeback(self) -> None:
        """See `DiskFile`; Linux only, elsewhere it does nothing."""
        if _sync_file_range is None:
            return
        if _sync_file_range(self._descriptor, 0, 0, _SYNC_FILE_RANGE_WRITE) == 0:
            return
        number = ctypes.get_errno()
        if number not in _HINT_REFUSED:
            # The kernel may have dropped the pages and forget it: never sync this file with success again.
            self._writeback_error = OSError(number, os.strerror(number))

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """See `DiskFile`; nothing where the file system cannot tell what is in memory: readers would wait on the loop."""
        self.pread_cached(1, position)
        if self._tells_cached:
            os.posix_fadvise(self._descriptor, position, size_bytes, os.POSIX_FADV_DONTNEED)

    def fdatasync(self) -> None:
        """See `DiskFile`."""
        if self._writeback_error is not None:
            raise self._writeback_error
        os.fdatasync(self._descriptor)

    def close(self) -> None:
        """See `DiskFile`; a second close does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)


class RealDisk:
    """The file system of this machine."""

    def open(self, path: Path, *, create: bool = False) -> DiskFile:
        """See `Disk`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return RealFile(os.open(path, flags, 0o640))

    def warm(self, path: Path, position: int, size_bytes: int) -> None:
        """See `Disk`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _begin_reading(descriptor, position, size_bytes + WARM_AHEAD_BYTES)
            scratch = memoryview(bytearray(min(size_bytes, WARM_STEP_BYTES)))
            end = position + size_bytes
            while position < end:
                count = os.preadv(descriptor, (scratch[: end - position],), position)
                if count == 0:
                    return
                position += count
        finally:
            os.close(descriptor)

    def exists(self, path: Path) -> bool:
        """See `Disk`."""
        return path.exists()

    def file_size(self, path: Path) -> int:
        """See `Disk`."""
        return path.stat().st_size

    def changed_ms(self, path: Path) -> int:
        """See `Disk`."""
        return path.stat().st_mtime_ns // 1_000_000

    def list_dir(self, path: Path) -> list[str]:
        """See `Disk`."""
        return sorted(entry.name for entry in path.iterdir())

    def is_empty(self, path: Path) -> bool:
        """See `Disk`."""
        with os.scandir(path) as entries:
            return next(entries, None) is None

    def make_dir(self, path: Path) -> None:
        """See `Disk`."""
        path.mkdir(exist_ok=True)

    def make_dirs(self, path: Path) -> None:
        """See `Disk`."""
        make_dirs_durably(self, path)

    def rename(self, source: Path, target: Path) -> None:
        """See `Disk`."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        path.unlink()

    def remove_tree(self, path: Path) -> None:
        """See `Disk`."""
        shutil.rmtree(path)

    def fsync_dir(self, path: Path) -> None:
        """See `Disk`."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read_file(self, path: Path) -> bytes:
        """See `Disk`."""
        return path.read_bytes()

    def volume_bytes(self, path: Path) -> tuple[int, int]:
        """See `Disk`."""
        volume = os.statvfs(path)
        return volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize

    def lock(self, path: Path) -> Lock:
        """See `Disk`."""
        file = path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            file.close()
            raise
        return file

    def write_file_atomic(self, path: Path, data: Buffer) -> None:
        """See `Disk`."""
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        self.fsync_dir(path.parent)


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
    """Make a file and its name durable as this start finds them (INV-DK6); needs no room. Raises OSError."""
    file = disk.open(path)
    try:
        file.fdatasync()
    finally:
        file.close()
    disk.fsync_dir(path.parent)


def _begin_reading(descriptor: int, position: int, size_bytes: int) -> None:
    """Let the kernel read ahead, without waiting: a hint. One call takes no more than the device does at once."""
    if sys.platform != "linux":
        return
    for at in range(position, position + size_bytes, WARM_STEP_BYTES):
        os.posix_fadvise(descriptor, at, WARM_STEP_BYTES, os.POSIX_FADV_WILLNEED)


TEMPORARY_SUFFIX: Final = ".tmp"


class RecentlyUsed(Generic[K, V]):
    """At most `capacity` values by key; the least recently used one is given to `release` and dropped.

    Used from the event loop only.
    """

    __slots__ = ("_capacity", "_release", "_values")

    def __init__(self, capacity: int, release: Callable[[V], None] | None = None) -> None:
        """Hold at most `capacity` (>= 1) values."""
        assert capacity >= 1
        self._capacity = capacity
        self._release = release
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Return how many values are held."""
        return len(self._values)

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return the value, loading it (and dropping another) if need be; valid until the next call."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            return value
        value = load()
        self._values[key] = value
        if len(self._values) > self._capacity:
            self._drop(next(iter(self._values)))
        return value

    def forget(self, key: K) -> None:
        """Drop the value if it is held: its file is about to be removed or cut."""
        if key in self._values:
            self._drop(key)

    def clear(self) -> None:
        """Drop all."""
        while self._values:
            self._drop(next(iter(self._values)))

    def _drop(self, key: K) -> None:
        value = self._values.pop(key)
        if self._release is not None:
            self._release(value)
