"""Digest sidecars: the headers and range digests of a sealed segment, written once while its pages are hot.

``<base offset>.hdr`` beside ``<base offset>.log``: magic, version, length, CRC-32C, then msgpack with the
columns of `BATCH_DTYPE`, each byte-shuffled and deflated. Needs numpy and msgspec only, so brokers write it.

INV-RCSD1  a sidecar is whole or absent: `SidecarDisk.write_file_atomic`
INV-RCSD2  it names the size and SHA-256 of the segment it speaks of; another size makes it stale at once,
         another content when the hash is compared
INV-RCSD3  a segment that does not walk to its end gets no sidecar: it would vouch for bytes it never saw

Not here: when a segment is sealed (the broker), what digests are for (`diff`).
"""

import zlib
from dataclasses import dataclass
from pathlib import Path
from struct import Struct
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from geo_replicator.reconciliation.segments.batch_table import (
    BATCH_DTYPE,
    DIGEST_VERSION,
    RANGE_DTYPE,
    BatchTable,
    range_digests,
)
from geo_replicator.reconciliation.segments.scanner import SegmentFileBytes, Stop, scan_open_segment
from geo_replicator.reconciliation.segments.sidecar_names import sidecar_path

_FRAME: Final = Struct(">4sBQI")
_MAGIC: Final = b"TMHD"
_VERSION: Final = 1
_DEFLATE_LEVEL: Final = 1


class SidecarError(Exception):
    """The sidecar cannot be used: damaged, stale, or of a newer version; read the segment instead."""


class SegmentDamaged(OSError):
    """The segment does not walk to its end, or a CRC is wrong: no sidecar may vouch for it.

    An `OSError`: the disk gave back something else than was written.
    """


class OpenSegment(SegmentFileBytes, Protocol):
    """A segment that was opened to be read."""

    def close(self) -> None:
        """Let go of it."""
        ...


class SidecarDisk(Protocol):
    """What a disk must do here; a node hands in its own, so that its faults are those of all other files."""

    def open(self, path: Path) -> OpenSegment:
        """Open a file; raises OSError."""
        ...

    def write_file_atomic(self, path: Path, data: bytes) -> None:
        """Make `data` the file's whole content durably, or change nothing; raises OSError."""
        ...


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    digest_version: int
    segment_bytes: int
    segment_sha256: bytes
    batch_count: int
    columns: dict[str, bytes]
    ranges: bytes


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a sidecar says of its segment."""

    table: BatchTable
    ranges: npt.NDArray[Any]
    segment_bytes: int
    segment_sha256: bytes


def write_sidecar(segment_path: Path, disk: SidecarDisk) -> Path:
    """Read a sealed segment once, check every CRC, and write its sidecar durably; return its path.

    Blocking, for a thread: about 0.2 CPU seconds per GB and 2 us per batch. Raises OSError (disk), and
    SegmentDamaged if the segment is torn or a checksum is wrong.
    """
    file = disk.open(segment_path)
    try:
        scan = scan_open_segment(file)
    finally:
        file.close()
    damaged = int((scan.table["crc_ok"] == 0).sum())
    if scan.stop is not Stop.END or damaged:
        raise SegmentDamaged(
            f"{segment_path.name}: {damaged} batches with a wrong CRC, {scan.skipped_bytes} bytes that"
            f" are no batch ({scan.stop.value}); run `tidemark reconcile verify` to see where"
        )
    target = sidecar_path(segment_path)
    disk.write_file_atomic(target, encode(scan.table, scan.size_bytes, scan.sha256))
    return target


def encode(table: BatchTable, segment_bytes: int, segment_sha256: bytes) -> bytes:
    """Return the bytes of a sidecar."""
    names = BATCH_DTYPE.names
    assert names is not None
    content = msgspec.msgpack.encode(
        _Content(
            digest_version=DIGEST_VERSION,
            segment_bytes=segment_bytes,
            segment_sha256=segment_sha256,
            batch_count=len(table),
            columns={name: _pack(table[name]) for name in names},
            ranges=range_digests(table).tobytes(),
        )
    )
    return _FRAME.pack(_MAGIC, _VERSION, len(content), crc32c(content)) + content


def _pack(column: npt.NDArray[Any]) -> bytes:
    """Return the column as differences, bytes of equal weight side by side, deflated."""
    little = column.astype(column.dtype.newbyteorder("<")).view(f"<u{column.dtype.itemsize}")
    steps = np.diff(little, prepend=little.dtype.type(0))
    planes = steps.view(np.uint8).reshape(-1, column.dtype.itemsize).T
    return zlib.compress(np.ascontiguousarray(planes).tobytes(), _DEFLATE_LEVEL)


def _unpack(data: bytes, dtype: np.dtype[Any], count: int) -> npt.NDArray[Any]:
    size = dtype.itemsize
    raw = zlib.decompressobj().decompress(data, count * size + 1)
    if len(raw) != count * size:
        raise SidecarError("a column has another length than the table: the sidecar is damaged")
    planes = np.frombuffer(raw, np.uint8).reshape(size, count).T
    steps = np.ascontiguousarray(planes).view(f"<u{size}").reshape(-1)
    return np.cumsum(steps, dtype=steps.dtype).view(dtype.newbyteorder("<"))


def decode(data: bytes) -> Sidecar:
    """Return what `encode` wrote; raises SidecarError."""
    if len(data) < _FRAME.size:
        raise SidecarError(f"{len(data)} bytes are no sidecar")
    magic, version, length, crc = _FRAME.unpack_from(data)
    content = data[_FRAME.size :]
    if magic != _MAGIC or length != len(content) or crc32c(content) != crc:
        raise SidecarError("the sidecar is damaged: its frame or CRC does not match")
    if version != _VERSION:
        raise SidecarError(f"sidecar version {version}, this build reads {_VERSION}")
    try:
        facts = msgspec.msgpack.decode(content, type=_Content)
        if facts.digest_version != DIGEST_VERSION:
            raise SidecarError(f"digest version {facts.digest_version} is not {DIGEST_VERSION}")
        table = np.empty(facts.batch_count, BATCH_DTYPE)
        for name in BATCH_DTYPE.names or ():
            table[name] = _unpack(facts.columns[name], BATCH_DTYPE[name], facts.batch_count)
        ranges = np.frombuffer(facts.ranges, RANGE_DTYPE)
    except (msgspec.DecodeError, zlib.error, KeyError, ValueError) as error:
        raise SidecarError(f"the sidecar is damaged: {error}") from error
    return Sidecar(table, ranges, facts.segment_bytes, facts.segment_sha256)


def read_sidecar(segment_path: Path, *, segment_bytes: int) -> Sidecar:
    """Return the sidecar of a segment that has `segment_bytes` bytes now.

    Raises SidecarError if it is damaged or speaks of another size, FileNotFoundError if there is none.
    """
    sidecar = decode(sidecar_path(segment_path).read_bytes())
    if sidecar.segment_bytes != segment_bytes:
        raise SidecarError(
            f"the sidecar speaks of {sidecar.segment_bytes} bytes, the segment has {segment_bytes}: stale"
        )
    return sidecar
