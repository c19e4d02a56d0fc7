"""A disk in memory that loses what was not synced, tears writes, and fails on demand.

INV-SD1  after `power_loss` a file holds what was synced, and of each later write any subset of its 4 KiB pages, some
         of them torn: a subset of their 512-byte sectors; a name, of a file or of a folder, holds what `fsync_dir` made of
         it, or what it was changed to since, but a rename happens as a whole or not at all. With a folder goes all in it
         The platter may also have a first part of a file's later writes and nothing after it, or a file's new size with
         zeros where its bytes should be
INV-SD3  a failed `fdatasync` drops the file's dirty pages as clean: a later one succeeds and they are not durable
After `process_killed` everything written is there: the page cache outlives a process.
After `process_killed` everything written is there: the page cache outlives a process.

What `cold` says is not in memory, a read that is not to wait does not get: of a range, any first part.

Handles opened before a crash are dead. Not here: chance (handed in), any rule of the log.
"""

import errno
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from region_broker.ports.disk import Buffer, make_dirs_durably
from tests.simulation.trace import Trace

PAGE_BYTES = 4096
SECTOR_BYTES = 512
TORN_CHANCE = 0.2
FIRST_PART_CHANCE = 0.2
SIZE_FIRST_CHANCE = 0.1
VOLUME_BYTES = 1 << 40
REMEMBERED_READS = 256
"""How many reads what was read in stays in memory."""
GROWING = ("pwrite", "write_file_atomic")

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
        self.changed_ms = 0

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


class Folder:
    """One folder: its names as the page cache has them, and as the platter has."""

    def __init__(self) -> None:
        """Start empty."""
        self.cached: dict[str, Inode | Folder] = {}
        self.durable: dict[str, Inode | Folder] = {}
        self._renames: dict[str, str] = {}

    def rename(self, source: str, target: str) -> None:
        """Rename in the page cache."""
        self.cached[target] = self.cached.pop(source)
        tied, to = self._renamed_with(source), self._renamed_with(target)
        if tied != to:
            self._renames[tied] = to

    def _renamed_with(self, name: str) -> str:
        """Return one name for all that renames have tied together: a rename happens as a whole, or not."""
        while name in self._renames:
            name = self._renames[name]
        return name

    def sync(self) -> None:
        """Put the names onto the platter, not what they name."""
        self.durable = dict(self.cached)
        self._renames = {}

    def clear(self) -> None:
        """Remove everything, below as well, in the page cache."""
        for held in self.cached.values():
            if isinstance(held, Folder):
                held.clear()
        self.cached.clear()

    def lose_power(self, rng: random.Random) -> None:
        """Keep the platter and some of the changed names, below as well."""
        coins: dict[str, bool] = {}
        kept: dict[str, Inode | Folder] = {}
        for name in sorted({*self.cached, *self.durable}):
            was, became = self.durable.get(name), self.cached.get(name)
            coin = coins.setdefault(self._renamed_with(name), rng.random() < 0.5)
            held = became if coin else was
            if held is not None:
                kept[name] = held
        self.cached = kept
        self.sync()
        for held in kept.values():
            held.lose_power(rng)

    def files(self, path: Path) -> Iterator[Path]:
        """Yield the paths of the files, those below as well; this folder's is `path`."""
        for name, held in self.cached.items():
            if isinstance(held, Folder):
                yield from held.files(path / name)
            else:
                yield path / name

    def inodes(self) -> list["Inode"]:
        """Return each file once, those below as well, also those whose removal is not durable yet."""
        found: dict[Inode | Folder, None] = {self: None}
        todo: list[Folder] = [self]
        while todo:
            folder = todo.pop()
            for names in (folder.cached, folder.durable):
                for held in names.values():
                    if held not in found:
                        found[held] = None
                        if isinstance(held, Folder):
                            todo.append(held)
        return [held for held in found if isinstance(held, Inode)]

    def write_out(self) -> None:
        """Make everything durable, below as well."""
        self.sync()
        for held in self.cached.values():
            if isinstance(held, Folder):
                held.write_out()
            else:
                held.sync()


