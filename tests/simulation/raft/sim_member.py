"""One simulated member: a core, its driver, and its disk. The driver may carry effects out late, and may die between two."""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import assert_never

import msgspec

from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.effects import (
    Answered,
    Committed,
    DropLog,
    Effect,
    Event,
    JoinAsked,
    Joining,
    KeepSnapshotPiece,
    Message,
    PassedOn,
    Persist,
    Role,
    RoleChanged,
    Send,
    SendSnapshot,
    SnapshotRequest,
    Snapshotted,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
)
from region_broker.controller.raft.settings import RaftSettings
from tests.simulation.raft.durable_state import DurableState
from tests.simulation.raft.judge import Disks, Judge

PIECE_BYTES = 24

Post = Callable[[Member, Member, Message], None]


class SimMember:
    """A member that may be down (`core` is None). Its clock is its own."""

    def __init__(
        self,
        me: Member,
        first: Membership,
        settings: RaftSettings,
        seed: int,
        judge: Judge,
        *,
        snapshot_entries: int,
    ) -> None:
        """Begin with an empty disk, and not yet running."""
        self.me = me
        self.disk = DurableState(
            SnapshotPoint(BEFORE_FIRST, NO_TERM, first), msgspec.msgpack.encode([])
        )
        self.core: RaftCore | None = None
        self.lives = 0
        self.applied = BEFORE_FIRST
        self.clock_ahead_ms = seed % 997
        self.dies_after: int | None = None
        self._settings = settings
        self._snapshot_entries = snapshot_entries
        self._chance = Random(seed)
        self._judge = judge
        self.commands: list[bytes] = []
        self._outbox: deque[Effect] = deque()

    def start(self, now_ms: int) -> None:
        """Begin a life from what the disk holds."""
        assert self.core is None
        disk = self.disk
        self.lives += 1
        self.dies_after = None
        self._load(disk.snapshot.index)
        self.core = RaftCore(
            self.me, disk.hard, disk.snapshot, list(disk.entries),
            settings=self._settings, draw=self._chance.randrange,
        )  # fmt: skip
        self._outbox.extend(self.core.start(now_ms + self.clock_ahead_ms))

    def crash(self) -> None:
        """Lose what is not on the disk."""
        writing = next(
            (each for each in self._outbox if isinstance(each, Persist | KeepSnapshotPiece)), None
        )
        first = self._outbox[0] if self._outbox else None
        self.disk.power_goes(writing if writing is first else None, self._chance)
        self._outbox.clear()
        self.core = None
        self._judge.forgets(self.me)
        self._judge.counted["crashes"] += 1

    def take(self, event: Event, now_ms: int) -> None:
        """Hand an event to the core; what it asks for waits for `carry_out`."""
        assert self.core is not None
        led_term = self.core.term if self.core.role is Role.LEADER else None
        effects = self.core.step(event, now_ms + self.clock_ahead_ms)
        if led_term == self.core.term and any(
            isinstance(each, KeepSnapshotPiece) for each in effects
        ):
            self._judge.leader_loads(self.me)
        self._outbox.extend(effects)

    def followers(self) -> dict[Member, int]:
        """Return what a leader takes the others' logs to have of its own."""
        leading = self.core._leading if self.core is not None else None
        return {m: each.match_index for m, each in leading._progress.items()} if leading else {}

    def carry_out(self, now_ms: int, post: Post, disks: Disks) -> None:
        """Do all that the core asked for, in order, unless the power goes meanwhile."""
        while self._outbox:
            if self.dies_after is not None:
                self.dies_after -= 1
                if self.dies_after < 0:
                    self.crash()
                    return
            self._do(self._outbox[0], post, disks)
            self._outbox.popleft()
            if not self._outbox:
                self._snapshot(now_ms)

    def _snapshot(self, now_ms: int) -> None:
        """Take a snapshot when enough was applied."""
        if self.core is None or self.applied - self.disk.snapshot.index < self._snapshot_entries:
            return
        point = self.core.point_at(self.applied)
        self.disk.keep_snapshot(point, msgspec.msgpack.encode(self.commands))
        self._judge.snapshots(self.me, point)
        self.take(Snapshotted(point), now_ms)

    def _do(self, effect: Effect, post: Post, disks: Disks) -> None:
        match effect:
            case Send(target, message):
                self._tell(target, message)
                post(self.me, target, message)
            case Persist():
                self._persist(effect)
            case Committed():
                self._apply(effect, disks)
            case Answered():
                self._judge.answers(effect, self.applied)
            case RoleChanged():
                self._became(effect, disks)
            case Joining():
                pass  # who is taken in, the plan of a life says
            case SendSnapshot():
                post(self.me, effect.target, self._piece(effect))
            case KeepSnapshotPiece():
                self._keep(effect)
            case DropLog(up_to):
                self.disk.drop(up_to)
                self._judge.log_stands(self.me, self.disk)
            case _:
                assert_never(effect)

    def _became(self, effect: RoleChanged, disks: Disks) -> None:
        if effect.role is Role.LEADER:
            self._judge.leads(self.me, effect.term, disks)

    def _tell(self, target: Member, message: Message) -> None:
        if isinstance(message, VoteRequest | VoteAnswer) and message.pre:
            return
        assert not isinstance(message, PassedOn | JoinAsked), "no core sends these"
        self._judge.tells(self.me, message.term, self.disk)
        if isinstance(message, VoteAnswer) and message.granted:
            self._judge.votes(self.me, target, message.term, self.disk)

    def _persist(self, effect: Persist) -> None:
        self._judge.persists(self.me, self.disk.hard, effect.hard_state)
        for entry in effect.entries:
            if entry.kind is EntryKind.MEMBERSHIP and self._is_mine(entry):
                self._judge.changes(self.me, entry, self.applied, self.disk)
        self._judge.cuts(self.me, effect.cut_behind, self.applied)
        self.disk.persist(effect)
        self._judge.log_stands(self.me, self.disk)

    def _is_mine(self, entry: Entry) -> bool:
        """Return whether this member wrote an entry as a leader, and not as a group's very first."""
        core = self.core
        led = core is not None and core.role is Role.LEADER and core.term == entry.term
        return led and self.disk.has_membership

    def _apply(self, effect: Committed, disks: Disks) -> None:
        for entry in effect.entries:
            self._judge.commits(self.me, entry, self.applied, disks)
            self.applied = entry.index
            if entry.kind is EntryKind.COMMAND:
                self.commands.append(entry.payload)

    def _piece(self, effect: SendSnapshot) -> SnapshotRequest:
        image = self.disk.image
        begin = effect.position if effect.position < len(image) else 0
        end = begin + PIECE_BYTES
        return SnapshotRequest(
            effect.term, self.disk.snapshot, begin, image[begin:end], end >= len(image)
        )

    def _keep(self, effect: KeepSnapshotPiece) -> None:
        disk = self.disk
        if effect.position == 0:
            disk.draft = b""
        assert len(disk.draft) == effect.position, "pieces come in order"
        if not effect.last:
            disk.draft += effect.data
            return
        self._judge.counted["installs"] += 1
        disk.keep_snapshot(effect.point, disk.draft + effect.data)
        disk.draft = b""
        disk.entries.clear()
        self._judge.log_stands(self.me, disk)
        self._load(effect.point.index)

    def _load(self, index: LogIndex) -> None:
        try:
            self.commands = msgspec.msgpack.decode(self.disk.image, type=list[bytes])
        except msgspec.DecodeError:
            self._judge.loads_nonsense(self.me)
        self._judge.loads(self.me, index, self.commands)
        self.applied = index
