"""Who waits for what is appended to one log: until it is durable here, or on all in-sync members of the region (HW).

INV-PTD1 who waits for this node alone (`acks=1`) hears when it is durable here; everybody else when it is below HW
INV-PTD2 who waits for an order to delete hears when all that may lead next have the log start, durably: the low watermark (KIP-107)
Where no other node copies the log each is what this node has.
Not here: what is waited for by a request (`handlers.produce.wait`), who moves HW (`region.cluster`).
"""

from functools import partial

from region_broker.log.failures import PartitionFailed
from region_broker.log.parts.content import LogContent
from region_broker.log.parts.durability import LogDurability
from region_broker.partitions.commit_waiters import CommitListener, CommitWaiters, when_told


class Commits:
    """Of one log; belongs to the event loop."""

    __slots__ = ("_agreed_start", "_at_hw", "_at_start", "_content", "_durability", "_here")

    def __init__(self, content: LogContent, durability: LogDurability) -> None:
        """Nobody waits."""
        self._content = content
        self._durability = durability
        self._at_hw = CommitWaiters()
        self._here = CommitWaiters()
        self._at_start = CommitWaiters()
        self._agreed_start: int | None = None
        """The least log start of the in-sync members; None where nobody else in the region has this log."""

    @property
    def high_watermark(self) -> int:
        """See `Partition.high_watermark`."""
        return self._durability.stable_offset

    @property
    def durable_end(self) -> int:
        """The end of what is durable on this node."""
        return self._durability.durable_offset

    def low_watermark(self, log_start_offset: int) -> int:
        """Return the least log start of all that may lead next, of a log that starts at `log_start_offset` here."""
        agreed = self._agreed_start
        return log_start_offset if agreed is None else min(agreed, log_start_offset)

    @property
    def agreed_start(self) -> int:
        """Where all that may lead next are known to start, or above; 0: nobody knows."""
        return self._agreed_start or 0

    def agree_on_start(self, offset: int) -> None:
        """All that may lead next start at `offset` or above; 0: nobody knows yet."""
        self._agreed_start = offset
        self._at_start.reached(offset)

    def doubt_start(self) -> None:
        """Forget where others start, where others have the log: it was cut here, or its start went back, and theirs will be."""
        if self._agreed_start is not None:
            self._agreed_start = 0

    def notify_deleted(self, low_watermark: int, offset: int, listener: CommitListener) -> None:
        """Notify `listener` once all that may lead next start at `offset`, as `notify` does (INV-PTD2); they start at `low_watermark`."""
        self._notify(self._at_start, low_watermark, offset, listener)

    def notify(self, offset: int, listener: CommitListener) -> None:
        """Notify `listener` once HW >= `offset`, perhaps at once; or of PartitionFailed or NotLeader."""
        self._notify(self._at_hw, self.high_watermark, offset, listener)

    def notify_durable(self, offset: int, listener: CommitListener) -> None:
        """Notify `listener` once all below `offset` is durable on this node, as `notify` does (INV-PTD1)."""
        self._notify(self._here, self.durable_end, offset, listener)

    async def wait_durable(self, offset: int) -> None:
        """Return once all below `offset` is durable on this node, committed or not. Raises PartitionFailed, NotLeader."""
        await when_told(partial(self.notify_durable, offset))

    def _notify(
        self, waiters: CommitWaiters, reached: int, offset: int, listener: CommitListener
    ) -> None:
        failed = self._content.failed
        if failed is not None:
            listener.not_committed(PartitionFailed(failed))
        elif reached >= offset:
            listener.committed()
        else:
            waiters.notify_at(offset, listener)

    def moved(self) -> None:
        """Tell those who waited that more is durable or committed, or that the log failed."""
        failed = self._content.failed
        if failed is not None:
            self.fail(PartitionFailed(failed))
            return
        self._here.reached(self.durable_end)
        self._at_hw.reached(self.high_watermark)

    def fail(self, error: Exception) -> None:
        """End all waits with `error`."""
        self._here.fail(error)
        self._at_hw.fail(error)
        self._at_start.fail(error)
