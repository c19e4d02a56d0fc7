"""Files that commands change while others may, and that nodes read: the file of tokens, the file of keys.

INV-CCH1  one command at a time changes a file: it reads the file behind the lock, so nothing that another one has done is lost
INV-CCH2  a file is replaced as a whole and durably, or not at all, and whoever could read it still can: its mode stays, and its owner where root
          changes it, as a node runs as another user; no link that stands in the way is followed

Not here: what is in them.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other commands from changing a file; waits for them (INV-CCH1). Raises OSError."""
    beside = path.with_name(f"{path.name}.lock")
    # By the descriptor, and through no link: whoever may write to the folder must not choose what root gives away.
    lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        if os.geteuid() == 0:  # whoever may write here must be able to lock, too
            folder = path.parent.stat()
            os.fchown(lock, folder.st_uid, folder.st_gid)
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace_file(path: Path, data: bytes, *, new_mode: int, mode_max: int) -> None:
    """Put `data` in a file's place, with its mode as far as `mode_max` has it; `new_mode`: where there is none (INV-CCH2). Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, new_mode), "wb") as file:
        file.write(data)
        if path.exists():
            found = path.stat()
            os.fchmod(file.fileno(), found.st_mode & mode_max)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), found.st_uid, found.st_gid)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
