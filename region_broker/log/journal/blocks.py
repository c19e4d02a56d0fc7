"""What stands in the journal file: a head, then two halves of blocks.

INV-JB2  a block is whole or it is nothing: its CRC covers serial, number, entries and bytes
INV-JB4  a head is written beside the one in force: one that is torn changes nothing, one that is lost is noticed
INV-JB5  a page that begins with a block's magic begins a block: data that would look like one is not journaled, so no client
         can write what a start takes for a block that is missing or of a later life
INV-JB3  in a half, blocks stand back to back from its start and their numbers grow by one; what follows the last
        one is of an earlier lap (its number is lower) or of an earlier life (its serial is another)
A block begins at a multiple of `ALIGN_BYTES`, so writing one never touches a page of another.

    head     magic TMJH, version, CRC-32C, serial, bytes of a half, whether it was closed with nothing to replay;
             twice, the sound one with the higher serial counts
    block    magic TMJB, version, number of entries, CRC-32C, serial, number, bytes of all entries,
             then each entry (log, segment, position, next offset, size), then their bytes in the same order

Numbers are big-endian. Not here: when blocks are written (`writer`), what is done with them (`replay`).
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from crc32c import crc32c

from region_broker.log.failures import LogDamaged
from region_broker.ports.disk import Buffer, DiskFile

ALIGN_BYTES: Final = 4096
_SCAN_BYTES: Final = 1 << 20
_VERSION: Final = 1
_HEAD_MAGIC: Final = b"TMJH"
_BLOCK_MAGIC: Final = b"TMJB"
_HEAD: Final = struct.Struct(">4sB3xIQQB")
_HEAD_CRC_FROM: Final = 12
_HEAD_SLOTS: Final = (0, 2048)
_WHAT_TO_DO: Final = (
    "what was acknowledged last may be in it. Restore the folder; or remove the file `journal`, if a mirror"
    " region holds all that this one acknowledged"
)
_BLOCK: Final = struct.Struct(">4sBxHIQQQ")
_BLOCK_CRC_FROM: Final = 12
_ENTRY: Final = struct.Struct(">16sIQQQI")
ENTRIES_MAX: Final = 65_535

LogId = tuple[bytes, int]
"""Topic id (16 bytes) and partition."""


class Head(NamedTuple):
    """Which life of the journal its blocks belong to, how long a half is, and whether nothing in it is needed.

    Each life has the next higher serial, and so has the end of it (`closed`).
    """

    serial: int
    half_bytes: int
    closed: bool = False

    def encode(self) -> bytes:
        """Return its bytes."""
        crc = crc32c(self._pack(0)[_HEAD_CRC_FROM:])
        return self._pack(crc)

    def _pack(self, crc: int) -> bytes:
        return _HEAD.pack(_HEAD_MAGIC, _VERSION, crc, self.serial, self.half_bytes, self.closed)

    def file_content(self) -> bytes:
        """Return a whole file without blocks."""
        slot = _HEAD_SLOTS[self.serial % 2]
        return (bytes(slot) + self.encode()).ljust(self.file_bytes, b"\0")

    def write(self, file: DiskFile) -> None:
        """Write it beside the one before, and sync; OSError of the disk."""
        file.pwrite(_HEAD_SLOTS[self.serial % 2], self.encode())
        file.fdatasync()

    @classmethod
    def read(cls, file: DiskFile) -> "Head":
        """Return the head in force; raises LogDamaged, OSError of the disk."""
        found = [head for at in _HEAD_SLOTS if (head := cls._decode(file.pread(_HEAD.size, at)))]
        if not found:
            raise LogDamaged(f"the journal has no sound head: {_WHAT_TO_DO}")
        return max(found)

    @classmethod
    def _decode(cls, data: bytes) -> "Head | None":
        if len(data) < _HEAD.size:
            return None
        magic, version, crc, serial, half_bytes, closed = _HEAD.unpack(data)
        sound = crc32c(data[_HEAD_CRC_FROM:]) == crc
        if magic != _HEAD_MAGIC or version != _VERSION or not sound:
            return None
        return cls(serial, half_bytes, bool(closed))

    @property
    def starts(self) -> tuple[int, int]:
        """Where the halves begin."""
        return ALIGN_BYTES, ALIGN_BYTES + self.half_bytes

    @property
    def file_bytes(self) -> int:
        """The size of the file."""
        return ALIGN_BYTES + 2 * self.half_bytes


class Piece(NamedTuple):
    """Bytes of one log on their way into the journal."""

    log_id: LogId
    segment_base: int
    position: int
    next_offset: int
    size_bytes: int
    buffers: Sequence[Buffer]


@dataclass(frozen=True, slots=True)
class Entry:
    """Bytes of one log as they stand in the journal, at `at` of its file."""

    log_id: LogId
    block_number: int
    segment_base: int
    position: int
    next_offset: int
    size_bytes: int
    at: int


def block_bytes(piece_count: int, data_bytes: int) -> int:
    """Return how much of the file a block takes."""
    total = _BLOCK.size + piece_count * _ENTRY.size + data_bytes
    return -(-total // ALIGN_BYTES) * ALIGN_BYTES


def encode_block(serial: int, number: int, pieces: Sequence[Piece]) -> bytes:
    """Return a whole block, padded to `block_bytes`."""
    assert 0 < len(pieces) <= ENTRIES_MAX
    entries = [_ENTRY.pack(*piece.log_id, *piece[1:5]) for piece in pieces]
    data = b"".join([*entries, *(part for piece in pieces for part in piece.buffers)])
    numbers = _BLOCK.pack(_BLOCK_MAGIC, _VERSION, len(pieces), 0, serial, number, len(data))
    crc = crc32c(data, crc32c(numbers[_BLOCK_CRC_FROM:]))
    head = _BLOCK.pack(_BLOCK_MAGIC, _VERSION, len(pieces), crc, serial, number, len(data))
    padding = bytes(-(len(head) + len(data)) % ALIGN_BYTES)
    return b"".join((head, data, padding))


def has_look_alikes(block: bytes) -> bool:
    """Return whether a page inside an encoded block begins like a block of its own: it must not be written
    (INV-JB5)."""
    pages = range(ALIGN_BYTES, len(block), ALIGN_BYTES)
    return any(block[at : at + 4] == _BLOCK_MAGIC for at in pages)


class _Block(NamedTuple):
    serial: int
    number: int
    size_bytes: int
    entries: list[Entry]


def read_blocks(file: DiskFile, head: Head) -> list[Entry]:
    """Return the entries of all blocks of this life, oldest first.

    Raises LogDamaged if a block is missing in front of a later one: blocks are synced one after the other, so no
    crash does that. OSError of the disk.
    """
    halves = [list(_chain(file, head, start)) for start in head.starts]
    chains = sorted((blocks for blocks in halves if blocks), key=lambda blocks: blocks[0].number)
    last = max((blocks[-1].number for blocks in chains), default=-1)
    for start in head.starts:
        for found in _blocks_anywhere(file, head, start):
            if found.serial > head.serial:
                raise LogDamaged(f"the journal's newest head is lost: {_WHAT_TO_DO}")
            if found.number > last:
                raise LogDamaged(
                    f"the journal has block {found.number}, but not all in front of it: {_WHAT_TO_DO}"
                )
    return [entry for blocks in chains for block in blocks for entry in block.entries]


def _chain(file: DiskFile, head: Head, start: int) -> Iterator[_Block]:
    at, end = start, start + head.half_bytes
    expected: int | None = None
    while at < end:
        block = _read_block(file, head.serial, at, end)
        if block is None or (expected is not None and block.number != expected):
            return
        yield block
        expected = block.number + 1
        at += block.size_bytes


def _blocks_anywhere(file: DiskFile, head: Head, start: int) -> Iterator[_Block]:
    """Yield every whole block of this life or a later one in a half.

    Whole ones only: pages of older journals may hold what only begins like one (INV-JB5).
    """
    end = start + head.half_bytes
    for window_at in range(start, end, _SCAN_BYTES):
        window = file.pread(min(_SCAN_BYTES, end - window_at), window_at)
        for at in range(0, len(window), ALIGN_BYTES):
            if window[at : at + 4] != _BLOCK_MAGIC:
                continue
            serial = int.from_bytes(window[at + 12 : at + 20], "big")
            if serial >= head.serial:
                found = _read_block(file, serial, window_at + at, end)
                if found is not None:
                    yield found


def _read_block(file: DiskFile, life: int, at: int, end: int) -> _Block | None:
    """Return the block at `at`; None if there is no whole one of that life."""
    numbers = file.pread(_BLOCK.size, at)
    if len(numbers) < _BLOCK.size:
        return None
    magic, version, count, crc, serial, number, data_bytes = _BLOCK.unpack(numbers)
    if (magic, version, serial) != (_BLOCK_MAGIC, _VERSION, life):
        return None
    if at + _BLOCK.size + data_bytes > end or count * _ENTRY.size > data_bytes:
        return None
    data = file.pread(data_bytes, at + _BLOCK.size)
    if crc32c(data, crc32c(numbers[_BLOCK_CRC_FROM:])) != crc:
        return None
    data_at = at + _BLOCK.size + count * _ENTRY.size
    entries: list[Entry] = []
    for row in _ENTRY.iter_unpack(data[: count * _ENTRY.size]):
        topic_id, partition, segment_base, position, next_offset, size_bytes = row
        entries.append(
            Entry(
                (topic_id, partition),
                number,
                segment_base,
                position,
                next_offset,
                size_bytes,
                data_at,
            )
        )
        data_at += size_bytes
    return _Block(serial, number, block_bytes(count, data_bytes - count * _ENTRY.size), entries)
