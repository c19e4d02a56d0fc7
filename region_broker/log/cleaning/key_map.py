"""Which offset is the newest of each key: the cleaner's memory, bounded by a number of keys.

INV-CLK1  at most `limit` keys, but for what one batch adds to a map that is not full; a key counts twice while its
         newest offset is not kept yet
INV-CLK2  `newest` knows exactly the records below `end_offset`: what was put in after the last `keep` counts with the
         next one, or never. A cut at `end_offset` must not take away what superseded a record below it
Source: Kafka SkimpyOffsetMap.java, LogCleaner `buildOffsetMap`.
"""

import hashlib
from typing import Final

DIGEST_BYTES: Final = 16


class KeyMap:
    """Newest offsets by key. Keys of 16 bytes and more are known by a digest, as Kafka knows all of them."""

    __slots__ = ("_limit", "_newest", "_put", "end_offset")

    def __init__(self, limit: int) -> None:
        """Hold `limit` keys; about 120 bytes of memory each."""
        self._limit = limit
        self._newest: dict[bytes, int] = {}
        self._put: dict[bytes, int] = {}
        self.end_offset = 0
        """Below it every record was looked at."""

    def __len__(self) -> int:
        """Return how many keys are held."""
        return len(self._newest) + len(self._put)

    @property
    def full(self) -> bool:
        """Whether no other batch may be put in."""
        return len(self) >= self._limit

    def put(self, key: bytes, offset: int) -> None:
        """Say that the newest record of `key` so far is at `offset`."""
        self._put[_known_as(key)] = offset

    def keep(self, end_offset: int) -> None:
        """Let what was put in count: every record below `end_offset` was looked at, and none behind."""
        self._newest.update(self._put)
        self._put = {}
        self.end_offset = end_offset

    def newest(self, key: bytes) -> int:
        """Return the offset of the newest record of `key`, -1 if none was put in."""
        return self._newest.get(_known_as(key), -1)


def _known_as(key: bytes) -> bytes:
    if len(key) < DIGEST_BYTES:
        return key
    return hashlib.blake2b(key, digest_size=DIGEST_BYTES).digest()
