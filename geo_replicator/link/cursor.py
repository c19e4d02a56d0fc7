"""Where each copied log stands: the positions of one link session.

INV-CU1  the position of a log is the mirror's log end: it survives a crash because the bytes do, and a link
         resumes exactly there
INV-CU2  answers of one session are contiguous: a gap or an overlap is a broken session, never appended

Not here: the log, and the primary side's half of the session (`region_broker.region.mirror.primary_side`).
"""

from dataclasses import dataclass, field

from geo_replicator.events import FetchedSlice
from geo_replicator.lineage import LogKey


class CursorBroken(Exception):
    """The primary's answer does not continue where the mirror stands (INV-CU2)."""


@dataclass(slots=True)
class Cursor:
    """Positions by log; `begin` at the mirror's log end, `advance` with each slice."""

    positions: dict[LogKey, int] = field(default_factory=dict)

    def begin(self, key: LogKey, position: int) -> None:
        """Start (again) at `position`."""
        self.positions[key] = position

    def forget(self, key: LogKey) -> None:
        """Stop copying a log."""
        self.positions.pop(key, None)

    def check(self, key: LogKey, position: int) -> bool:
        """Return whether `key` is still copied; raises `CursorBroken` when `position` is not next."""
        stands_at = self.positions.get(key)
        if stands_at is not None and stands_at != position:
            raise CursorBroken(
                f"the primary sent {key.encode()} from offset {position}, the mirror stands at {stands_at}"
            )
        return stands_at is not None

    def advance(self, part: FetchedSlice) -> None:
        """Move past an appended slice."""
        if self.check(part.key, part.position):
            assert part.next_position >= part.position, part
            self.positions[part.key] = part.next_position
