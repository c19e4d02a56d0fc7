"""The disk port on POSIX.

Not here: what is promised (`ports.disk`), simulated disks (tests).
"""

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from region_broker.ports.disk import (
    TEMPORARY_SUFFIX,
    Buffer,
    DiskFile,
    Lock,
    make_dirs_durably,
)

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
PROBED_BYTES_MIN: Final = 64 * 1024
WARM_STEP_BYTES: Final = 256 * 1024
WARM_AHEAD_BYTES: Final = 4 << 20


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


def _begin_reading(descriptor: int, position: int, size_bytes: int) -> None:
    """Let the kernel read ahead, without waiting: a hint. One call takes no more than the device does at once."""
    if sys.platform != "linux":
        return
    for at in range(position, position + size_bytes, WARM_STEP_BYTES):
        os.posix_fadvise(descriptor, at, WARM_STEP_BYTES, os.POSIX_FADV_WILLNEED)
