"""Of which format the folder of a node's logs is: the file `format` in it, "tidemark-log 2".

INV-T1  the folder says its format version; a newer one is refused before anything in it is touched

Not here: what lies beside it (`partitions.table`), formats of single files.
"""

from pathlib import Path
from typing import Final

from region_broker.log.failures import NewerFormat
from region_broker.ports.disk import Disk

FORMAT_NAME: Final = "format"
FORMAT_VERSION: Final = 2
"""2: appends may be in the journal only. A folder of version 1 is one whose journal is empty."""
FORMAT_WORD: Final = "tidemark-log"


def check_format(disk: Disk, data_dir: Path) -> None:
    """Make sure that the folder is of our format, and mark an empty one as such. Raises NewerFormat."""
    disk.make_dirs(data_dir)
    path = data_dir / FORMAT_NAME
    if not disk.exists(path):
        others = [name for name in disk.list_dir(data_dir) if not name.endswith(".tmp")]
        if others:
            raise NewerFormat(
                f"{data_dir} is not empty ({', '.join(others[:3])}) but has no {FORMAT_NAME!r} file: it is "
                "not a Tidemark log folder; choose another data folder"
            )
        _write_format(disk, path)
        return
    word, _, version = disk.read_file(path).decode("utf-8", "replace").strip().partition(" ")
    if word != FORMAT_WORD or not version.isdecimal():
        raise NewerFormat(f"{path} does not name a Tidemark log format: choose another data folder")
    if int(version) > FORMAT_VERSION:
        raise NewerFormat(
            f"{data_dir} was written in log format {version}, this version knows {FORMAT_VERSION}: "
            "start the newer Tidemark that wrote it; nothing was changed"
        )
    if int(version) < FORMAT_VERSION:
        _write_format(disk, path)


def _write_format(disk: Disk, path: Path) -> None:
    disk.write_file_atomic(path, f"{FORMAT_WORD} {FORMAT_VERSION}\n".encode())
