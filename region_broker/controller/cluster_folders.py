"""What a region remembers of its nodes' folders: which were registered, which were removed, and their newest start.

INV-MFD1  a folder is remembered while its node is registered with it, and while it is in sync; of others the last `FOLDERS_MAX`, the
         oldest of which are forgotten first

Not here: what follows from it (`cluster_nodes`).
"""

from uuid import UUID

import msgspec

from geo_replicator.folder_life import LifeVerdict, Shown, judge_lives
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
