"""Bytes of a stream as they came, until enough are there: what is taken is copied once at most, and not at all where it came in one chunk.

INV-CHQ1  who sends a byte at a time has no more memory than who sends them at once: small chunks are joined as they come, as each one that
          is held by itself takes some 250 bytes that nobody counts
Not here: where a frame ends (`framing`, and `region.peers.protocol` between nodes).
"""

from collections import deque
from typing import Final

SMALL_BYTES: Final = 1024
"""Two chunks in a row are not both smaller than this."""


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
            self._chunks[0] = first[count:]
            return first[:count]
        if len(first) == count:
            return self._chunks.popleft()
        parts: list[memoryview] = []
        while count:
            chunk = self._chunks.popleft()
            if len(chunk) > count:
                self._chunks.appendleft(chunk[count:])
                chunk = chunk[:count]
            parts.append(chunk)
            count -= len(chunk)
        return memoryview(b"".join(parts))
