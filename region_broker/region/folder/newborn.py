"""Writing a birth into a folder that has no history (T32).

Not here: whether it may be (`node.birth`); a local cluster and tests write it into folders that they made.
"""

from pathlib import Path

import msgspec

from geo_replicator.folder_life import Birth, FolderIdentity
from idempotency import fencing
from idempotency.identity import RegionEpoch
from idempotency.ports import Chance, Clock
from region_broker.ports.disk import Disk
from region_broker.region.folder.identity_file import write_identity


def first_region_epoch(ordinal: int) -> RegionEpoch:
    """Return the region epoch under which a cluster begins that is born at the region with `ordinal`."""
    return fencing.region_epoch(fencing.FIRST_REGION_NUMBER, ordinal)


def new_identity(cluster_id: str, region: str, node_id: int, chance: Chance) -> FolderIdentity:
    """Return the identity of a folder that a node begins; it has no history."""
    folder_id = chance.uuid().hex
    return FolderIdentity(
        cluster_id=cluster_id, region=region, node_id=node_id, folder_id=folder_id
    )


def be_born(
    identity: FolderIdentity, ordinal: int, folder: Path, disk: Disk, chance: Chance, clock: Clock
) -> Birth:
    """Write the birth of the cluster into `folder`, which exists and has no history; raises OSError."""
    assert identity.history is None, identity
    birth = Birth(
        birth_id=chance.uuid().hex,
        region=identity.region,
        region_epoch=first_region_epoch(ordinal),
        wall_ms=clock.wall_ms(),
    )
    write_identity(disk, folder, msgspec.structs.replace(identity, born=birth))
    return birth
