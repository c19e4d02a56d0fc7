"""Producer-id blocks that are drawn: `txn_coordinator.ports.IdBlocks`.

INV-AI1  each life of a node begins in a stretch of ids that it draws at random, and draws another when that is used
         up. So no count that a lost, emptied, exchanged or older folder holds can make an id be given out twice (C11)

There are 2^46 stretches of 16,000 ids in each region, and an id matters as long as a log remembers its producer, a week
from its last batch. A thousand draws in a week meet once in 140 million weeks. Of those for transactional producers there
are 2^40, of which a thousand draws meet once in two million weeks: a draw lasts for 16,000 transactional ids.
Not here: how ids are made unique over regions (`idempotency.producer_ids`).
"""

from idempotency.ports import Chance
from idempotency.producer_ids import (
    STRETCH_BITS,
    STRETCH_BLOCKS,
    TRANSACTIONAL_BLOCKS_FROM,
    TRANSACTIONAL_STRETCH_BITS,
    ProducerIdBlock,
    block_for,
)


class DrawnIdBlocks:
    """Blocks of the region with this ordinal: of producers outside transactions, or of transactional ones (INV-I4)."""

    def __init__(self, chance: Chance, region_ordinal: int, *, transactional: bool = False) -> None:
        """Draw from `chance`."""
        self._chance = chance
        self._region_ordinal = region_ordinal
        self._first = TRANSACTIONAL_BLOCKS_FROM if transactional else 0
        self._bits = TRANSACTIONAL_STRETCH_BITS if transactional else STRETCH_BITS
        self._next = 0

    async def next_block(self) -> ProducerIdBlock:
        """Return a block that was not returned before, in this life of the node or another."""
        if self._next % STRETCH_BLOCKS == 0:
            self._next = self._first + self._chance.randbits(self._bits) * STRETCH_BLOCKS
        block = block_for(self._region_ordinal, self._next)
        self._next += 1
        return block
