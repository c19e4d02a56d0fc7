"""The metadata as whoever leads the region's logs changes them.

For what a region's leader does in that office: topics, users and ACLs of clients where it acts, those of the primary where it mirrors (INV-M22).
Not here: what a node changes by itself, whoever leads: its registration, elections, the orders of an operator.
"""

from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import MetadataStore


class LeadersMetadata:
    """A `MetadataSide` of `store`."""

    def __init__(self, store: MetadataStore) -> None:
        """Change `store`."""
        self._store = store

    @property
    def image(self) -> MetadataImage:
        """Return the image of now."""
        return self._store.image

    async def apply(self, command: Command) -> MetadataImage:
        """Apply a command durably, while this member leads; raises as `MetadataStore.apply`, and `CommandRefused` once another one does."""
        return await self._store.apply(command, as_leader=True)
