"""Bytes into frames: the four-byte length, the cap on it, and peers that speak something else.

No byte of a frame is stored before its length was found to be within the cap. A frame is assembled with at most one
copy; a frame that arrived whole is not copied at all, unless it is a small part of what arrived (INV-CHQ2).
INV-WFR1 a frame of more than OTHER_REQUEST_BYTES_MAX is refused by its first bytes, unless it is a Produce: nothing else of that size is answered, and to
         copy out what 100 MB hold held the loop for 0.1 s, before anybody was judged
INV-WFR2 a frame of more than GATHERED_BYTES_MIN is put together as it comes, in pages that the kernel gives when something is written there, so that who
         announces much and sends little has little: to join 100 MB when the last of them had come held the loop for 80 ms, and a buffer that grows
         is copied now and then, for 50 ms
Not here: what a frame means (`wire.headers`), sockets (`wire.server`).
"""

import mmap
import struct
from typing import Final

from region_broker.limits import MIB, OTHER_REQUEST_BYTES_MAX, REQUEST_BYTES_MAX
from region_broker.wire.chunks import ChunkQueue

LENGTH: Final = struct.Struct(">i")
GATHERED_BYTES_MIN: Final = 16 * MIB
"""What has less is joined in 10 ms, in memory that was used before, which costs less in all."""
_API_KEY: Final = struct.Struct(">h")
_PRODUCE_KEY: Final = 0
_HTTP_METHODS: Final = (
    b"GET ",
    b"POST",
    b"PUT ",
    b"HEAD",
    b"DELE",
    b"OPTI",
    b"PATC",
    b"CONN",
    b"TRAC",
    b"PRI ",
)
_HTTP_LENGTH_MIN: Final = min(LENGTH.unpack(word)[0] for word in _HTTP_METHODS)
_HTTP_REPLY: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: 76\r\n\r\n"
    b"This port speaks the Kafka protocol. The HTTP API listens on another port.\r\n"
)


class FramingError(Exception):
    """The peer does not speak the Kafka protocol, or asks for too much: close the connection.

    `reply` holds bytes to send before closing (b"" mostly).
    """

    def __init__(self, reason: str, reply: bytes = b"") -> None:
        """Say what arrived and what to do about it."""
        super().__init__(reason)
        self.reply = reply


class FrameReader(ChunkQueue):
    """Collects chunks and hands out frames (without their length prefix), in order."""

    __slots__ = ("_frame_bytes", "_large", "_large_bytes", "_max_bytes")

    def __init__(self, max_bytes: int = REQUEST_BYTES_MAX) -> None:
        """Create an empty reader that refuses frames of more than `max_bytes`."""
        assert max_bytes < _HTTP_LENGTH_MIN, max_bytes
        super().__init__()
        self._frame_bytes = -1  # length of the frame being collected, -1: not known yet
        self._large: mmap.mmap | None = None  # where a large one is put together (INV-WFR2)
        self._large_bytes = 0  # what of it has come
        self._max_bytes = max_bytes

    def allow(self, max_bytes: int) -> None:
        """Refuse frames of more than `max_bytes` from now on."""
        assert max_bytes < _HTTP_LENGTH_MIN, max_bytes
        self._max_bytes = max_bytes

    @property
    def mid_frame(self) -> bool:
        """Return whether bytes of an incomplete frame are held (for the frame time-out)."""
        return self.held_bytes > 0 or self._frame_bytes >= 0

    @property
    def missing_bytes(self) -> int:
        """Return how many bytes the frame lacks that is being collected; 0 where its length is not known yet."""
        return max(self._frame_bytes - self.held_bytes, 0)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        if self._large is None:
            self._add(chunk)
            return
        lacking = self._frame_bytes - self._large_bytes
        self._put(memoryview(chunk)[:lacking])
        if len(chunk) > lacking:
            self._add(chunk[lacking:])

    def _put(self, part: memoryview) -> None:
        """Take the next bytes of a large frame."""
        assert self._large is not None, "it has begun"
        end = self._large_bytes + len(part)
        self._large[self._large_bytes : end] = part
        self._large_bytes = end
        self.held_bytes += len(part)

    def next_frame(self) -> memoryview | None:
        """Return the next whole frame, or None when more bytes are needed; raises `FramingError`."""
        if self._frame_bytes < 0 and self._chunks:
            chunk = self._chunks[0]
            if len(chunk) > LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(chunk)[0]
                if LENGTH.size < end <= len(chunk) and end - LENGTH.size <= self._max_bytes:
                    return self._first(chunk, end)
        if self._frame_bytes < 0:
            if self.held_bytes < LENGTH.size:
                return None
            prefix = self._take(LENGTH.size)
            (self._frame_bytes,) = LENGTH.unpack(prefix)
            self._check_length(bytes(prefix))
        if self._frame_bytes > GATHERED_BYTES_MIN and self._large is None:
            return self._begin_large()
        if self.held_bytes < self._frame_bytes:
            return None
        return self._whole()

    def _begin_large(self) -> memoryview | None:
        """Gather a large frame from now on (INV-WFR2), once it is known that it may be (INV-WFR1); it is whole already where all came in few chunks."""
        if self.held_bytes < _API_KEY.size:
            return None
        (api_key,) = _API_KEY.unpack(self._peek(_API_KEY.size))
        if self._frame_bytes > OTHER_REQUEST_BYTES_MAX and api_key != _PRODUCE_KEY:
            raise FramingError(
                f"a request of {self._frame_bytes} bytes was announced for API {api_key}, allowed are {OTHER_REQUEST_BYTES_MAX} "
                f"for all but Produce: ask for less at once"
            )
        if self.held_bytes >= self._frame_bytes:
            return self._whole()
        came = self._take(self.held_bytes)
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._large = mmap.mmap(-1, self._frame_bytes, flags=private)
        self._large_bytes = 0
        self._put(came)
        return None

    def _whole(self) -> memoryview:
        """Remove and return the frame that is being collected, all of which is there."""
        if self._large is None:
            frame = self._take(self._frame_bytes)
        else:
            assert self._large_bytes == self._frame_bytes, (self._large_bytes, self._frame_bytes)
            frame = memoryview(self._large).toreadonly()
            self.held_bytes -= self._frame_bytes
            self._large = None
        self._frame_bytes = -1
        return frame

    def _first(self, chunk: memoryview, end: int) -> memoryview:
        """Remove and return a frame that lies whole in the first chunk: most do."""
        self.held_bytes -= end
        if end == len(chunk):
            self._chunks.popleft()
        else:
            chunk = self._cut(chunk, end)
        return chunk[LENGTH.size :]

    def _check_length(self, prefix: bytes) -> None:
        size_bytes = self._frame_bytes
        if 0 < size_bytes <= self._max_bytes and prefix not in _HTTP_METHODS:
            return
        if prefix in _HTTP_METHODS:
            raise FramingError(
                "an HTTP request came in on the Kafka port; use the HTTP address of this node",
                _HTTP_REPLY,
            )
        if prefix[0] == 0x16 and prefix[1] == 0x03:
            raise FramingError(
                "a TLS handshake came in on a plaintext Kafka port; set security.protocol=PLAINTEXT"
            )
        raise FramingError(
            f"a frame of {size_bytes} bytes was announced, allowed are 1 to {self._max_bytes}; "
            "the peer does not speak the Kafka protocol, or its requests are too large"
        )
