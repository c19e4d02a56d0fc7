"""Whom a log tells that other nodes of its region copy it: what is written, durable here, deleted by order, or cut.

INV-PTC1 while nobody asks for it an append costs nothing more
Not here: what is made of it (`region.cluster`), who waits for a commit (`commit_waiters`).
"""

from collections.abc import Callable

from region_broker.log.journal.sync_job import DirtyLog
from region_broker.log.log_setup import LogListener


class Copies:
    """Of one log. What is told must be cheap: it runs within the change."""

    __slots__ = ("_listener", "_mark_dirty", "copied_to", "on_cut", "on_durable", "on_order")

    def __init__(self, listener: LogListener) -> None:
        """Tell nobody."""
        self._listener = listener
        self._mark_dirty = listener.on_dirty
        self.on_durable: Callable[[], None] = _nobody
        """Called when more is durable here, or the log failed."""
        self.on_cut: Callable[[], None] = _nobody
        """Called when the log's end was moved by a cut, its records were given up, or its start went back, before anybody else hears of it."""
        self.on_order: Callable[[], None] = _nobody
        """Called when an order to delete is durable here."""
        self.copied_to: Callable[[], int | None] = _nobody
        """Up to where all have it who copy it from here now; None where nobody does."""

    def tell_durable(self, on_durable: Callable[[], None] | None) -> None:
        """Let `on_durable` be told, in place of whoever was; None: nobody, nor of orders. Nobody copies from here as yet."""
        self.on_durable = _nobody if on_durable is None else on_durable
        self.on_order = self.copied_to = _nobody

    def tell_cut(self, on_cut: Callable[[], None] | None) -> None:
        """Let `on_cut` be told, in place of whoever was; None: nobody."""
        self.on_cut = _nobody if on_cut is None else on_cut

    def tell_appends(self, on_appended: Callable[[], None] | None) -> None:
        """Call `on_appended` after each write of batches, synced or not, in place of whoever was told; None: nobody (INV-PTC1)."""
        mark_dirty = self._mark_dirty
        if on_appended is None:
            self._listener.on_dirty = mark_dirty
            return

        def tell(log: DirtyLog) -> None:
            mark_dirty(log)
            on_appended()

        self._listener.on_dirty = tell


def _nobody() -> None:
    """The region has one node."""
