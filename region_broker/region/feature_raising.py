"""The feature level of this region, as it is told, and as it is raised by an operator's word (KIP-584; ADR 52).

INV-FUP1  a folder that is a member of the quorum and has not registered keeps the level from being raised: nobody knows which code it
         runs, and it gets each entry of the log
INV-FUP2  raising to the level that the region has changes nothing, and is no error

Not here: what a level allows, and when raising is refused (`controller.feature_levels`, `controller.cluster_levels`).
"""

from importlib import metadata as installed
from typing import Any, Final

from region_broker.controller import metadata_commands
from region_broker.controller.cluster_commands import FinalizeLevel
from region_broker.controller.feature_levels import NOT_SUPPORTED, told
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused

PACKAGE: Final = "tidemark"


class FeatureRaising:
    """Speaks for the node that it is part of."""

    def __init__(self, region: str, node_id: int, metadata: MetadataStore) -> None:
        """Tell of, and change, what `metadata` hold."""
        self._region = region
        self._node_id = node_id
        self._metadata = metadata

    @property
    def supported(self) -> range:
        """Return the levels that the code of this node knows."""
        return self._metadata.levels

    @property
    def finalized(self) -> int:
        """Return the level of this region, as far as it is known here."""
        return self._metadata.image.feature_level

    def describe(self) -> dict[str, Any]:
        """Return what this node runs, what it knows, and what is finalized, as plain JSON."""
        levels = self.supported
        return {
            "region": self._region,
            "node_id": self._node_id,
            "version": installed.version(PACKAGE),
            "supported": {"lowest": levels[0], "newest": levels[-1]},
            "finalized": self.finalized,
        }

    async def raise_to(self, level: int, *, dry_run: bool) -> bool:
        """Raise the region to `level`; return whether anything changes (INV-FUP2). `dry_run`: judge, and change nothing.

        Raises `CommandRefused`, `MetadataUnwritable`.
        """
        if level == self.finalized:
            return False
        command = FinalizeLevel(level)
        self._judge(command)
        if not dry_run:
            await self._metadata.apply(command)
        return True

    def _judge(self, command: FinalizeLevel) -> None:
        image = self._metadata.image
        metadata_commands.apply(image, command)
        if command.level not in self.supported:
            raise CommandRefused(
                NOT_SUPPORTED,
                f"the code of node {self._node_id} knows the feature levels {told(self.supported)}, not {command.level}: install a"
                " version that does, on all nodes, first",
            )
        membership = self._metadata.group.membership
        members = (*membership.voters, *membership.learners)
        if image.nodes and (strange := [each for each in members if image.node_of(each) is None]):
            names = ", ".join(str(each) for each in strange)  # INV-FUP1
            raise CommandRefused(
                NOT_SUPPORTED,
                f"nobody knows which levels {names} know, which belong to the quorum and have not registered: start them, or remove"
                " them (tidemark cluster node remove)",
            )
