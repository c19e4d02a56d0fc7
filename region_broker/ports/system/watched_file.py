"""A small file that others replace: its bytes, whenever they may be others than before.

Not here: what it holds.
"""

from pathlib import Path


class WatchedFile:
    """`look` costs one call of the system while nothing changes."""

    def __init__(self, path: Path, bytes_max: int) -> None:
        """Watch `path`; of a larger file one byte more than `bytes_max` is read."""
        self._path = path
        self._bytes_max = bytes_max
        self._seen: tuple[int, int, int] | None = None

    def look(self) -> bytes | None:
        """Return what the file holds, None where it is the one of the last call; raises OSError."""
        found = self._path.stat()
        mark = (found.st_ino, found.st_mtime_ns, found.st_size)
        if mark == self._seen:
            return None
        with self._path.open("rb") as file:
            data = file.read(self._bytes_max + 1)
        self._seen = mark
        return data
