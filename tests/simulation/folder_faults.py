"""What can happen to a data folder while its node is down: emptied, exchanged, copied, restored, halved."""

from dataclasses import dataclass
from pathlib import Path

from idempotency.ports import Clock
from tests.simulation.disk import SimulatedDisk
from tests.simulation.region_pair import Region

METADATA = "metadata.db"


@dataclass(frozen=True)
class FolderCopy:
    """What a data folder held at some moment, by path below it."""

    files: dict[str, bytes]


def copy_of(region: Region) -> FolderCopy:
    """Return a copy of the folder of a region that is down."""
    files = {
        str(path.relative_to(region.folder)): bytes(region.disk.content(path))
        for path in region.disk.files_under(region.folder)
    }
    return FolderCopy(files)


def empty_folder(region: Region) -> None:
    """Let a region that is down find nothing of what it had: a disk that is new, or not mounted."""
    _forget(region.disk, region.folder)


def restore(region: Region, copy: FolderCopy) -> None:
    """Let a region that is down find `copy` in place of its folder: its own older one, or another region's.

    A full disk has room for it, as what was there is gone; whoever copies tries again where it fails.
    """
    empty_folder(region)
    disk = region.disk
    room_bytes, disk.room_bytes = disk.room_bytes, None
    fault, disk.fault = disk.fault, None
    for name, content in copy.files.items():
        path = region.folder / name
        disk.make_dirs(path.parent)
        disk.write_file_atomic(path, content)
    disk.room_bytes, disk.fault = room_bytes, fault


def restore_part(region: Region, copy: FolderCopy, name: str) -> None:
    """Let a region that is down find one file as it was in `copy`."""
    region.disk.write_file_atomic(region.folder / name, copy.files[name])


class ClockSetBack:
    """A clock whose wall time a day was taken from."""

    def __init__(self, clock: Clock) -> None:
        """Set `clock` back."""
        self._clock = clock

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._clock.wall_ms() - 24 * 3600 * 1000

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return self._clock.monotonic_ms()

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock`."""
        await self._clock.sleep_ms(duration_ms)


def lose_metadata(region: Region) -> None:
    """Remove the metadata of a region that is down, and nothing else."""
    lose_file(region, METADATA)


def lose_logs(region: Region) -> None:
    """Remove the logs of a region that is down, and nothing else."""
    _forget(region.disk, region.folder / "logs")


def lose_log(region: Region, topic: str, partition: int) -> None:
    """Remove the folder of one partition of a region that is down."""
    topic_id = region.node.storage.metadata.image.topics[topic].topic_id
    _forget(region.disk, region.node.storage.partitions.folder_of(topic_id, partition))


def lose_file(region: Region, name: str) -> None:
    """Remove one file of the data folder of a region that is down."""
    region.disk.remove(region.folder / name)
    region.disk.fsync_dir(region.folder)


def _forget(disk: SimulatedDisk, folder: Path) -> None:
    if disk.exists(folder):
        disk.remove_tree(folder)
