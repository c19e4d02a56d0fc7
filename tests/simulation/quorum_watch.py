"""The quorums of whole nodes under the eyes of a judge: looked at within every effect that a member carries out.

INV-QWR1  monotonic epoch: a member's term never falls, and it votes for one candidate in a term
INV-QWR2  single leader: one in each term of a region
INV-QWR3  majority reached high watermark: what is committed first, most of the voters hold durably
INV-QWR4  monotonic high watermark: each life of a member applies all entries once and in order
INV-QWR5  snapshot at log start: of a log nothing is dropped that its snapshot does not hold
INV-QWR6  a leader never loads a snapshot
INV-QWR7  consistent committed data: one entry at an index everywhere, and every later leader has it

(KafkaRaft's names, RaftEventSimulationTest.) As INV-RSJ1 to INV-RSJ7, for members of which only some are known from their beginning,
and which folders come and go with. Not held to their own promises: members that are started on older copies, or with flipped bits.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from idempotency.identity import Member
from region_broker.controller.raft.carrying import Carrier
from region_broker.controller.raft.durable import RaftStore
from region_broker.controller.raft.effects import (
    Committed,
    Effect,
    KeepSnapshotPiece,
    Persist,
    Role,
    RoleChanged,
    Send,
    VoteAnswer,
)
from region_broker.controller.raft.entries import (
    Entry,
    EntryKind,
    LogIndex,
    Membership,
    SnapshotPoint,
)
from region_broker.controller.raft.snapshot_file import Piece
from tests.simulation.region_cluster import Member as Node

Blame = Callable[[str], None]


@dataclass(slots=True)
class _Held:
    """What a member's disk holds, as its store has said."""

    term: int = 0
    voted_for: Member | None = None
    snapshot: int = 0
    entries: dict[int, int] = field(default_factory=dict)
    """Index -> term."""
    memberships: dict[int, Membership] = field(default_factory=dict)
    """By the index of the entry that says so; of the snapshot's, or of what was found at a start, at its index."""

    def voters_since(self, index: int) -> list[tuple[Member, ...]]:
        """Return who votes by each membership that may have decided of an entry: the one before it, and those behind it.

        What a member does is known here after what it decides: a later membership may be in its log by then.
        """
        first = max(each for each in self.memberships if each <= index)
        return [each.voters for at, each in self.memberships.items() if at >= first]

    def has(self, entry: Entry) -> bool:
        return entry.index <= self.snapshot or self.entries.get(entry.index) == entry.term


@dataclass(slots=True)
class _Quorum:
    """What is known of one region's."""

    blame: Blame
    committed: dict[int, Entry] = field(default_factory=dict)
    leaders: dict[int, Member] = field(default_factory=dict)
    held: dict[Member, _Held] = field(default_factory=lambda: defaultdict(_Held))

    def holds(self, condition: bool, rule: str, text: str) -> None:
        if not condition:
            self.blame(f"{rule}: {text}")


class QuorumWatch:
    """`watch` each life of each node."""

    def __init__(self, blame: Blame) -> None:
        """Nothing was seen yet."""
        self._quorums: dict[str, _Quorum] = defaultdict(lambda: _Quorum(blame))

    @property
    def committed(self) -> int:
        """Return how many entries were committed that were looked at."""
        return sum(len(each.committed) for each in self._quorums.values())

    def watch(self, node: Node, *, is_doubted: bool) -> "WatchedLife":
        """Watch a life that has just been opened; return who does."""
        begun = node.member._begun
        quorum = self._quorums[node.name.partition("-")[0]]
        return WatchedLife(
            quorum, begun.member, begun.metadata.group._carrier, is_doubted=is_doubted
        )


