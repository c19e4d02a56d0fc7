"""Whom a partition tells that readers may see more, or that it has changed its role or stopped.

A watcher is told of every change until it is taken back; it may take itself or others back meanwhile (those may be told
once more).
Not here: waiting for HW (`commit_waiters`), what readers see (`partition`).
"""

from collections.abc import Callable
from typing import Protocol


class Watcher(Protocol):
    """One that is told of changes; known by its identity."""

    def changed(self) -> None:
        """Something has changed; must be cheap, it runs within the change."""
        ...


class _Callback:
    """A function that watches."""

    __slots__ = ("changed",)

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed


class ReadableWatchers:
    """Who watches one partition."""

    __slots__ = ("_watchers",)

    def __init__(self) -> None:
        """Nobody watches."""
        self._watchers: dict[Watcher, None] = {}

    def __len__(self) -> int:
        """Return how many watch."""
        return len(self._watchers)

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` at every change from now on; return what ends that."""
        watcher = _Callback(callback)
        self.watch(watcher)
        return lambda: self.unwatch(watcher)

    def watch(self, watcher: Watcher) -> None:
        """Notify `watcher` of every change from now on, until `unwatch`; once, if it watches already."""
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        """Notify it no more."""
        self._watchers.pop(watcher, None)

    def notify(self) -> None:
        """Notify all who watch."""
        if self._watchers:
            for watcher in list(self._watchers):
                watcher.changed()
