"""Whom a partition tells that readers may see more, or that it has changed its role or stopped.

INV-RWA2  `changes` is another number after each change: who saw it knows that what it read then still holds
INV-RWA1  a callback is called for every change until it is taken back; it may take itself or others back meanwhile
Not here: waiting for HW (`commit_waiters`), what readers see (`partition`).
"""

from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """One that is told of changes; known by its identity."""

    def changed(self) -> None:
        """Something has changed; must be cheap, it runs within the change."""
        ...


class ReadableWatchers:
    """Callbacks of one partition; cheap ones, they run within the change."""

    __slots__ = ("_callbacks", "_serial", "changes")

    def __init__(self) -> None:
        """Nobody watches."""
        self._callbacks: dict[object, Callable[[], None]] = {}
        self.changes = 0

    def __len__(self) -> int:
        """Return how many watch."""
        return len(self._callbacks)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at every change from now on; return what ends that."""
        key = object()
        self._callbacks[key] = callback

        def unsubscribe() -> None:
            self._callbacks.pop(key, None)

        return unsubscribe

    def watch(self, watcher: Watcher) -> None:
        """Tell `watcher` of every change from now on, until `unwatch`."""
        self._callbacks[watcher] = watcher.changed

    def unwatch(self, watcher: Watcher) -> None:
        """Tell it no more."""
        self._callbacks.pop(watcher, None)

    def tell(self) -> None:
        """Count a change, and call all of them."""
        self.changes += 1
        if self._callbacks:
            for callback in list(self._callbacks.values()):
                callback()
