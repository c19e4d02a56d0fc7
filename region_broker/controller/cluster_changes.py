"""What a command about a region's nodes does to the metadata image: the way to the two modules that know.

Not here: the rules (`cluster_nodes`, `cluster_leadership`).
"""

from region_broker.controller.cluster_commands import (
    ChangeInSync,
    ClusterCommand,
    ElectLeader,
    ElectUnclean,
    FinalizeLevel,
)
from region_broker.controller.cluster_leadership import change_leadership
from region_broker.controller.cluster_levels import raise_level
from region_broker.controller.cluster_nodes import change_nodes
from region_broker.controller.metadata_image import MetadataImage


def change_cluster(image: MetadataImage, command: ClusterCommand) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused`."""
    match command:
        case ElectLeader() | ElectUnclean() | ChangeInSync():
            return change_leadership(image, command)
        case FinalizeLevel():
            return raise_level(image, command)
        case _:
            return change_nodes(image, command)
