"""A disk in memory that loses what was not synced, tears writes, and fails on demand.

INV-SD1  after `power_loss` a file holds what was synced, and of each later write any subset of its 4 KiB pages, some
         of them torn: a subset of their 512-byte sectors; a name holds what `fsync_dir` made of it, or what it was
         changed to since, but a rename happens as a whole or not at all
INV-SD2  after `process_killed` everything written is there: the page cache outlives a process
INV-SD3  a failed `fdatasync` drops the file's dirty pages as clean: a later one succeeds and they are not durable

INV-SD4  what `cold` says is not in memory, a read that is not to wait does not get: of a range, any first part

Handles opened before a crash are dead. Not here: chance (handed in), any rule of the log.
"""

import errno
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from region_broker.log.disk import Buffer

PAGE_BYTES = 4096
SECTOR_BYTES = 512
TORN_CHANCE = 0.2
VOLUME_BYTES = 1 << 40

Fault = Callable[[str, Path], None]
"""Called before each operation with its name and path; raises what is to go wrong."""


Cold = Callable[[Path, int], int]
"""Asked with path and size of each read that is not to wait; returns how many of its bytes are in memory."""


class Crashed(BaseException):
    """The process ends here; not an error that anybody may handle."""


class Inode:
    """One file: what the page cache holds, what the platter holds, and the writes between."""

    def __init__(self) -> None:
        """Start empty."""
        self.cached = bytearray()
        self.durable = bytearray()
        self.unsynced: list[tuple[int, bytes] | int] = []

    def write(self, position: int, data: bytes) -> None:
        """Write into the page cache."""
        _write_into(self.cached, position, data)
        self.unsynced.append((position, data))

    def truncate(self, size_bytes: int) -> None:
        """Cut in the page cache."""
        _cut(self.cached, size_bytes)
        self.unsynced.append(size_bytes)

    def sync(self) -> None:
        """Replay the writes since the last sync onto the platter; those of a failed sync are lost."""
        written, self.unsynced = self.unsynced, []  # syncs run in threads, beside new writes
        _apply(self.durable, written, None)

    def held_bytes(self) -> int:
        """Return what this file takes of the memory, with the room that its arrays have to grow."""
        unsynced = sum(len(change[1]) for change in self.unsynced if not isinstance(change, int))
        return sys.getsizeof(self.cached) + sys.getsizeof(self.durable) + unsynced

    def lose_power(self, rng: random.Random) -> None:
        """Keep the platter and some of the unsynced pages."""
        _apply(self.durable, self.unsynced, rng)
        self.cached = bytearray(self.durable)
        self.unsynced.clear()


def _apply(
    content: bytearray, changes: list[tuple[int, bytes] | int], rng: random.Random | None
) -> None:
    """Change `content` as the platter is: whole without `rng`, in part with it."""
    keep_chance = 1.0 if rng is None else rng.choice([0.0, 0.5, 0.9, 1.0])
    for change in changes:
        if isinstance(change, int):
            if rng is None or rng.random() < keep_chance:
                _cut(content, change)
            continue
        position, data = change
        if rng is None:
            _write_into(content, position, data)
            continue
        while data:
            room = PAGE_BYTES - position % PAGE_BYTES
            if rng.random() < keep_chance:
                _write_page(content, position, data[:room], rng)
            position, data = position + len(data[:room]), data[room:]


def _write_page(content: bytearray, position: int, data: bytes, rng: random.Random) -> None:
    """Write within one page; a page that is written as the power goes may be torn between its sectors."""
    if rng.random() >= TORN_CHANCE:
        _write_into(content, position, data)
        return
    while data:
        room = SECTOR_BYTES - position % SECTOR_BYTES
        if rng.random() < 0.5:
            _write_into(content, position, data[:room])
        position, data = position + len(data[:room]), data[room:]


def _write_into(content: bytearray, position: int, data: bytes) -> None:
    if len(content) < position:
        content.extend(bytes(position - len(content)))
    content[position : position + len(data)] = data


def _cut(content: bytearray, size_bytes: int) -> None:
    del content[size_bytes:]
    content.extend(bytes(size_bytes - len(content)))


