"""Producer-id blocks from the region's metadata: `txn_coordinator.ports.IdBlocks`.

INV-AI1  the block's index is durable before the block is returned (C11); a crash wastes ids, never reuses them
Not here: how ids are made unique over regions (`idempotency.producer_ids`).
"""

from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from idempotency.producer_ids import ProducerIdBlock, ProducerIdsExhausted, block_for
from region_broker.controller.metadata_commands import AllocateProducerIds, Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from txn_coordinator.ports import IdsUnavailable


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
        """Return a fresh block; raises IdsUnavailable when the metadata takes no command now."""
        try:
            image = await self._metadata.apply(AllocateProducerIds())
            return block_for(self._region_ordinal, image.producer_id_block_next - 1)
        except (SQLAlchemyError, OSError, CommandRefused, ProducerIdsExhausted) as error:
            raise IdsUnavailable(f"the region's metadata gave no producer ids: {error}") from error
