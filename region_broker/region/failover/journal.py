"""The failover journal: every step of a region's failover and return, durable before its effects (T18).

INV-FJ2  a torn last frame was never acted on: it is cut off at `recover`. Damage before it is not mended:
         `JournalDamaged`, because guessing a region's epoch could let two regions act
INV-FJ3  events are read back in the order they were appended, and never changed
INV-FJ4  what is appended is read back: an event that has no room in a frame is refused, and nothing of it written
`append` returns only once the event is on stable storage, also the file's name.

Frame: u32 payload bytes, u32 CRC-32C of the payload, payload (JSON, so that a person can read it). Failovers
are rare, so the file is never compacted.
Not here: what the events mean (`geo_replicator.failover`).
"""

import asyncio
import struct
from pathlib import Path
from typing import Final

import msgspec
from crc32c import crc32c

from geo_replicator.failover_events import Event
from region_broker.ports.disk import Disk, DiskFile, sync_as_found
from region_broker.ports.offload import Offload

MAGIC: Final = b"TMFAIL01"
EVENT_BYTES_MAX: Final = 64 * 1024 * 1024
_FRAME: Final = struct.Struct(">II")
_SECTOR_BYTES: Final = 512


class EventTooLarge(Exception):
    """An event has no room in a frame; the text says how large it is. Nothing was written."""


class JournalDamaged(Exception):
    """The journal cannot be trusted; the text names the place and the way out."""


class FailoverJournal:
    """One append-only file. `recover` first, then `append`."""

    def __init__(self, disk: Disk, path: Path, *, offload: Offload = asyncio.to_thread) -> None:
        """Keep the journal at `path`; `offload` runs the sync outside the event loop."""
        self._disk = disk
        self._path = path
        self._offload = offload
        self._decoder = msgspec.json.Decoder(Event)
        self._file: DiskFile | None = None
        self._end_bytes = 0

    def peek(self) -> list[Event] | None:
        """Return the events that are there, None without a file; changes nothing. Raises `JournalDamaged`, OSError."""
        if not self._disk.exists(self._path):
            return None
        data = self._disk.read_file(self._path)
        return self._read(data)[0] if data.startswith(MAGIC) else []

    def recover(self) -> list[Event]:
        """Open the file, create it if needed, and return its events; raises `JournalDamaged`, OSError."""
        assert self._file is None, "recover is called once"
        self._disk.make_dirs(self._path.parent)
        file = self._disk.open(self._path, create=True)
        data = file.pread(file.size(), 0)
        if len(data) < len(MAGIC):
            # Younger than its first sync: nothing was acted on.
            file.truncate(0)
            file.pwrite(0, MAGIC)
            file.fdatasync()
            self._disk.fsync_dir(self._path.parent)
            data = MAGIC
        else:
            sync_as_found(self._disk, self._path)
        if not data.startswith(MAGIC):
            raise JournalDamaged(self._complaint(0, "no magic number"))
        events, end_bytes = self._read(data)
        if end_bytes < len(data):
            file.truncate(end_bytes)
            file.fdatasync()
        self._file = file
        self._end_bytes = end_bytes
        return events

    def _read(self, data: bytes) -> tuple[list[Event], int]:
        events: list[Event] = []
        position = len(MAGIC)
        while len(data) - position >= _FRAME.size:
            size_bytes, crc = _FRAME.unpack_from(data, position)
            end = position + _FRAME.size + size_bytes
            sector_end = position - position % _SECTOR_BYTES + _SECTOR_BYTES
            if size_bytes == 0 and not any(data[position:sector_end]):
                break  # torn: its first sector was never written, a later one perhaps; no event has no bytes
            if size_bytes > EVENT_BYTES_MAX:
                raise JournalDamaged(self._complaint(position, f"a frame of {size_bytes} bytes"))
            payload = data[position + _FRAME.size : end]
            if end > len(data):
                break
            if crc32c(payload) != crc:
                if end == len(data):
                    break
                raise JournalDamaged(self._complaint(position, "a wrong CRC before the last frame"))
            events.append(self._decode(payload, position))
            position = end
        return events, position

    def _decode(self, payload: bytes, position: int) -> Event:
        try:
            event: Event = self._decoder.decode(payload)
        except msgspec.MsgspecError as error:
            reason = f"an event that this version does not know ({error})"
            raise JournalDamaged(self._complaint(position, reason)) from error
        return event

    def _complaint(self, position: int, what: str) -> str:
        return (
            f"{self._path} has {what} at byte {position}. It says which region may act, so it is not"
            " repaired by guessing: restore it, or start this region with an empty --data-dir and let"
            " it mirror the other one."
        )

    @staticmethod
    def has_room(event: Event) -> bool:
        """Return whether `append` takes `event`."""
        return len(msgspec.json.encode(event)) <= EVENT_BYTES_MAX

    async def append(self, event: Event) -> None:
        """Return once `event` is durable; raises OSError, after which nothing was promised, and `EventTooLarge`."""
        assert self._file is not None, "recover comes first"
        payload = msgspec.json.encode(event)
        if len(payload) > EVENT_BYTES_MAX:
            name = type(event).__name__
            raise EventTooLarge(
                f"this {name} has {len(payload)} bytes, of {EVENT_BYTES_MAX} that an event of the journal may have"
            )
        frame = _FRAME.pack(len(payload), crc32c(payload))
        self._file.pwrite(self._end_bytes, frame, payload)
        await self._offload(self._file.fdatasync)
        self._end_bytes += len(frame) + len(payload)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
