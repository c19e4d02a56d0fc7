"""A disk for each node: an ext4 file system in a file, which can be filled; and one that answers EIO to what a node writes.

A file system is mounted in the drill's own mount namespace (`network.begin_inside`), so it is gone when the drill ends; its file stays
in the folder and can be mounted again. EIO comes from a library that is compiled here and preloaded into the node (`failing_disk.c`):
device-mapper is not to be had everywhere. It fails writes, truncations and syncs, not reads.

Not here: when (`stage`).
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from chaos.nodes.network import run

DISK_BYTES: Final = 1 << 30
_PART_BYTES: Final = 1 << 20
_SOURCE: Final = Path(__file__).with_name("failing_disk.c")


class SmallDisks:
    """One disk for each node. To be used inside only."""

    def __init__(self, folder: Path, data_dirs: dict[str, Path]) -> None:
        """Make them in `folder`, and let each data folder lie on its own; raises OSError."""
        self._fillers: dict[str, Path] = {}
        for name, data_dir in data_dirs.items():
            title = name.replace("/", "-")
            image, mounted = folder / f"{title}.ext4", folder / title
            mounted.mkdir(parents=True)
            with image.open("wb") as file:
                file.truncate(DISK_BYTES)
            run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            run("mount", "-o", "loop", str(image), str(mounted))
            (mounted / "data").mkdir()
            data_dir.parent.mkdir(parents=True, exist_ok=True)
            data_dir.symlink_to(mounted / "data")
            self._fillers[name] = mounted / "filler"

    def fill(self, name: str) -> None:
        """Take all room that there is."""
        with self._fillers[name].open("wb") as file:
            part, at = DISK_BYTES, 0
            while part >= _PART_BYTES // 256:
                try:
                    os.posix_fallocate(file.fileno(), at, part)
                    at += part
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    part //= 2

    def free(self, name: str) -> None:
        """Give it back."""
        self._fillers[name].unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount all, once no node runs: what they hold can be read by `mount -o loop` of their files."""
        for filler in self._fillers.values():
            run("umount", str(filler.parent))


class FailingDisks:
    """The library, and a flag for each node."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        """Compile it into `folder`; raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        self._library = folder / "failing_disk.so"
        run("gcc", "-shared", "-fPIC", "-O2", "-w", "-o", str(self._library), str(_SOURCE), "-ldl")
        self._flags = {name: folder / f"fail-{name.replace('/', '-')}" for name in names}

    def environment(self, name: str) -> dict[str, str]:
        """Return what a node's process must be started with."""
        return {"LD_PRELOAD": str(self._library), "CHAOS_EIO_WHILE": str(self._flags[name])}

    def fail(self, name: str) -> None:
        """Let a node's writes fail from now on."""
        self._flags[name].touch()

    def mend(self, name: str) -> None:
        """Let them work again."""
        self._flags[name].unlink(missing_ok=True)
