"""What is a function of a log, and whose file is missing or damaged: built again by a thread, for readings that wait for nothing.

INV-BLA1  one thread at a time builds it, and whoever waits for that one finds it done: a thousand readers behind one damaged index read its
          segment once
INV-BLA2  nothing that was built before a segment was cut, cleaned or deleted is taken for what came after: it is forgotten with it, and a
          thread that is not done yet hands its work to nobody
It is kept for as long as any index is (`SealedCache`). No file is written: its name may be another segment's by then. The scrubber mends it.
Not here: what is built (`segment`, `segment_list`), the threads (`cold_reads`).
"""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from region_broker.log.failures import AsideRange, LogError

T = TypeVar("T")


class BuiltAside(Generic[T]):
    """One such thing. `run` belongs to a thread, all else to the event loop."""

    __slots__ = ("_build", "_is_done", "_lock", "error", "value")

    def __init__(self, build: Callable[[], T]) -> None:
        """Nothing is built before `run`. `build` touches nothing that belongs to the event loop; it may raise LogError, or OSError."""
        self._build: Callable[[], T] | None = build
        self._lock = threading.Lock()
        self._is_done = False
        self.value: T | None = None
        self.error: LogError | OSError | None = None
        """Why it could not be built."""

    def run(self) -> None:
        """Build it, unless that is done."""
        with self._lock:
            build, self._build = self._build, None
            if build is None:
                return
            try:
                self.value = build()
            except (LogError, OSError) as error:
                self.error = error
            self._is_done = True

    def check_done(self, path: Path, size_bytes: int) -> None:
        """Raise AsideRange until it is built, or could not be; `size_bytes` are read for that."""
        if not self._is_done:
            raise AsideRange(self.run, path, size_bytes)
