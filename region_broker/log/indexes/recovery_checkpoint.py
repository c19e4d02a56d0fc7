"""A recovery checkpoint: what the bytes of the open segment up to one position have come to; a start reads from there.

INV-BKM1  a recovery checkpoint is put in its place after the bytes that it speaks of, and a checkpoint that covers
          them, are durable
INV-BKM2  it is durably gone before the segment is cut below its position, or appended to after such a cut
INV-BKM3  it is a shortcut only: without it, with one that is damaged, says more than the checkpoint, or does not fit the
         segment's bytes, the segment is read whole

Content: base, CRC-32C of the last bytes before the position (`PROOF_BYTES_MAX`: another segment has other ones), then the
files that a seal has: index (with position, offset and timestamps), state, leader epochs.
Not here: when it is written (`recovery_checkpoints`), what a start does with it (`recovery`).
"""

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from idempotency.partition_state import PartitionState, SnapshotError
from idempotency.snapshot_draft import SnapshotDraft
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.log.indexes.sparse_index import (
    ENTRY_BYTES,
    SegmentSummary,
    SparseIndex,
    decode_index,
)
from region_broker.ports.disk import DiskFile

RECOVERY_CHECKPOINT_SUFFIX: Final = ".bookmark"
_MAGIC: Final = b"TMBM"
_VERSION: Final = 1
_HEAD: Final = struct.Struct(">qIIII")
PROOF_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCheckpoint:
    """See the module's head; `summary.size_bytes` is its position. The objects in it are its owner's."""

    segment_base: int
    index: SparseIndex
    summary: SegmentSummary
    state: PartitionState
    epochs: LeaderEpochs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryCheckpointDraft:
    """A recovery checkpoint as the loop hands it to a thread: nothing in it changes any more."""

    segment_base: int
    index: SparseIndex
    summary: SegmentSummary
    state: SnapshotDraft
    epochs: bytes

    def size_with(self, state_bytes: int) -> int:
        """Return about how large its file is with that much of a state."""
        return ENTRY_BYTES * len(self.index) + state_bytes + len(self.epochs)

    def proof(self, file: DiskFile) -> int:
        """Return what the segment in `file` is known by; raises OSError."""
        return _proof(file, self.summary.size_bytes)

    def encode(self, proof: int, state: bytes) -> bytes:
        """Return the content of its file; `state`: what the draft of it encodes to."""
        parts = (self.index.encode(self.summary), state, self.epochs)
        head = _HEAD.pack(self.segment_base, proof, *map(len, parts))
        return pack_frame(_MAGIC, _VERSION, b"".join((head, *parts)))


def decode_recovery_checkpoint(
    data: bytes, file: DiskFile, interval_bytes: int
) -> RecoveryCheckpoint:
    """Return what `data` says if it fits the segment in `file`; raises FrameError, OSError."""
    payload = unpack_frame(_MAGIC, _VERSION, data)
    if len(payload) < _HEAD.size:
        raise FrameError("recovery checkpoint has no head")
    base, proof, *sizes = _HEAD.unpack_from(payload)
    if len(payload) != _HEAD.size + sum(sizes):
        raise FrameError(
            f"recovery checkpoint of {len(payload)} bytes does not hold its {sum(sizes)}"
        )
    parts = []
    start = _HEAD.size
    for size_bytes in sizes:
        parts.append(payload[start : start + size_bytes])
        start += size_bytes
    index, summary = decode_index(parts[0], interval_bytes)
    if _proof(file, summary.size_bytes) != proof:
        raise FrameError(
            f"the segment's bytes before {summary.size_bytes} are not those it was made of"
        )
    try:
        state = PartitionState.decode(parts[1])
    except SnapshotError as error:
        raise FrameError(str(error)) from error
    epochs = LeaderEpochs.decode(parts[2])
    return RecoveryCheckpoint(
        segment_base=base, index=index, summary=summary, state=state, epochs=epochs
    )


def _proof(file: DiskFile, position: int) -> int:
    """Return the CRC-32C of the last bytes before `position`."""
    at = max(position - PROOF_BYTES_MAX, 0)
    value: int = crc32c(file.pread(position - at, at))
    return value
