"""The page cache of real files: filled and emptied by hand, and asked what the file system tells.

The kernel keeps a page that somebody else has in hand just then, and may drop any page of a busy machine: so both are
done again until `mincore` says that they are done.
"""

import ctypes
import errno
import mmap
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

TRIES_MAX: Final = 100
_mincore: Final = ctypes.CDLL(None, use_errno=True).mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def drop_pages(folder: Path) -> None:
    """Sync all files below `folder` and give their pages back, so that the next read has to wait for the disk."""
    files = _files(folder)
    _until_all(files, _drop, lambda pages: not any(pages), "left" if tells_cached(folder) else "")


def load_pages(folder: Path) -> None:
    """Read all files below `folder` in, so that the next read has no need to wait."""
    _until_all(_files(folder), lambda path: path.read_bytes(), all, "come")


def tells_cached(folder: Path) -> bool:
    """Return whether the file system under `folder` can say that a page is not in memory (ext4, xfs, btrfs can)."""
    path = folder / "probe"
    path.write_bytes(b"x")
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], 0, os.RWF_NOWAIT)
    except BlockingIOError:
        return True
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
        return False
    finally:
        os.close(descriptor)
        path.unlink()
    return True


def _files(folder: Path) -> list[Path]:
    """Return those that are read: SQLite maps its -shm as memory, which stays for as long as it is open."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in found if path.stat().st_size > 0 and not path.name.endswith("-shm")]


def _until_all(
    files: Sequence[Path],
    act: Callable[[Path], object],
    done: Callable[[bytes], bool],
    wanted: str,
) -> None:
    """Act on each file until its pages are as they should be; without `wanted` once, whatever comes of it."""
    left = list(files)
    for _ in range(TRIES_MAX):
        for path in left:
            act(path)
        left = [path for path in left if not done(_pages_in_memory(path))] if wanted else []
        if not left:
            return
    raise AssertionError(f"pages of {left} have not {wanted} the page cache in {TRIES_MAX} tries")


def _drop(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _pages_in_memory(path: Path) -> bytes:
    """Return a byte for each page of a file: 1 if it is in memory. No page is touched for it."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        pages = ctypes.create_string_buffer(-(-len(mapped) // mmap.PAGESIZE))
        first = ctypes.c_char.from_buffer(mapped)
        failed = _mincore(ctypes.addressof(first), len(mapped), pages)
        del first  # a map that something points into cannot be closed
        if failed:
            raise OSError(ctypes.get_errno(), "mincore", str(path))
    return bytes(each & 1 for each in pages.raw)
