"""A bounded table of what was used last: open files, parsed log indexes."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentlyUsed(Generic[K, V]):
    """At most `capacity` values by key; the least recently used one is given to `release` and dropped.

    Used from the event loop only.
    """

    __slots__ = ("_capacity", "_release", "_values")

    def __init__(self, capacity: int, release: Callable[[V], None] | None = None) -> None:
        """Hold at most `capacity` (>= 1) values."""
        assert capacity >= 1
        self._capacity = capacity
        self._release = release
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        """Return how many values are held."""
        return len(self._values)

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return the value, loading it (and dropping another) if need be; valid until the next call."""
        value = self._values.get(key)
        if value is not None:
            self._values.move_to_end(key)
            return value
        value = load()
        self._values[key] = value
        if len(self._values) > self._capacity:
            self._drop(next(iter(self._values)))
        return value

    def held(self, key: K) -> V | None:
        """Return the value if it is held; that is no use of it."""
        return self._values.get(key)

    def forget(self, key: K) -> None:
        """Drop the value if it is held: its file is about to be removed or cut."""
        if key in self._values:
            self._drop(key)

    def clear(self) -> None:
        """Drop all."""
        while self._values:
            self._drop(next(iter(self._values)))

    def _drop(self, key: K) -> None:
        value = self._values.pop(key)
        if self._release is not None:
            self._release(value)
