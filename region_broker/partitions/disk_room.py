"""How much room the disk has left, and whether clients may still write.

INV-DRM1  while less than the watermark is free, records of clients and of the primary, and new transactions (INV-TAD1), are refused,
         with how much is free, and
         accepted again once a tenth more than the watermark is; what ends transactions, moves groups and publishes
         tidemarks goes on: the watermark is their room
INV-DRM2  a look that fails changes nothing, and is told

A disk that is really full stops partitions for good (a failed write is not tried again). Not here: deleting anything.
"""

import logging
from collections.abc import Callable
from typing import Final

from idempotency.ports import Clock

_log: Final = logging.getLogger("tidemark.disk")

LOOK_INTERVAL_MS: Final = 1_000
CLOSE_LOOK_INTERVAL_MS: Final = 100
_CLOSE_LOOK_BELOW: Final = 10
_MIB: Final = 1 << 20


class DiskRoom:
    """The last look at the volume of the logs; `refusal` says why clients may not write."""

    def __init__(self, free_bytes_min: int = 0) -> None:
        """Refuse nothing before the first look; a watermark of 0 never does."""
        self.free_bytes_min = free_bytes_min
        """The watermark; another one counts from the next look on."""
        self.total_bytes = 0
        self.free_bytes = 0
        self.refusal: str | None = None
        self.unknown: str | None = None

    def note(self, total_bytes: int, free_bytes: int) -> None:
        """Take a look in (INV-DRM1)."""
        self.total_bytes, self.free_bytes, self.unknown = total_bytes, free_bytes, None
        wanted = self.free_bytes_min if self.refusal is None else self.free_bytes_min * 11 // 10
        if free_bytes >= wanted:
            if self.refusal is not None:
                _log.warning("the disk has room again: %d MiB are free", free_bytes // _MIB)
            self.refusal = None
            return
        if self.refusal is None:
            _log.error(
                "the disk is nearly full: writes are refused, %d MiB are free", free_bytes // _MIB
            )
        self.refusal = (
            f"the disk is nearly full: {free_bytes // _MIB} MiB are free, disk_free_bytes_min is"
            f" {self.free_bytes_min // _MIB} MiB. Free some space; writes go on by themselves then"
        )

    def not_known(self, why: str) -> None:
        """Keep what is known (INV-DRM2)."""
        if self.unknown is None:
            _log.error("how much room the disk has is not known: %s", why)
        self.unknown = why

    @property
    def look_again_ms(self) -> int:
        """When to look next: soon where little is left."""
        close = self.free_bytes < self.free_bytes_min * _CLOSE_LOOK_BELOW
        return CLOSE_LOOK_INTERVAL_MS if close else LOOK_INTERVAL_MS


async def watch_room(room: DiskRoom, look: Callable[[], tuple[int, int]], clock: Clock) -> None:
    """Look again and again until cancelled; `look` returns (size, free) in bytes or raises OSError."""
    while True:
        try:
            room.note(*look())
        except OSError as error:
            room.not_known(str(error))
        await clock.sleep_ms(room.look_again_ms)
