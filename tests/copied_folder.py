"""A copy of a dead node's data folder, as a backup or a snapshot of the volume is."""

import shutil
from pathlib import Path


class CopiedFolder:
    """What the folder held when it was copied. Nothing may run on it, now or at `restore`."""

    def __init__(self, folder: Path) -> None:
        """Copy it, to beside it."""
        self._folder, self._copy = folder, folder.with_name(f"{folder.name}.copy")
        shutil.copytree(self._folder, self._copy)

    def restore(self) -> None:
        """Let the folder be as it was."""
        shutil.rmtree(self._folder)
        shutil.copytree(self._copy, self._folder)
