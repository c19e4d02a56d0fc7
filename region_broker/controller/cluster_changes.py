"""What a command about a region's nodes does to the metadata image: the way to the modules that know.

Not here: the rules (`cluster_nodes`, `cluster_leadership`, `spread_leadership`).
"""

from region_broker.controller.cluster_commands import (
    ChangeGroupInSync,
    ChangeInSync,
    ClusterCommand,
    ElectGroupLeader,
    ElectLeader,
    ElectUnclean,
    FinalizeLevel,
    GatherLeaders,
    PreferSpread,
    SpreadLeaders,
)
from region_broker.controller.cluster_leadership import change_leadership
from region_broker.controller.cluster_levels import raise_level
from region_broker.controller.cluster_nodes import change_nodes
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.spread_leadership import change_spread


def change_cluster(image: MetadataImage, command: ClusterCommand) -> MetadataImage:
    """Return the image after `command`; raises `CommandRefused`."""
    match command:
        case ElectLeader() | ElectUnclean() | ChangeInSync():
            return change_leadership(image, command)
        case FinalizeLevel():
            return raise_level(image, command)
        case (
            PreferSpread()
            | SpreadLeaders()
            | ElectGroupLeader()
            | ChangeGroupInSync()
            | GatherLeaders()
        ):
            return change_spread(image, command)
        case _:
            return change_nodes(image, command)
