"""Producer ids of one node: whole blocks come in, one or a few go out.

Its lock guards the fetching of a block, and nothing else is awaited under it.

Not here: where blocks come from (`ports.IdBlocks`), the stock of a shard (`shard.decisions`).
"""

import asyncio

from idempotency.identity import ProducerId
from idempotency.producer_ids import ProducerIdBlock
from txn_coordinator.ports import IdBlocks


class IdStock:
    """One for all shards of a coordinator, and one, or the same, for producers without a transactional id."""

    def __init__(self, blocks: IdBlocks) -> None:
        """Start empty."""
        self._blocks = blocks
        self._block = ProducerIdBlock(ProducerId(0), 0)
        self._lock = asyncio.Lock()

    async def take(self, count: int) -> ProducerIdBlock:
        """Return 1 to `count` unused producer ids; raises IdsUnavailable."""
        async with self._lock:
            if self._block.count == 0:
                self._block = await self._blocks.next_block()
            block = self._block
            taken = min(count, block.count)
            self._block = ProducerIdBlock(ProducerId(block.first + taken), block.count - taken)
            return ProducerIdBlock(block.first, taken)
