"""Bytes of a stream as they came, until enough are there: what is taken is copied once at most, and not at all where it came in one chunk.

INV-CHQ1  who sends a byte at a time has no more memory than who sends them at once: small chunks are joined as they come, as each one that
          is held by itself takes some 250 bytes that nobody counts
INV-CHQ2  what is taken of a chunk, and what is left of it, keep it only where they are half of it or VIEWED_BYTES_MIN: less is copied, as
          it would keep a chunk of 256 KB that counts as the few bytes of a frame
Not here: where a frame ends (`framing`, and `region.peers.protocol` between nodes).
"""

from collections import deque
from typing import Final

SMALL_BYTES: Final = 1024
"""Two chunks in a row are not both smaller than this."""
VIEWED_BYTES_MIN: Final = 64 * 1024
"""As much is looked at where it lies: a copy takes up to 5 us, one of more takes longer than the rest of the work."""


class ChunkQueue:
    """Chunks in order; `held_bytes` of them were not taken yet."""

    __slots__ = ("_chunks", "held_bytes")

    def __init__(self) -> None:
        """Hold nothing."""
        self._chunks: deque[memoryview] = deque()
        self.held_bytes = 0

    def _add(self, chunk: bytes) -> None:
        """Take the next bytes of the stream (INV-CHQ1)."""
        self.held_bytes += len(chunk)
        if self._chunks and len(chunk) < SMALL_BYTES and len(self._chunks[-1]) < SMALL_BYTES:
            chunk = b"".join((self._chunks.pop(), chunk))
        self._chunks.append(memoryview(chunk))

    def _peek(self, count: int) -> bytes:
        """Return a copy of the first `count` bytes, of fewer if fewer are there."""
        found = b""
        for chunk in self._chunks:
            found += chunk[: count - len(found)]
            if len(found) == count:
                break
        return found

    def _take(self, count: int) -> memoryview:
        """Remove and return exactly `count` bytes that are known to be there."""
        assert self.held_bytes >= count, (self.held_bytes, count)
        self.held_bytes -= count
        first = self._chunks[0]
        if len(first) > count:
            return self._cut(first, count)
        if len(first) == count:
            return self._chunks.popleft()
        parts: list[memoryview] = []
        while count:
            chunk = self._chunks[0]
            part = self._cut(chunk, count) if len(chunk) > count else self._chunks.popleft()
            parts.append(part)
            count -= len(part)
        return memoryview(b"".join(parts))

    def _cut(self, first: memoryview, end: int) -> memoryview:
        """Leave of the first chunk what is behind `end`; return what is before it (INV-CHQ2)."""
        view_min = len(first.obj) // 2  # type: ignore[arg-type] # bytes, as they were added
        view_min = min(view_min, VIEWED_BYTES_MIN)
        left = first[end:]
        self._chunks[0] = left if len(left) >= view_min else memoryview(bytes(left))
        return first[:end] if end >= view_min else memoryview(bytes(first[:end]))
