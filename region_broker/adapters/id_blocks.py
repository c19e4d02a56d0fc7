"""Producer-id blocks from the region's metadata: `txn_coordinator.ports.IdBlocks`.

INV-AI1  the block's index is durable before the block is returned (C11); a crash wastes ids, never reuses them
Not here: how ids are made unique over regions (`idempotency.producer_ids`).
"""

from typing import Protocol

from idempotency.producer_ids import ProducerIdBlock, block_for
from region_broker.controller.metadata_commands import AllocateProducerIds, Command
from region_broker.controller.metadata_image import MetadataImage


class MetadataCommands(Protocol):
    """The part of `controller.metadata_store.MetadataStore` that is needed."""

    async def apply(self, command: Command) -> MetadataImage:
        """Apply one command durably and return the new image."""
        ...


class MetadataIdBlocks:
    """Blocks of the region with this ordinal."""

    def __init__(self, metadata: MetadataCommands, region_ordinal: int) -> None:
        """Take the metadata that counts the blocks."""
        self._metadata = metadata
        self._region_ordinal = region_ordinal

    async def next_block(self) -> ProducerIdBlock:
        """Return a fresh block; raises `ProducerIdsExhausted` at the end of the region's range."""
        image = await self._metadata.apply(AllocateProducerIds())
        return block_for(self._region_ordinal, image.producer_id_block_next - 1)
