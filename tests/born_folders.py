"""Data folders with a history, for worlds of tests that begin with a cluster: what `tidemark dev` does for its own (T32)."""

import random
from pathlib import Path
from uuid import UUID

import msgspec

from geo_replicator.folder_life import Birth
from region_broker.ports.disk import Disk
from region_broker.region.birth.identity_file import (
    FolderRecord,
    read_identity,
    write_identity,
)
from region_broker.region.birth.newborn import first_region_epoch, new_identity


class FolderChance:
    """`Chance` of folder ids, the same in every run; draws nothing from a test's own chance."""

    def __init__(self, seed: str) -> None:
        """Draw from `seed`."""
        self._random = random.Random(seed)

    def uniform(self, low: float, high: float) -> float:
        """See `Chance`."""
        return self._random.uniform(low, high)

    def randbits(self, bit_count: int) -> int:
        """See `Chance`."""
        return self._random.getrandbits(bit_count)

    def uuid(self) -> UUID:
        """See `Chance`."""
        return UUID(int=self._random.getrandbits(128), version=4)


def birth_at(region: str, ordinal: int) -> Birth:
    """Return the birth of the tests' cluster at `region`."""
    return Birth(
        birth_id=FolderChance(f"birth at {region}").uuid().hex,
        region=region,
        region_epoch=first_region_epoch(ordinal),
        wall_ms=1,
    )


def with_history(
    disk: Disk, folder: Path, *, cluster_id: str, region: str, node_id: int, history: Birth
) -> FolderRecord:
    """Make `folder` one that holds `history` and was not started yet, unless it has an identity."""
    disk.make_dirs(folder)
    identity = read_identity(disk, folder)
    if identity is None:
        identity = new_identity(cluster_id, region, node_id, FolderChance(f"folder of {region}"))
        born = history.region == region
        identity = msgspec.structs.replace(
            identity, born=history if born else None, joined=None if born else history
        )
        write_identity(disk, folder, identity)
    return FolderRecord(disk, folder, identity)
