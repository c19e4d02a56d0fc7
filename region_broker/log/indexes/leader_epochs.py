"""Where each leader epoch starts in one log (KIP-101, KIP-320).

INV-E4  where offsets are missing in front of a batch that is copied, an epoch starts where the copied log's leader says, if that is in the gap:
        the batches cannot tell, where that log was cleaned by a version that did not keep the first one of each epoch (INV-CLW3)
INV-E3  an entry without records stands for a term that goes on: it ends with the leadership, and with the process
Epochs and start offsets both grow strictly. Entries that hold records are a function of the log: the batches carry
their epoch.

The newest entry may hold no record yet: a leader notes its epoch when it takes over.
Not here: who leads under which epoch (`idempotency.fencing`, `partitions.partition`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Final, Self

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame

EPOCHS_NAME: Final = "leader-epochs"
_MAGIC: Final = b"TMLE"
_VERSION: Final = 1
UNDEFINED: Final = NO_LEADER_EPOCH


class LeaderEpochs:
    """The cache, in memory."""

    __slots__ = ("_epochs", "_starts")

    def __init__(self) -> None:
        """Start without epochs."""
        self._epochs: list[LeaderEpoch] = []
        self._starts: list[int] = []

    @property
    def latest(self) -> LeaderEpoch:
        """The newest epoch, -1 without any."""
        return self._epochs[-1] if self._epochs else UNDEFINED

    def entries(self) -> list[tuple[LeaderEpoch, int]]:
        """Return (leader epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def note(self, leader_epoch: LeaderEpoch, start_offset: int) -> None:
        """Say that records from `start_offset` on are of `leader_epoch`; known or older epochs are ignored."""
        if leader_epoch <= self.latest:
            return
        while self._starts and self._starts[-1] >= start_offset:
            self._epochs.pop()
            self._starts.pop()
        self._epochs.append(leader_epoch)
        self._starts.append(start_offset)

    def note_missing(
        self, known: Iterable[tuple[LeaderEpoch, int]], end_offset: int, leader_epoch: LeaderEpoch, base_offset: int
    ) -> None:  # fmt: skip
        """Note which of the `known` starts lie between a log's end and a batch of `leader_epoch` that comes next (INV-E4)."""
        for epoch, start_offset in known:
            if epoch <= leader_epoch and end_offset <= start_offset <= base_offset:
                self.note(epoch, start_offset)

    def end_offset(self, leader_epoch: LeaderEpoch, log_end_offset: int) -> tuple[LeaderEpoch, int]:
        """Return (largest epoch <= `leader_epoch`, the offset where it ends); (-1, -1) if unknown.

        The rule of KIP-101 as OffsetForLeaderEpoch has it: the newest epoch ends at the log end; an epoch newer than
        all known ones is unknown; one older than all ends where the first known one starts.
        """
        if leader_epoch < 0 or leader_epoch > self.latest:
            return UNDEFINED, -1
        if leader_epoch == self.latest:
            return leader_epoch, log_end_offset
        higher = bisect_right(self._epochs, leader_epoch)
        floor_epoch = self._epochs[higher - 1] if higher else leader_epoch
        return floor_epoch, self._starts[higher]

    def epoch_at(self, offset: int) -> LeaderEpoch:
        """Return the epoch of the record at `offset`; -1 if it is older than all known epochs."""
        slot = bisect_right(self._starts, offset) - 1
        return self._epochs[slot] if slot >= 0 else UNDEFINED

    def truncate_end(self, offset: int) -> None:
        """Forget epochs that start at or behind `offset`."""
        count = bisect_left(self._starts, offset)
        del self._epochs[count:]
        del self._starts[count:]

    def truncate_start(self, offset: int) -> None:
        """Forget epochs that end at or before `offset`; the one that holds `offset` starts there now."""
        drop = bisect_right(self._starts, offset) - 1
        if drop > 0:
            del self._epochs[:drop]
            del self._starts[:drop]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset

    def encode(self) -> bytes:
        """Return the content of the epochs file."""
        text = "".join(f"{epoch} {start}\n" for epoch, start in self.entries())
        return pack_frame(_MAGIC, _VERSION, text.encode())

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read an epochs file; raises FrameError if it is damaged."""
        epochs = cls()
        for line in unpack_frame(_MAGIC, _VERSION, data).decode().splitlines():
            epoch, _, start = line.partition(" ")
            epochs._epochs.append(LeaderEpoch(int(epoch)))
            epochs._starts.append(int(start))
        if sorted(set(epochs._epochs)) != epochs._epochs:
            raise FrameError("leader epochs do not grow")
        if sorted(set(epochs._starts)) != epochs._starts:
            raise FrameError("start offsets of leader epochs do not grow")
        return epochs
