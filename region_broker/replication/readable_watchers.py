"""Whom a partition tells that readers may see more, or that it has changed its role or stopped.

INV-RWA2  `changes` is another number after each change: who saw it knows that what it read then still holds
INV-RWA1  a callback is called for every change until it is taken back; it may take itself or others back meanwhile
Not here: waiting for HW (`commit_waiters`), what readers see (`partition`).
"""

from collections.abc import Callable


class ReadableWatchers:
    """Callbacks of one partition; cheap ones, they run within the change."""

    __slots__ = ("_callbacks", "_serial", "changes")

    def __init__(self) -> None:
        """Nobody watches."""
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._serial = 0
        self.changes = 0

    def __len__(self) -> int:
        """Return how many watch."""
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at every change from now on; return what ends that."""
        self._serial += 1
        serial = self._serial
        self._callbacks[serial] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(serial, None)

        return unsubscribe

    def tell(self) -> None:
        """Count a change, and call all of them."""
        self.changes += 1
        if self._callbacks:
            for callback in list(self._callbacks.values()):
                callback()
