"""A member's folder through crashes and faults of the disk, against a model: what was persisted is there, and nothing else.

The model is the paper's list of what is on stable storage (Raft, figure 2): term, vote, log; and the snapshot. A step that
did not return has happened, or has not (INV-RT1); one that was refused for want of room has not (INV-RT4).
"""

import errno
import random
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from region_broker.controller.raft import durable
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import Persist
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    HardState,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.failures import RaftStoreFailed, RaftStoreFull
from region_broker.controller.raft.snapshot_file import Piece
from tests.simulation.disk import Crashed, SimulatedDisk

FOLDER = Path("/data/raft")
ME = Member(1, UUID(int=1))
OTHER = Member(2, UUID(int=2))
ROOM_BYTES = 200_000


@dataclass(frozen=True)
class Model:
    """What is durable; `entries` are those behind the snapshot."""

    hard_state: HardState
    snapshot: tuple[SnapshotPoint, bytes] | None = None
    entries: tuple[Entry, ...] = ()

    @property
    def start(self) -> int:
        return self.snapshot[0].index if self.snapshot else 0

    @property
    def last(self) -> int:
        return self.start + len(self.entries)

    def term_at(self, index: int) -> Term:
        if index > self.start:
            return self.entries[index - self.start - 1].term
        return self.snapshot[0].term if self.snapshot else Term(0)

    def persisted(self, change: Persist) -> "Model":
        kept = self.entries
        if change.cut_behind is not None:
            kept = kept[: change.cut_behind - self.start]
        hard_state = change.hard_state or self.hard_state
        return replace(self, hard_state=hard_state, entries=(*kept, *change.entries))

    def snapshotted(self, point: SnapshotPoint, image: bytes) -> "Model":
        kept = self.entries[point.index - self.start :]
        return replace(self, snapshot=(point, image), entries=kept)


class Life:
    """One folder, its model, and a disk that fails."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.disk = SimulatedDisk()
        self.allowed = [Model(HardState())]
        self.dropped = 0
        self.store = self.reopened()

    @property
    def model(self) -> Model:
        assert len(self.allowed) == 1
        return self.allowed[0]

    def reopened(self) -> RaftStore:
        """Start again and again, until nothing fails; what comes back must be allowed, and is what counts from now on."""
        while True:
            try:
                store, found = RaftStore.open(self.disk, FOLDER, ME)
            except (Crashed, RaftStoreFailed):
                self.end_process()
                continue
            except RaftStoreFull:
                self.end_process()
                self.disk.room_bytes = None
                continue
            model = Model(found.hard_state, found.snapshot, found.entries)
            assert model in self.allowed, (model, self.allowed)
            self.allowed = [model]
            self.dropped = model.start
            return store

    def end_process(self) -> None:
        if self.rng.random() < 0.5:
            self.disk.power_loss(self.rng)
        else:
            self.disk.process_killed()
        if self.rng.random() < 0.2:
            self.disk.crash_after(self.rng.randrange(12))
        elif self.rng.random() < 0.2:
            self.disk.fail_by_chance(self.rng, 0.1, (errno.EIO, errno.ENOSPC))

    def step(self) -> None:
        """Do one thing that a core may ask for, on a disk that may fail or end here."""
        before = self.model
        choice = self.rng.random()
        if choice < 0.1:
            self.disk.crash_after(self.rng.randrange(8))
        elif choice < 0.2:
            self.disk.fail_by_chance(self.rng, 0.3, (errno.EIO, errno.ENOSPC))
        elif choice < 0.3:
            self.disk.room_bytes = self.rng.randrange(ROOM_BYTES)
        try:
            self.act()
        except RaftStoreFull:
            self.allowed = [before]
        except (Crashed, RaftStoreFailed):
            self.end_process()
            self.store = self.reopened()
        else:
            self.allowed = self.allowed[-1:]
        self.disk.fault = None
        self.disk.crash_at = None
        self.disk.room_bytes = None

    def act(self) -> None:
        choice = self.rng.random()
        if choice < 0.6:
            self.persist()
        elif choice < 0.7:
            self.store.make_room(self.rng.randrange(200_000))
        elif choice < 0.8:
            self.snapshot()
        elif choice < 0.9:
            self.drop()
        else:
            self.install()

    def persist(self) -> None:
        changes: list[Persist] = []
        model = self.model
        for _ in range(self.rng.choice([1, 1, 1, 3])):
            change = self.change(model)
            changes.append(change)
            model = model.persisted(change)
        if self.rng.random() < 0.5:
            self.store.make_room(1024)
        self.allowed = [self.model, model]
        self.store.persist(changes)

    def change(self, model: Model) -> Persist:
        term = model.hard_state.term
        hard_state = None
        if self.rng.random() < 0.4:
            term = Term(term + 1)
            hard_state = HardState(term, self.rng.choice([None, ME, OTHER]))
        cut = None
        last = model.last
        if self.rng.random() < 0.2 and hard_state:
            last = self.rng.randint(model.start, model.last)
            cut = LogIndex(last)
        term = max(term, model.term_at(last))
        entries = tuple(
            Entry(LogIndex(last + 1 + at), term, EntryKind.COMMAND, self.payload())
            for at in range(self.rng.choice([0, 1, 1, 4]))
        )
        return Persist(hard_state, cut, entries)

    def payload(self) -> bytes:
        return self.rng.randbytes(self.rng.choice([0, 10, 700, 9000]))

    def point(self, index: int, term: Term) -> SnapshotPoint:
        return SnapshotPoint(LogIndex(index), term, Membership((ME, OTHER)))

    def snapshot(self) -> None:
        model = self.model
        if model.last == model.start:
            return
        index = self.rng.randint(model.start + 1, model.last)
        point, image = self.point(index, model.term_at(index)), self.payload()
        self.allowed = [model, model.snapshotted(point, image)]
        self.store.keep_snapshot(point, image)

    def drop(self) -> None:
        model = self.model
        if model.start > self.dropped:
            self.dropped = self.rng.randint(self.dropped, model.start)
            self.store.drop_log(LogIndex(self.dropped))

    def install(self) -> None:
        model = self.model
        index, term = model.last + self.rng.randint(1, 5), model.hard_state.term
        if term < max(1, model.term_at(model.last)):
            return  # whoever hears of a term notes it first
        point, parts = self.point(index, term), [self.payload() for _ in range(3)]
        position = 0
        for part in parts[:-1]:
            self.store.keep_piece(Piece(point, position, part, last=False))
            position += len(part)
        self.allowed = [model, model.snapshotted(point, b"".join(parts))]
        self.store.keep_piece(Piece(point, position, parts[-1], last=True))
        self.dropped = index


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_what_was_persisted_is_there_and_nothing_else_is(seed: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            durable, "OUTDATED_BYTES_MIN", 10_000
        )  # what is rarely written anew is here often
        life = Life(seed)
        for _ in range(25):
            life.step()
        life.disk.power_loss(life.rng)
        life.reopened()
