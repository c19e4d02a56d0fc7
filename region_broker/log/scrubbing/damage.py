"""A range of a sealed segment that is not what was written, and what may be put in its place.

INV-DR1  what takes the place of a damaged range has the right CRC in each batch, joins it at both ends in offsets and in
         bytes, has no hole, and the leader epochs that this log's index names for those offsets
INV-DR2  where a cleaning may have taken records away, nothing is put in: the regions' bytes differ there (T13)

Pure. Not here: finding it (`examining`), fetching (`partitions.mending`), the durable step (`cleaning.state`).
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from idempotency.record_batch import BatchError, Buffer, crc_ok, iter_headers
from region_broker.log.indexes.leader_epochs import LeaderEpochs

EpochStart = tuple[LeaderEpoch, int]
_BEYOND: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class DamagedRange:
    """Offsets [`from_offset`, `to_offset`), which lie in bytes [`position`, `end_position`) of one segment's file."""

    from_offset: int
    to_offset: int
    position: int
    end_position: int
    reason: str

    @property
    def size_bytes(self) -> int:
        """Return how many bytes of the file it takes."""
        return self.end_position - self.position


class WrongPiece(Exception):
    """Bytes that cannot take the place of a damaged range; the text says why."""


class EpochsAt:
    """Which leader epoch each offset of a log was written under, as its index said when this was made."""

    __slots__ = ("_entries", "_from", "_starts", "_until", "epoch")

    def __init__(self, entries: Sequence[EpochStart]) -> None:
        """Hold `entries`, oldest first."""
        self._entries = entries
        self._starts = [start for _, start in entries]
        self._from = self._until = 0
        self.epoch: LeaderEpoch = NO_LEADER_EPOCH

    def at(self, offset: int) -> LeaderEpoch:
        """Return the leader epoch of `offset`; -1 where it is older than all that are known."""
        if not self._from <= offset < self._until:
            slot = bisect_right(self._starts, offset)
            self.epoch = self._entries[slot - 1][0] if slot else NO_LEADER_EPOCH
            self._from = self._starts[slot - 1] if slot else 0
            self._until = self._starts[slot] if slot < len(self._starts) else _BEYOND
        return self.epoch


class Joining:
    """Takes the pieces of one damaged range in order, and judges them (INV-DR1)."""

    def __init__(self, damage: DamagedRange, epochs: LeaderEpochs) -> None:
        """Begin at the start of `damage`; `epochs` is the index of the log."""
        self._damage = damage
        self._epochs = EpochsAt(epochs.entries())
        self.next_offset = damage.from_offset
        self.position = damage.position
        """Where the next piece goes in the file."""

    @property
    def is_whole(self) -> bool:
        """Whether the range is complete."""
        return self.next_offset == self._damage.to_offset

    def take(self, data: Buffer) -> None:
        """Judge the next piece, whole batches; raises `WrongPiece`."""
        next_offset, end = self.next_offset, 0
        try:
            for at, header in iter_headers(data):
                if header.base_offset != next_offset or header.next_offset > self._damage.to_offset:
                    raise WrongPiece(
                        f"a batch of [{header.base_offset}, {header.next_offset}) where [{next_offset}, "
                        f"{self._damage.to_offset}) is missing"
                    )
                if not crc_ok(data, at, header):
                    raise WrongPiece(f"the batch of {header.base_offset} has a wrong CRC")
                epoch = self._epochs.at(header.base_offset)
                if epoch not in (NO_LEADER_EPOCH, header.leader_epoch):
                    raise WrongPiece(
                        f"the batch of {header.base_offset} has leader epoch {header.leader_epoch}, here it is {epoch}"
                    )
                next_offset, end = header.next_offset, at + header.size_bytes
        except BatchError as error:
            raise WrongPiece(f"no batch behind {next_offset}: {error}") from error
        if end != len(data) or end == 0:
            raise WrongPiece(f"it ends in the middle of a batch behind {next_offset}")
        position = self.position + end
        ends_there = next_offset == self._damage.to_offset
        if position > self._damage.end_position or (
            ends_there and position != self._damage.end_position
        ):
            raise WrongPiece(
                f"{position - self._damage.position} bytes up to {next_offset}, where {self._damage.size_bytes} are missing"
            )
        self.next_offset, self.position = next_offset, position
