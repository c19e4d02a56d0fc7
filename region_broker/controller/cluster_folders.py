"""What a region remembers of its nodes' folders: which were registered, which were removed, and their newest start.

INV-MFD1  a folder is remembered while its node is registered with it, and while it is in sync; of others the last `FOLDERS_MAX`, the
         oldest of which are forgotten first
INV-MFD2  a folder has a successor where the metadata know it under a node id that is registered with another one, or that is not registered,
         was not added again, and was removed with a later one; never while it is in sync in a replica group

Not here: what follows from it (`cluster_nodes`).
"""

from typing import NamedTuple
from uuid import UUID

import msgspec

from geo_replicator.folder_life import LifeVerdict, Shown, judge_lives
from idempotency.identity import Member
from region_broker.controller.cluster_image import FOLDERS_MAX, FolderImage, NodeImage
from region_broker.controller.group_rows import groups_of
from region_broker.controller.metadata_image import MetadataImage


def noted(image: MetadataImage, node: NodeImage, starts: Shown | None) -> MetadataImage:
    """Return the image with the folder of a node remembered, as it has registered in the last of `starts`."""
    folder = _folder(image, node)
    if starts is not None:
        folder = msgspec.structs.replace(folder, last_start=starts.to_remember())
    return _with_folder(image, node.incarnation, folder)


def is_wound_back(image: MetadataImage, incarnation: UUID, starts: Shown | None) -> bool:
    """Return whether a folder that tells `starts` is an older copy of what registered: it does not know that start (INV-MN7).

    Not how many there were is compared: a copy may have been started more often since, before it could register.
    """
    known = image.folders.get(incarnation)
    if known is None or known.last_start is None or starts is None:
        return False
    return judge_lives(known.last_start, starts) is LifeVerdict.PARTED


class Succession(NamedTuple):
    """Which folder took the place of another one; `is_removed`: its node was removed with it since."""

    incarnation: UUID
    is_removed: bool


def successor_of(image: MetadataImage, member: Member) -> Succession | None:
    """Return which folder took the place of a folder; None where none did, or the metadata do not prove it (INV-MFD2)."""
    if any(member in row.in_sync for row in groups_of(image).values()):
        return None
    present = image.nodes.get(member.node_id)
    known = image.folders.get(member.incarnation)
    if present is not None:
        was_here = known is not None and known.node_id == member.node_id
        if present.incarnation == member.incarnation or not (
            was_here or member.incarnation in present.former_incarnations
        ):
            return None
        return Succession(present.incarnation, is_removed=False)
    if known is None or known.node_id != member.node_id or member.node_id in image.added_nodes:
        return None
    later = [
        (folder.since_version, incarnation)
        for incarnation, folder in image.folders.items()
        if folder.removed
        and folder.node_id == member.node_id
        and folder.since_version > known.since_version
    ]
    return Succession(max(later)[1], is_removed=True) if later else None


def removed_for_good(image: MetadataImage, node: NodeImage) -> MetadataImage:
    """Return the image that remembers the folder of a node as removed."""
    folder = msgspec.structs.replace(_folder(image, node), removed=True)
    return _with_folder(image, node.incarnation, folder)


def _folder(image: MetadataImage, node: NodeImage) -> FolderImage:
    known = image.folders.get(node.incarnation)
    return known or FolderImage(node_id=node.node_id, since_version=image.version)


def _with_folder(image: MetadataImage, incarnation: UUID, folder: FolderImage) -> MetadataImage:
    if image.folders.get(incarnation) == folder:
        return image
    folders = {**image.folders, incarnation: folder}
    while len(folders) > FOLDERS_MAX:
        del folders[_oldest(image, folders)]
    return msgspec.structs.replace(image, folders=folders)


def _oldest(image: MetadataImage, folders: dict[UUID, FolderImage]) -> UUID:
    """Return which is forgotten first (INV-MFD1): there are far fewer nodes than folders are remembered."""
    kept = {node.incarnation for node in image.nodes.values()} | {
        one.incarnation for row in groups_of(image).values() for one in row.in_sync
    }
    forgotten = [key for key in folders if key not in kept]
    return min(forgotten, key=lambda key: (folders[key].since_version, key))
