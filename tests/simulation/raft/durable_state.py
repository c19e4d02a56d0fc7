"""What a simulated member's disk holds: it survives a crash, and what is being written then is torn."""

from dataclasses import dataclass, field
from random import Random

import msgspec

from region_broker.controller.raft.effects import KeepSnapshotPiece, Persist
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    HardState,
    LogIndex,
    Membership,
    SnapshotPoint,
)


@dataclass(slots=True)
class DurableState:
    """Term, vote, log and snapshot. `draft`: the pieces of a snapshot that is not whole, and is gone with the process."""

    snapshot: SnapshotPoint
    image: bytes
    hard: HardState = field(default_factory=HardState)
    entries: list[Entry] = field(default_factory=list)
    draft: bytes = b""

    @property
    def first_index(self) -> int:
        """Return where the log begins."""
        return self.entries[0].index if self.entries else self.snapshot.index + 1

    @property
    def last_index(self) -> int:
        """Return where the log ends."""
        return self.entries[-1].index if self.entries else self.snapshot.index

    @property
    def membership(self) -> Membership:
        """Return the newest membership of log and snapshot."""
        for entry in reversed(self.entries):
            if entry.kind is EntryKind.MEMBERSHIP and entry.index > self.snapshot.index:
                return msgspec.msgpack.decode(entry.payload, type=Membership)
        return self.snapshot.membership

    @property
    def has_membership(self) -> bool:
        """Return whether a membership was written down."""
        kinds = (each.kind for each in self.entries)
        return self.snapshot.index > 0 or EntryKind.MEMBERSHIP in kinds

    def entry_at(self, index: int) -> Entry | None:
        """Return an entry that is in the log."""
        place = index - self.first_index
        return self.entries[place] if 0 <= place < len(self.entries) else None

    def persist(self, effect: Persist, steps: int | None = None) -> None:
        """Write as the effect says; `steps`: only so much of it, then the power went."""
        left = self.steps_of(effect) if steps is None else steps
        if effect.hard_state is not None and left:
            self.hard = effect.hard_state
            left -= 1
        if effect.cut_behind is not None and left:
            self.entries = [each for each in self.entries if each.index <= effect.cut_behind]
            left -= 1
        self.entries.extend(effect.entries[:left])

    @staticmethod
    def steps_of(effect: Persist) -> int:
        """Return between how many writes the power may go."""
        return (
            (effect.hard_state is not None) + (effect.cut_behind is not None) + len(effect.entries)
        )

    def keep_snapshot(self, point: SnapshotPoint, image: bytes) -> None:
        """Exchange the snapshot, as one step."""
        self.snapshot = point
        self.image = image

    def drop(self, up_to: LogIndex) -> None:
        """Drop the beginning of the log."""
        self.entries = [each for each in self.entries if each.index > up_to]

    def power_goes(self, writing: Persist | KeepSnapshotPiece | None, chance: Random) -> None:
        """Lose what was being written, or a part of it."""
        match writing:
            case Persist():
                self.persist(writing, chance.randrange(self.steps_of(writing) + 1))
            case KeepSnapshotPiece(last=True) if chance.random() < 0.5:
                # The snapshot stands, and the log that it takes the place of is not dropped yet.
                self.keep_snapshot(writing.point, self.draft + writing.data)
            case _:
                pass
        self.draft = b""
