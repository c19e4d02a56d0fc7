"""Which batches in the tails of several nodes a later leader of their region had passed over.

INV-LO9  where nodes of one region hold different batches at one place, under leader epochs of one region epoch, the older one was never
         committed, and is no loss: who led later had all that was, and began where that ends. Not so where somebody led who was not in
         sync, by an operator's word: what was passed over then may have been acknowledged

1. A node appends a batch, and dies before another one has it. 2. The next leader appends others at the same offsets, which are
acknowledged. 3. Another region takes over, and both nodes return: each cuts off its own.
Not here: what a tail holds (`tail`).
"""

from collections import defaultdict

from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch, LogKey
from idempotency.record_batch import BatchHeader


class LaterLeaders:
    """All batches are noted first, of all tails, in any order."""

    def __init__(self) -> None:
        """Nothing is known."""
        self._starts: defaultdict[LogKey, dict[LeaderEpoch, int]] = defaultdict(dict)

    def note(self, log: LogKey, header: BatchHeader) -> None:
        """Take note of a batch."""
        starts, epoch = self._starts[log], header.leader_epoch
        starts[epoch] = min(header.base_offset, starts.get(epoch, header.base_offset))

    def passed_over(self, log: LogKey, leader_epoch: LeaderEpoch, last_offset: int) -> bool:
        """Return whether a later leader of the same region epoch has begun at or below `last_offset` of a batch (INV-LO9)."""
        return any(
            later > leader_epoch
            and start <= last_offset
            and region_epoch_of(later) == region_epoch_of(leader_epoch)
            for later, start in self._starts[log].items()
        )