def _apply(
    content: bytearray, changes: list[tuple[int, bytes] | int], rng: random.Random | None
) -> None:
    """Change `content` as the platter is: whole without `rng`, in part with it."""
    keep_chance = 1.0 if rng is None else rng.choice([0.0, 0.5, 0.9, 1.0])
    if rng is not None and changes and rng.random() < FIRST_PART_CHANCE:
        changes, keep_chance = changes[: rng.randrange(len(changes) + 1)], 1.0
    if rng is not None and rng.random() < SIZE_FIRST_CHANCE:
        ends = [each if isinstance(each, int) else each[0] + len(each[1]) for each in changes]
        _cut(content, max(len(content), *ends[-1:], 0))
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
            self._disk.take_room(self._path, position + len(data) - len(inode.cached))
        except OSError:
            self._inode.write(position, data[: len(data) // 2])
            raise
        inode.write(position, data)
        inode.changed_ms = self._disk.wall_ms()
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
        if self._disk.on_sync is not None:
            self._disk.on_sync()
        inode.sync()

    def close(self) -> None:
        """See `DiskFile`."""
        if self._open and self._life == self._disk.life:
            self._disk.open_files -= 1
        self._open = False


class SimulatedLock:
    """A locked file."""

    def __init__(self, locks: "dict[Path, SimulatedLock]", path: Path) -> None:
        """Belong to one life of the disk."""
        self._locks, self._path = locks, path

    def close(self) -> None:
        """See `Lock`."""
        if self._locks.get(self._path) is self:
            del self._locks[self._path]


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
        self.trace: Trace | None = None
        self.cold: Cold | None = None
        self.on_sync: Callable[[], None] | None = None
        """Called as the disk works at a sync, which takes its time."""
        self.warmed: list[tuple[Path, int, int]] = []
        self._reads, self._read_in = 0, dict[Path, int]()
        """What was read in: path, position, size."""
        self.dropped: list[tuple[Path, int, int]] = []
        """What was let go, alike."""
        self.room_bytes: int | None = None
        """How much more fits onto it; None: as much as anybody wants."""
        self.wall_ms: Callable[[], int] = lambda: 0
        """What stamps changes of files."""
        self._root = Folder()
        self._locks: dict[Path, SimulatedLock] = {}

    @property
    def held_bytes(self) -> int:
        """Return what all files take of the memory, also those whose removal is not durable yet."""
        return sum(inode.held_bytes() for inode in self._root.inodes())

    def _find(self, path: Path) -> Inode | Folder | None:
        """Return what has that name; None if there is nothing."""
        held: Inode | Folder | None = self._root
        for name in path.parts[1:]:
            held = held.cached.get(name) if isinstance(held, Folder) else None
        return held

    def _inode(self, path: Path) -> Inode:
        held = self._find(path)
        if not isinstance(held, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return held

    def _folder(self, path: Path) -> Folder:
        held = self._find(path)
        if not isinstance(held, Folder):
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
        return held

    def step(self, operation: str, path: Path) -> None:
        """Count an operation; crash or fail if that was asked for."""
        self.operations += 1
        if self.trace is not None:
            self.trace.note(operation, str(path))
        if self.crash_at is not None and self.operations >= self.crash_at:
            self.crashed = True
        if self.crashed:
            raise Crashed
        if self.fault is not None:
            self.fault(operation, path)

    def take_room(self, path: Path, size_bytes: int) -> None:
        """Let a file grow by that much; raises OSError where it does not fit."""
        if self.room_bytes is not None and size_bytes > 0:
            if size_bytes > self.room_bytes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            self.room_bytes -= size_bytes

    def crash_after(self, operation_count: int) -> None:
        """Raise Crashed at the operation after the next `operation_count`."""
        self.crash_at = self.operations + operation_count + 1

    def fail_by_chance(
        self, rng: random.Random, chance: float, errors: Sequence[int] = (errno.EIO,),
        operations: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """Let each operation, or each of `operations`, fail with that chance from now on, until the process ends or
        `fault` is cleared.

        A write may fail for want of space or by the device; reads, syncs and names by the device only.
        """

        def fail(operation: str, path: Path) -> None:
            if operations is not None and operation not in operations:
                return
            if rng.random() < chance:
                grows = operation in GROWING
                number = rng.choice(errors) if grows else errno.EIO
                raise OSError(number, os.strerror(number), str(path))

        self.fault = fail

    def forget_by_chance(self, rng: random.Random, chance: float) -> None:
        """Let any read that is not to wait lack something with that chance from now on.

        Of a file that was read in, nothing is lacking for the next `REMEMBERED_READS`: who reads many files for one answer
        begins again for each that is not in memory, and would come to no end where it forgets the others meanwhile.
        """

        def cold(path: Path, size_bytes: int) -> int:
            self._reads += 1
            if path in self._read_in and self._reads - self._read_in[path] <= REMEMBERED_READS:
                return size_bytes
            return rng.randrange(size_bytes + 1) if rng.random() < chance else size_bytes

        self.cold = cold

    def power_loss(self, rng: random.Random) -> None:
        """Lose what was not synced, by chance in part kept."""
        self.process_killed()
        self._root.lose_power(rng)

    def write_out(self) -> None:
        """Put all that the page cache holds onto the platter, as the kernel does by itself after a while."""
        self._root.write_out()

    def process_killed(self) -> None:
        """End the process: handles are dead, faults are over, the page cache stays."""
        self.life += 1
        self.open_files = 0
        self._locks.clear()
        self.crash_at = None
        self.crashed = False
        self.fault = None

    def content(self, path: Path) -> bytearray:
        """Return a file's bytes as the process sees them, to look at and to damage."""
        return self._inode(path).cached

    def is_durable(self, path: Path) -> bool:
        """Return whether a file is on the platter as the process sees it, with every name that leads to it."""
        held: Inode | Folder | None = self._root
        for name in path.parts[1:]:
            if not isinstance(held, Folder) or held.durable.get(name) is not held.cached.get(name):
                return False
            held = held.durable.get(name)
        return isinstance(held, Inode) and not held.unsynced

    def files_under(self, folder: Path) -> list[Path]:
        """Return every file below `folder`."""
        return sorted(self._folder(folder).files(folder))

    def damage(self, path: Path, position: int) -> None:
        """Flip one bit, in cache and on the platter."""
        inode = self._inode(path)
        inode.cached[position] ^= 0x10
        if position < len(inode.durable):
            inode.durable[position] ^= 0x10

    def open(self, path: Path, *, create: bool = False) -> SimulatedFile:
        """See `Disk`."""
        self.step("open", path)
        inode = self._find(path)
        if inode is None and create:
            inode = self._folder(path.parent).cached[path.name] = Inode()
            inode.changed_ms = self.wall_ms()
        if not isinstance(inode, Inode):
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
        return SimulatedFile(self, path, inode)

    def warm(self, path: Path, position: int, size_bytes: int) -> None:
        """See `Disk`; whether it is in memory afterwards, `cold` says."""
        self.step("warm", path)
        self.warmed.append((path, position, size_bytes))
        self._read_in[path] = self._reads
        self._inode(path)

    def exists(self, path: Path) -> bool:
        """See `Disk`."""
        return self._find(path) is not None

    def file_size(self, path: Path) -> int:
        """See `Disk`."""
        return len(self._inode(path).cached)

    def changed_ms(self, path: Path) -> int:
        """See `Disk`."""
        return self._inode(path).changed_ms

    def list_dir(self, path: Path) -> list[str]:
        """See `Disk`; a folder that is not there is empty."""
        held = self._find(path)
        return sorted(held.cached) if isinstance(held, Folder) else []

    def is_empty(self, path: Path) -> bool:
        """See `Disk`."""
        return not self._folder(path).cached

    def make_dir(self, path: Path) -> None:
        """See `Disk`."""
        self.step("make_dir", path)
        self._folder(path.parent).cached.setdefault(path.name, Folder())

    def make_dirs(self, path: Path) -> None:
        """See `Disk`: in the steps of the real one."""
        make_dirs_durably(self, path)

    def rename(self, source: Path, target: Path) -> None:
        """See `Disk`; within a folder only. A folder moves with all that it holds."""
        self.step("rename", source)
        assert source.parent == target.parent, (source, target)
        found, replaced = self._find(source), self._find(target)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(source))
        if isinstance(replaced, Folder) and replaced.cached:
            raise OSError(errno.ENOTEMPTY, "the folder is not empty", str(target))
        self._folder(source.parent).rename(source.name, target.name)

    def remove(self, path: Path) -> None:
        """See `Disk`."""
        self.step("remove", path)
        self._inode(path)
        del self._folder(path.parent).cached[path.name]

    def remove_tree(self, path: Path) -> None:
        """See `Disk`; durable after a sync of its parent, until then any part of it may come back."""
        self.step("remove_tree", path)
        self._folder(path).clear()
        del self._folder(path.parent).cached[path.name]

    def fsync_dir(self, path: Path) -> None:
        """See `Disk`."""
        self.step("fsync_dir", path)
        self._folder(path).sync()

    def read_file(self, path: Path) -> bytes:
        """See `Disk`."""
        self.step("read_file", path)
        return bytes(self._inode(path).cached)

    def volume_bytes(self, path: Path) -> tuple[int, int]:
        """See `Disk`."""
        self.step("volume_bytes", path)
        used_bytes = sum(len(inode.cached) for inode in self._root.inodes())
        free_bytes = VOLUME_BYTES - used_bytes if self.room_bytes is None else self.room_bytes
        return VOLUME_BYTES, free_bytes

    def lock(self, path: Path) -> "SimulatedLock":
        """See `Disk`; a process that ends lets go."""
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", str(path))
        self.open(path, create=True).close()
        self._locks[path] = lock = SimulatedLock(self._locks, path)
        return lock

    def commit_file(self, path: Path, data: bytes) -> None:
        """Change the whole content durably, or nothing, as a database does that keeps a journal beside its file."""
        if not self.exists(path):
            self.write_file_atomic(path, data)
            return
        self.step("pwrite", path)
        self.take_room(path, len(data))  # of its journal
        self.step("fdatasync", path)
        inode = self._inode(path)
        inode.cached, inode.durable = bytearray(data), bytearray(data)
        inode.unsynced.clear()
        inode.changed_ms = self.wall_ms()

    def write_file_atomic(self, path: Path, data: Buffer) -> None:
        """See `Disk`: a whole new file, then its name, in two steps: between them it is there, and not durably."""
        self.step("write_file_atomic", path)
        self.take_room(path, len(bytes(data)))
        inode = Inode()
        inode.cached, inode.durable = bytearray(data), bytearray(data)
        inode.changed_ms = self.wall_ms()
        self._folder(path.parent).cached[path.name] = inode
        self.fsync_dir(path.parent)
