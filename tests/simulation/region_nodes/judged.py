"""A `RaftGroup` under the eyes of the judge: what its driver does is told as `SimMember` tells it, and held to the same rules.

The shadow of its disk changes in the step in which the store's sync returns: what the judge calls durable, is.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from region_broker.controller.raft.carrying import Carrier
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    Answered,
    Committed,
    DropLog,
    Effect,
    KeepSnapshotPiece,
    Persist,
    Role,
    RoleChanged,
    Send,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
)
from region_broker.controller.raft.shell import RaftGroup
from region_broker.controller.raft.snapshot_file import Piece
from tests.simulation.raft.durable_state import DurableState
from tests.simulation.raft.judge import Judge, Wish

Asked = Callable[[int], Any]


class Machine(Protocol):
    """A state machine that knows its commands."""

    taken: list[bytes]

    def load(self, image: bytes) -> None: ...


class JudgedMember:
    """One member through all its lives; `watch` each of them."""

    def __init__(
        self, me: Member, founders: Membership, judge: Judge, disks: dict[Member, DurableState]
    ) -> None:
        self.me = me
        self.disk = disks[me] = DurableState(SnapshotPoint(BEFORE_FIRST, NO_TERM, founders), b"")
        self.applied: LogIndex = BEFORE_FIRST
        self._judge, self._disks = judge, disks
        self._tickets: dict[int, int] = {}
        self._carrier: Carrier | None = None
        self._loading: deque[LogIndex] = deque()
        """Leader's snapshots that are durable, or about to be, on their way into the machine (INV-RAP1)."""

    def watch(self, group: RaftGroup, machine: Machine) -> None:
        """Watch a life that has just been made from what the disk holds."""
        carrier = self._carrier = group._carrier
        self._tickets.clear()
        self._loading.clear()
        assert carrier._core.term == self.disk.hard.term, "the store knows what was durable"
        self.applied = self.disk.snapshot.index
        if self.applied:
            self._judge.loads(self.me, self.applied, machine.taken)
        carrier._store = _Store(carrier._store, self)  # type: ignore[assignment]  # it is one to the carrier
        do = carrier._do

        async def judged(effect: Effect) -> None:
            self._before(effect)
            await do(effect)
            self._after(effect)

        carrier._do = judged  # type: ignore[method-assign]
        load = machine.load

        def judged_load(image: bytes) -> None:
            load(image)
            self._judge.loads(self.me, self._loading.popleft(), machine.taken)

        machine.load = judged_load  # type: ignore[method-assign]

    def wish(self, number: int, wish: Wish, make: Asked, payload: bytes = b"") -> Asked:
        """Return a wish that the judge knows by `number` once it has a ticket."""

        def made(ticket: int) -> Any:
            self._tickets[ticket] = number
            self._judge.asks(number, wish, self.me, payload)
            return make(ticket)

        return made

    def crash(self) -> None:
        """Its life has ended."""
        self._carrier = None
        self._judge.forgets(self.me)
        self._judge.counted["crashes"] += 1

    def _before(self, effect: Effect) -> None:
        match effect:
            case Send(target, message):
                if isinstance(message, VoteRequest | VoteAnswer) and message.pre:
                    return
                self._judge.tells(self.me, message.term, self.disk)
                if isinstance(message, VoteAnswer) and message.granted:
                    self._judge.votes(self.me, target, message.term, self.disk)
            case Committed(entries):
                for entry in entries:
                    self._judge.commits(self.me, entry, self.applied, self._disks)
                    self.applied = entry.index
            case RoleChanged(role=Role.LEADER, term=term):
                self._judge.leads(self.me, term, self._disks)
            case Answered(ticket=ticket) if ticket in self._tickets:
                known = Answered(
                    self._tickets.pop(ticket), effect.outcome, effect.index, effect.leader
                )
                self._judge.answers(known, self.applied)
            case DropLog():
                self._judge.counted["drops"] += 1
            case KeepSnapshotPiece(point=point, last=True):
                self._loading.append(point.index)
            case _:
                return

    def _after(self, effect: Effect) -> None:
        if isinstance(effect, KeepSnapshotPiece):
            self._judge.counted["pieces"] += 1
            if effect.last:
                self._judge.counted["installs"] += 1
                self.applied = effect.point.index
        carrier = self._carrier
        if carrier is not None and (leading := carrier._core._leading) is not None:
            reached = {m: each.match_index for m, each in leading._progress.items()}
            self._judge.counts_on(self.me, carrier._core.term, reached, self._disks)

    # -- what the store does ---------------------------------------------------------------------

    def persists(self, effect: Persist) -> None:
        """It is about to be durable."""
        self._judge.persists(self.me, self.disk.hard, effect.hard_state)
        self._judge.cuts(self.me, effect.cut_behind, self.applied)
        core = self._carrier._core if self._carrier is not None else None
        for entry in effect.entries:
            led = core is not None and core.role is Role.LEADER and core.term == entry.term
            if entry.kind is EntryKind.MEMBERSHIP and led and self.disk.has_membership:
                self._judge.changes(self.me, entry, self.applied, self.disk)

    def persisted(self, effect: Persist) -> None:
        """It is."""
        self.disk.persist(effect)
        self._judge.log_stands(self.me, self.disk)

    def snapshot(self, point: SnapshotPoint, image: bytes) -> None:
        """Its own snapshot is durable."""
        self._judge.snapshots(self.me, point)
        self.disk.keep_snapshot(point, image)

    def installed(self, point: SnapshotPoint) -> None:
        """A leader's snapshot is durable, in place of the log."""
        self.disk.keep_snapshot(point, b"")
        self.disk.entries.clear()
        self._judge.log_stands(self.me, self.disk)

    def dropped(self, up_to: LogIndex) -> None:
        """The log's beginning is gone."""
        self.disk.drop(up_to)
        self._judge.log_stands(self.me, self.disk)


class _Store:
    """A `RaftStore` that tells what it does."""

    def __init__(self, store: RaftStore, told: JudgedMember) -> None:
        self._store, self._told = store, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def persist(self, wanted: Sequence[Persist]) -> None:
        for effect in wanted:
            self._told.persists(effect)
        self._store.persist(wanted)
        for effect in wanted:
            self._told.persisted(effect)

    def keep_snapshot(self, point: SnapshotPoint, image: bytes) -> None:
        self._store.keep_snapshot(point, image)
        self._told.snapshot(point, image)

    def keep_piece(self, piece: Piece) -> None:
        self._store.keep_piece(piece)
        if piece.last:
            self._told.installed(piece.point)

    def drop_log(self, up_to: LogIndex) -> None:
        self._store.drop_log(up_to)
        self._told.dropped(up_to)
