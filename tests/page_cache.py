"""The page cache of real files: emptied by hand, and asked what the file system tells."""

import errno
import os
from pathlib import Path


def drop_pages(folder: Path) -> None:
    """Sync all files below `folder` and give their pages back, so that the next read has to wait for the disk."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.stat().st_size > 0:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


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