class SimulatedFile:
    """A `DiskFile`."""

    def __init__(self, disk: "SimulatedDisk", path: Path, inode: Inode) -> None:
        """Open `inode` in the disk's present life."""
        self._disk = disk
        self._path = path
        self._inode = inode
        self._life = disk.life
        self._open = True
        disk.open_files += 1

    def _expect_open(self, operation: str) -> None:
        if not self._open or self._life != self._disk.life:
            raise OSError(errno.EBADF, f"{operation} on a closed file: {self._path}")

    def _use(self, operation: str) -> Inode:
        self._expect_open(operation)
        self._disk.step(operation, self._path)
        return self._inode

    def pread(self, size_bytes: int, position: int) -> bytes:
        """See `DiskFile`."""
        inode = self._use("pread")
        self._disk.bytes_read += min(size_bytes, max(len(inode.cached) - position, 0))
        return bytes(inode.cached[position : position + size_bytes])

    def pread_cached(self, size_bytes: int, position: int) -> bytearray:
        """See `DiskFile`: as much of it as `cold` leaves."""
        data = self._use("pread_cached").cached[position : position + size_bytes]
        self._disk.bytes_read += len(data)
        if self._disk.cold is not None:
            del data[self._disk.cold(self._path, len(data)) :]
        return data

    def pwrite(self, position: int, *buffers: Buffer) -> int:
        """See `DiskFile`; a full disk takes half of the bytes."""
        data = b"".join(buffers)
        self._expect_open("pwrite")  # a process that was killed writes nothing, not even half
        try:
            inode = self._use("pwrite")
        except OSError:
            self._inode.write(position, data[: len(data) // 2])
            raise
        inode.write(position, data)
        return len(data)

    def truncate(self, size_bytes: int) -> None:
        """See `DiskFile`."""
        self._use("truncate").truncate(size_bytes)

    def size(self) -> int:
        """See `DiskFile`."""
        return len(self._use("size").cached)

    def start_writeback(self) -> None:
        """See `DiskFile`: a hint that changes nothing here."""

    def drop_cached(self, position: int, size_bytes: int) -> None:
        """See `DiskFile`: noted, and a hint that changes nothing here."""
        self._use("drop_cached")
        self._disk.dropped.append((self._path, position, size_bytes))

    def fdatasync(self) -> None:
        """See `DiskFile`; a failure drops the dirty pages for good (INV-SD3)."""
        self._expect_open("fdatasync")
        try:
            inode = self._use("fdatasync")
        except OSError:
            self._inode.unsynced.clear()
            raise
        inode.sync()

    def close(self) -> None:
        """See `DiskFile`."""
        if self._open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._open = False


class SimulatedDisk:
    """A `Disk`. `fault` sees every operation; `bytes_read` counts reads through files, `open_files` those not closed."""

    def __init__(self) -> None:
        """Start with an empty root."""
        self.life = 0
        self.bytes_read = 0
        self.open_files = 0
        self.operations = 0
        self.crash_at: int | None = None
        self.crashed = False
        """Whether this life of the process is over, though it may not know it yet."""
        self.fault: Fault | None = None
        self.cold: Cold | None = None
        self.warmed: list[tuple[Path, int, int]] = []
        """What was read in: path, position, size."""
        self.dropped: list[tuple[Path, int, int]] = []
        """What was let go, alike."""
        self._names: dict[Path, Inode] = {}
        self._durable_names: dict[Path, Inode] = {}
        self._folders: set[Path] = {Path("/")}
        self._renames: dict[Path, Path] = {}

    @property
    def held_bytes(self) -> int:
        """Return what all files take of the memory, also those whose removal is not durable yet."""
        named = [*self._names.values(), *self._durable_names.values()]
        return sum(inode.held_bytes() for inode in dict.fromkeys(named))

    def step(self, operation: str, path: Path) -> None:
        """Count an operation; crash or fail if that was asked for."""
        self.operations += 1
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.crashed = True
        if self.crashed:
            raise Crashed
        if self.fault is not None:
            self.fault(operation, path)

    def crash_after(self, operation_count: int) -> None:
        """Raise Crashed at the operation after the next `operation_count`."""
        self.crash_at = self.operations + operation_count + 1

    def fail_by_chance(
        self, rng: random.Random, chance: float, errors: Sequence[int] = (errno.EIO,)
    ) -> None:
        """Let each operation fail with that chance from now on, until the process ends or `fault` is cleared.

        A write may fail for want of space or by the device; reads, syncs and names by the device only.
        """

        def fail(operation: str, path: Path) -> None:
            if rng.random() < chance:
                grows = operation in ("pwrite", "write_file_atomic")
                number = rng.choice(errors) if grows else errno.EIO
                raise OSError(number, os.strerror(number), str(path))

        self.fault = fail

    def forget_by_chance(self, rng: random.Random, chance: float) -> None:
        """Let any read that is not to wait lack something with that chance from now on."""

        def cold(_path: Path, size_bytes: int) -> int:
            return rng.randrange(size_bytes + 1) if rng.random() < chance else size_bytes

        self.cold = cold

    def power_loss(self, rng: random.Random) -> None:
        """Lose what was not synced, by chance in part kept."""
        self.process_killed()
        coins: dict[Path, bool] = {}
        for path in sorted({*self._names, *self._durable_names}):
            was, became = self._durable_names.get(path), self._names.get(path)
            coin = coins.setdefault(self._renamed_with(path), rng.random() < 0.5)
            kept = became if was is became or coin else was
            if kept is None:
                self._names.pop(path, None)
            else:
                self._names[path] = kept
        for inode in dict.fromkeys(self._names.values()):
            inode.lose_power(rng)
        self._durable_names = dict(self._names)
        self._renames.clear()

    def write_out(self) -> None:
        """Put all that the page cache holds onto the platter, as the kernel does by itself after a while."""
        for inode in dict.fromkeys(self._names.values()):
            inode.sync()
        self._durable_names = dict(self._names)
        self._renames.clear()

    def _renamed_with(self, path: Path) -> Path:
        """Return one path for all that renames have tied together: a rename happens as a whole, or not."""
        while path in self._renames:
            path = self._renames[path]
        return path

    def process_killed(self) -> None:
        """End the process: handles are dead, faults are over, the page cache stays."""
        self.life += 1
        self.open_files = 0
        self.crash_at = None
        self.crashed = False
        self.fault = None

    def content(self, path: Path) -> bytearray:
        """Return a file's bytes as the process sees them, to look at and to damage."""
        return self._names[path].cached

    def files_under(self, folder: Path) -> list[Path]:
        """Return every file below `folder`."""
        return sorted(path for path in self._names if path.is_relative_to(folder))

    def damage(self, path: Path, position: int) -> None:
        """Flip one bit, in cache and on the platter."""
        inode = self._names[path]
        inode.cached[position] ^= 0x10
        if position < len(inode.durable):
            inode.durable[position] ^= 0x10

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        """See `Disk`."""
        self.step("open", path)
        inode = self._names.get(path)
        if inode is None:
            if not create or path.parent not in self._folders:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            inode = self._names[path] = Inode()
        return SimulatedFile(self, path, inode)

    def warm(self, path: Path, position: int, size_bytes: int) -> None:
        """See `Disk`; whether it is in memory afterwards, `cold` says."""
        self.step("warm", path)
        self.warmed.append((path, position, size_bytes))
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def exists(self, path: Path) -> bool:
        """See `Disk`."""
        return path in self._names or path in self._folders

    def file_size(self, path: Path) -> int:
        """See `Disk`."""
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return len(self._names[path].cached)

    def list_dir(self, path: Path) -> list[str]:
        """See `Disk`."""
        return sorted(p.name for p in [*self._names, *self._folders] if p.parent == path != p)

    def make_dirs(self, path: Path) -> None:
        """See `Disk`."""
        self._folders |= {path, *path.parents}

    def rename(self, source: Path, target: Path) -> None:
        """See `Disk`; a folder moves with all that it holds, at once durably."""
        self.step("rename", source)
        if source in self._folders:
            self._move_folder(source, target)
        else:
            self._names[target] = self._names.pop(source)
            tied, to = self._renamed_with(source), self._renamed_with(target)
            if tied != to:
                self._renames[tied] = to

    def _move_folder(self, source: Path, target: Path) -> None:
        def moved(path: Path) -> Path:
            return target / path.relative_to(source) if path.is_relative_to(source) else path

        self._folders = {moved(path) for path in self._folders}
        self._names = {moved(path): inode for path, inode in self._names.items()}
        self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        self.step("remove", path)
        if self._names.pop(path, None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))

    def remove_tree(self, path: Path) -> None:
        """See `Disk`; at once durable."""
        self.step("remove_tree", path)
        for names in (self._names, self._durable_names):
            for held in [held for held in names if held.is_relative_to(path)]:
                del names[held]
        self._folders = {folder for folder in self._folders if not folder.is_relative_to(path)}

    def fsync_dir(self, path: Path) -> None:
        """See `Disk`."""
        self.step("fsync_dir", path)
        for name in [name for name in list(self._durable_names) if name.parent == path]:
            if name not in self._names:
                del self._durable_names[name]
        for name, inode in list(self._names.items()):  # syncs run in threads
            if name.parent == path:
                self._durable_names[name] = inode
        self._renames = {old: new for old, new in self._renames.items() if old.parent != path}

    def read_file(self, path: Path) -> bytes:
        """See `Disk`."""
        self.step("read_file", path)
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return bytes(self._names[path].cached)

    def volume_bytes(self, path: Path) -> tuple[int, int]:
        """See `Disk`."""
        self.step("volume_bytes", path)
        used_bytes = sum(len(inode.cached) for inode in self._names.values())
        return VOLUME_BYTES, VOLUME_BYTES - used_bytes

    def write_file_atomic(self, path: Path, data: Buffer) -> None:
        """See `Disk`: durable when it returns, untouched when it raises."""
        self.step("write_file_atomic", path)
        inode = Inode()
        inode.write(0, bytes(data))
        inode.sync()
        self._names[path] = self._durable_names[path] = inode
