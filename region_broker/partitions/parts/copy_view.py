"""Showing readers a follower's copy, and hiding it (INV-PT11): whoever waits for more of it is told of both.

Not here: when that is (`region.cluster.replica_readers`), how far readers see (`sight`).
"""

from idempotency.identity import LeaderEpoch
from region_broker.partitions.parts.sight import Sight
from region_broker.partitions.readable_watchers import ReadableWatchers


class CopyView:
    """Of one partition."""

    __slots__ = ("_sight", "_watchers")

    def __init__(self, sight: Sight, watchers: ReadableWatchers) -> None:
        """Show nothing."""
        self._sight = sight
        self._watchers = watchers

    def show(self, leader_epoch: LeaderEpoch) -> None:
        """Let readers see the copy up to HW, as of the leader that this node follows under `leader_epoch`."""
        assert not self._sight.is_leader, "what leads is no copy"
        self._sight.is_copy_shown = True
        self._sight.follow_term(leader_epoch)
        self._watchers.notify()

    def hide(self) -> None:
        """Show readers nothing any more."""
        if self._sight.is_copy_shown:
            self._sight.is_copy_shown = False
            self._watchers.notify()
