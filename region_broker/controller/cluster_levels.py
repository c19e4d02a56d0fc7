"""What raises the feature level of a region, and when that is refused (INV-FL2).

Not here: what a level allows (`feature_levels`), who asks (`region.feature_raising`).
"""

from typing import Final

import msgspec

from region_broker.controller.cluster_commands import FinalizeLevel
from region_broker.controller.feature_levels import NOT_SUPPORTED, told
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused

LOWERED: Final = "feature-level-lowered"
"""The code with which a lower level is refused."""


def raise_level(image: MetadataImage, command: FinalizeLevel) -> MetadataImage:
    """Return the image at the level of `command`; raises `CommandRefused`."""
    level = command.level
    if level < image.feature_level:
        raise CommandRefused(
            LOWERED,
            f"this region is at feature level {image.feature_level}, and is not lowered to {level}: what was written since may be"
            " unknown to the older one. To go back, stop all of its nodes, and restore the copies of all of them that were made before the level was"
            " raised",
        )
    if level == image.feature_level:
        raise CommandRefused(NOT_SUPPORTED, f"this region is at feature level {level} already")
    lacking = [
        f"node {node.node_id} ({told(range(node.lowest_level, node.feature_level + 1))})"
        for _, node in sorted(image.nodes.items())
        if not node.lowest_level <= level <= node.feature_level
    ]
    if lacking:
        raise CommandRefused(
            NOT_SUPPORTED,
            f"not all nodes know feature level {level}: {', '.join(lacking)}. Install the newer version there, and start them; remove"
            " a node that is gone for good (tidemark cluster node remove)",
        )
    return msgspec.structs.replace(image, feature_level=level)