class WatchedLife:
    """One life of a member."""

    def __init__(self, quorum: _Quorum, me: Member, carrier: Carrier, *, is_doubted: bool) -> None:
        self._quorum, self._me, self._carrier, self._is_doubted = quorum, me, carrier, is_doubted
        state = carrier._core._state
        self.applied = state.log.snapshot.index
        before = quorum.held[me]
        hard = state.hard
        self._promised(hard.term >= before.term, "INV-QWR1", "begins with a lower term")
        kept = hard.term > before.term or before.voted_for in {None, hard.voted_for}
        self._promised(kept, "INV-QWR1", f"has forgotten whom it voted for in term {hard.term}")
        first, last = state.log.snapshot.index, state.log.last_index
        held = quorum.held[me] = _Held(hard.term, hard.voted_for, first)
        held.memberships[first] = state.log.membership_at(first)
        self._holds_now(state.log.between(first, last))
        carrier._store = _Store(carrier._store, self)  # type: ignore[assignment]  # it is one to the carrier
        do = carrier._do

        async def watched(effect: Effect) -> None:
            self._look(effect)
            await do(effect)

        carrier._do = watched  # type: ignore[method-assign]

    @property
    def held(self) -> _Held:
        return self._quorum.held[self._me]

    def _holds_now(self, entries: Sequence[Entry]) -> None:
        for each in entries:
            self.held.entries[each.index] = each.term
            if each.kind is EntryKind.MEMBERSHIP:
                self.held.memberships[each.index] = msgspec.msgpack.decode(
                    each.payload, type=Membership
                )

    def _promised(self, condition: bool, rule: str, text: str) -> None:
        if not self._is_doubted:
            self._quorum.holds(condition, rule, f"{self._me} {text}")

    def _look(self, effect: Effect) -> None:
        match effect:
            case Send(target, VoteAnswer() as answer) if answer.granted and not answer.pre:
                held = self.held
                kept = held.term > answer.term or (held.term, held.voted_for) == (
                    answer.term,
                    target,
                )
                self._promised(kept, "INV-QWR1", f"votes in term {answer.term} and may forget it")
            case Committed(entries):
                for entry in entries:
                    self._commits(entry)
            case RoleChanged(role=Role.LEADER, term=term):
                self._leads(term)
            case KeepSnapshotPiece():
                leads = self._carrier._core.role is Role.LEADER
                self._quorum.holds(not leads, "INV-QWR6", f"{self._me} leads and loads a snapshot")
            case _:
                return

    def _commits(self, entry: Entry) -> None:
        quorum, me = self._quorum, self._me
        follows = entry.index == self.applied + 1
        quorum.holds(follows, "INV-QWR4", f"{me} applies {entry.index} after {self.applied}")
        self.applied = entry.index
        is_first = entry.index not in quorum.committed
        known = quorum.committed.setdefault(entry.index, entry)
        quorum.holds(known == entry, "INV-QWR7", f"{me} commits another entry {entry.index}")
        if is_first:
            electorates = self.held.voters_since(entry.index)
            held_by_most = any(
                2 * sum(quorum.held[each].has(entry) for each in voters) > len(voters)
                for voters in electorates
            )
            quorum.holds(
                held_by_most,
                "INV-QWR3",
                f"{me} commits {entry.index}, which no majority of its voters holds",
            )

    def _leads(self, term: int) -> None:
        quorum, me = self._quorum, self._me
        first = quorum.leaders.setdefault(term, me)
        quorum.holds(first == me, "INV-QWR2", f"{first} and {me} lead term {term}")
        former = [each.index for each in quorum.committed.values() if each.term < term]
        last = quorum.committed[max(former)] if former else None
        quorum.holds(
            last is None or self.held.has(last), "INV-QWR7",
            f"{me} leads term {term} without the committed entry {last and last.index}",
        )  # fmt: skip

    # -- what the store does ---------------------------------------------------------------------

    def persisted(self, effect: Persist) -> None:
        """It is durable."""
        held = self.held
        if effect.hard_state is not None:
            now = effect.hard_state
            self._promised(now.term >= held.term, "INV-QWR1", "goes back to a lower term")
            again = now.term == held.term and held.voted_for is not None
            self._promised(
                not again or now.voted_for == held.voted_for,
                "INV-QWR1",
                f"votes twice in term {now.term}",
            )
            held.term, held.voted_for = now.term, now.voted_for
        if effect.cut_behind is not None:
            self._quorum.holds(
                effect.cut_behind >= self.applied,
                "INV-QWR7",
                f"{self._me} cuts off what it applied",
            )
            for index in [each for each in held.entries if each > effect.cut_behind]:
                del held.entries[index]
                held.memberships.pop(index, None)
        self._holds_now(effect.entries)

    def kept(self, point: SnapshotPoint, *, instead: bool) -> None:
        """A snapshot is durable; `instead` of the log."""
        held = self.held
        held.snapshot = point.index
        if instead:
            held.entries.clear()
            held.memberships = {point.index: point.membership}
            self.applied = point.index

    def dropped(self, up_to: int) -> None:
        """The log's beginning is gone."""
        held = self.held
        self._quorum.holds(
            up_to <= held.snapshot,
            "INV-QWR5",
            f"{self._me} drops {up_to}, and has a snapshot of {held.snapshot}",
        )
        for index in [each for each in held.entries if each <= up_to]:
            del held.entries[index]


class _Store:
    """A `RaftStore` that tells what it does."""

    def __init__(self, store: RaftStore, told: WatchedLife) -> None:
        self._store, self._told = store, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def persist(self, wanted: Sequence[Persist]) -> None:
        self._store.persist(wanted)
        for effect in wanted:
            self._told.persisted(effect)

    def keep_snapshot(self, point: SnapshotPoint, image: bytes) -> None:
        self._store.keep_snapshot(point, image)
        self._told.kept(point, instead=False)

    def keep_piece(self, piece: Piece) -> None:
        self._store.keep_piece(piece)
        if piece.last:
            self._told.kept(piece.point, instead=True)

    def drop_log(self, up_to: LogIndex) -> None:
        self._store.drop_log(up_to)
        self._told.dropped(up_to)
