"""Fetches that wait: until enough is readable, or something is to be told; nobody polls.

INV-PU1  a wait ends at the first of: enough bytes readable, a target's partition failed or changed its role, and what
        its owner ends it for
INV-PU3  a change costs what came by it, however far behind the reader is: what was counted is not counted again
INV-PU2  a wait leaves no callback behind, however it ends
A change in one partition is judged by looking at that one, however many are waited for.

Not here: reading, and until when a fetch waits (the fetch handler: C38).
"""

from collections.abc import Callable

from region_broker.log.failures import ColdRange
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation


class _Target:
    """One partition of a waiting fetch: where it reads, and what was found when it was looked at last."""

    __slots__ = (
        "_counted_to", "_isolation", "_offset", "_wait", "found_bytes", "partition", "showed",
    )  # fmt: skip

    def __init__(
        self, wait: "ReadableWait", partition: Partition, offset: int, isolation: Isolation
    ) -> None:
        self._wait = wait
        self._offset = self._counted_to = offset
        self._isolation = isolation
        self.partition = partition
        self.showed = partition.sight.shows_committed
        self.found_bytes = 0

    def look(self, enough_bytes: int) -> int:
        """Return how many bytes more are readable than at the last look; may stop counting at `enough_bytes`."""
        sight = self.partition.sight
        end = sight.readable_end(self._isolation)
        before_bytes = self.found_bytes
        if end < self._counted_to or self._offset < sight.log_start_offset:
            self._counted_to, before_bytes = (
                self._offset,
                0,
            )  # it was cut, or the reader is to be told
        try:
            found_bytes = before_bytes + self.partition.reader.readable_bytes(
                self._counted_to, self._isolation, max(1, enough_bytes - before_bytes), wait=False
            )
        except ColdRange:
            found_bytes = enough_bytes  # far behind the end: there is more than anybody waits for
        more_bytes = found_bytes - self.found_bytes
        self.found_bytes = found_bytes
        self._counted_to = max(end, self._offset)
        return more_bytes

    def changed(self) -> None:
        """See `Watcher`."""
        self._wait.changed(self)


class ReadableWait:
    """One waiting fetch: `look_at` each partition, then wait for `on_enough`, then `end`."""

    __slots__ = ("_enough_bytes", "_found_bytes", "_on_enough", "_targets")

    def __init__(self, enough_bytes: int, on_enough: Callable[[], None]) -> None:
        """Wait for so many bytes over all partitions; `on_enough` is called once, within the change that brings them."""
        assert enough_bytes > 0, enough_bytes
        self._enough_bytes = enough_bytes
        self._on_enough: Callable[[], None] | None = on_enough
        self._found_bytes = 0
        self._targets: list[_Target] = []

    @property
    def has_enough(self) -> bool:
        """Return whether there is no need to wait."""
        return self._found_bytes >= self._enough_bytes

    def look_at(self, partition: Partition, offset: int, isolation: Isolation) -> None:
        """Count what is readable in `partition`, and be told of more."""
        target = _Target(self, partition, offset, isolation)
        self._found_bytes += target.look(self._enough_bytes)
        self._targets.append(target)
        partition.watchers.watch(target)

    def changed(self, target: _Target) -> None:
        """See whether the wait is over; called by the partition of a target."""
        if self._on_enough is None:
            return
        self._found_bytes += target.look(self._enough_bytes)
        if target.partition.sight.shows_committed != target.showed or self.has_enough:
            on_enough, self._on_enough = self._on_enough, None
            on_enough()

    def end(self) -> None:
        """Be told no more (INV-PU2)."""
        self._on_enough = None
        for target in self._targets:
            target.partition.watchers.unwatch(target)
        self._targets.clear()
