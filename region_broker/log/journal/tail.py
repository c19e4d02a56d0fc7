"""What was appended to a log since its last group commit, kept in memory for the journal.

INV-JT1  a piece is exactly the bytes from where the last group ended to the log's end, in one segment; what is too
        much, or goes over two segments, is no piece: the log then syncs its own files

Not here: whether a piece goes into the journal (`group_commit`).
"""

from collections.abc import Sequence

from region_broker.log.journal.blocks import LogId, Piece
from region_broker.log.journal.writer import PIECE_BYTES_MAX
from region_broker.ports.disk import Buffer


class LogTail:
    """One per log; without a `log_id` nothing is kept."""

    __slots__ = ("_buffers", "_log_id", "_next_position", "_position", "_segment_base", "_whole")

    def __init__(self, log_id: LogId | None) -> None:
        """Start empty."""
        self._log_id = log_id
        self.clear()

    def clear(self) -> None:
        """Begin anew at the log's end."""
        self._buffers: list[Buffer] = []
        self._whole = self._log_id is not None
        self._segment_base = self._position = self._next_position = -1

    def add(self, segment_base: int, position: int, buffers: Sequence[Buffer]) -> None:
        """Note bytes that were written; they must not be changed any more."""
        if not self._whole:
            return
        if not self._buffers:
            self._segment_base, self._position = segment_base, position
        elif self._segment_base != segment_base or self._next_position != position:
            self._give_up()
            return
        self._next_position = position + sum(map(len, buffers))
        if self._next_position - self._position > PIECE_BYTES_MAX:
            self._give_up()
            return
        self._buffers += buffers

    def _give_up(self) -> None:
        self._whole = False
        self._buffers = []

    def take(self, next_offset: int) -> Piece | None:
        """Return what was added since the last call, if it can be journaled; the log ends at `next_offset`."""
        piece = None
        if self._whole and self._buffers:
            assert self._log_id is not None
            size_bytes = self._next_position - self._position
            piece = Piece(
                self._log_id,
                self._segment_base,
                self._position,
                next_offset,
                size_bytes,
                self._buffers,
            )
        self.clear()
        return piece
