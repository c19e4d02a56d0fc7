"""What must hold after every event: Kafka's seven Raft invariants, and what callers were promised.

INV-RSJ1  monotonic epoch: a member's term never falls, and it tells of none that it may forget
INV-RSJ2  single leader: one in each term, by the durable votes of a majority
INV-RSJ3  majority reached high watermark: what is committed first, a majority of the voters holds durably
INV-RSJ4  monotonic high watermark: each member applies all entries once and in order
INV-RSJ5  snapshot at log start: a log begins no later than behind its snapshot, and has no gap
INV-RSJ6  a leader never loads a snapshot
INV-RSJ7  consistent committed data: one entry at an index everywhere, and every later leader has it
INV-RSJ8  linearizable reads: a read's index is not before what was acknowledged, or read, when it was asked
INV-RSJ9  what is acknowledged is committed, once; what is refused never is; a wish is answered once
INV-RSJ11  a leader counts only on what is on a follower's disk, and changes the membership only behind a committed entry
           of its own term: what goes wrong without either takes long to show
INV-RSJ10  without faults there are a leader, equal logs, and answers to all, within `settle.SETTLE_MS`

(KafkaRaft's names, RaftEventSimulationTest.)
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import msgspec

from region_broker.controller.raft.effects import Answered, Outcome
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
from tests.simulation.raft.durable_state import DurableState

Disks = Mapping[Member, DurableState]


class Violated(AssertionError):
    """A rule does not hold."""


class Wish(Enum):
    """What a caller wants."""

    PROPOSE = auto()
    READ = auto()
    MEMBERSHIP = auto()
    TRANSFER = auto()


@dataclass(frozen=True, slots=True)
class Asked:
    """`floor`: the highest index that anybody had been told of before."""

    wish: Wish
    member: Member
    payload: bytes
    floor: int


@dataclass(slots=True)
class Judge:
    """Knows everything, and is told of every effect as it is carried out."""

    counted: Counter[str] = field(default_factory=Counter)
    """What happened, to see that something did."""
    committed: list[Entry] = field(default_factory=list)
    commands: list[bytes] = field(default_factory=list)
    """The payloads of all committed commands, in order."""
    acknowledged: int = 0
    open: dict[int, Asked] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    """Tickets that were answered DONE."""
    _settled: set[int] = field(default_factory=set)
    _refused: set[bytes] = field(default_factory=set)
    _seen: set[bytes] = field(default_factory=set)
    _command_counts: list[int] = field(default_factory=lambda: [0])
    _leaders: dict[Term, Member] = field(default_factory=dict)
    _committed_in: dict[Term, int] = field(default_factory=dict)

    # --- terms and leaders ---

    def persists(self, member: Member, before: HardState, after: HardState | None) -> None:
        """A hard state is written."""
        if after is None:
            return
        _hold(after.term >= before.term, "INV-RSJ1", f"{member}'s term falls")
        again = after.term == before.term and before.voted_for is not None
        _hold(
            not again or after.voted_for == before.voted_for,
            "INV-RSJ1",
            f"{member} votes twice in term {after.term}",
        )

    def tells(self, member: Member, term: Term, durable: DurableState) -> None:
        """A member tells others that it is in a term."""
        _hold(term <= durable.hard.term, "INV-RSJ1", f"{member} tells of term {term} too early")

    def leads(self, member: Member, term: Term, disks: Disks) -> None:
        """A member leads."""
        durable = disks[member]
        voters = durable.membership.voters
        gave = [voter for voter in voters if _voted(disks[voter].hard, member, term)]
        _hold(
            2 * len(gave) > len(voters),
            "INV-RSJ2",
            f"{member} leads term {term} by {len(gave)} votes of {len(voters)}",
        )
        self.counted["leaders"] += 1
        other = self._leaders.setdefault(term, member)
        _hold(other == member, "INV-RSJ2", f"{other} and {member} lead term {term}")
        needed = max((upto for t, upto in self._committed_in.items() if t < term), default=0)
        if needed > durable.snapshot.index:
            held = durable.entry_at(needed)
            _hold(
                held == self.committed[needed - 1],
                "INV-RSJ7",
                f"{member} leads term {term} without the committed entry {needed}",
            )

    def votes(self, member: Member, target: Member, term: Term, durable: DurableState) -> None:
        """A member tells a candidate that it has its vote."""
        kept = durable.hard == HardState(term, target)
        _hold(kept, "INV-RSJ1", f"{member} gives a vote in term {term} that it may forget")

    # --- the log ---

    def cuts(self, member: Member, cut_behind: LogIndex | None, applied: int) -> None:
        """A log's end is cut off."""
        if cut_behind is not None:
            self.counted["cuts"] += 1
            _hold(cut_behind >= applied, "INV-RSJ7", f"{member} cuts off what it applied")

    def log_stands(self, member: Member, durable: DurableState) -> None:
        """A log was changed."""
        first, last = durable.first_index, durable.last_index
        begins = first <= durable.snapshot.index + 1 or not durable.entries
        _hold(begins, "INV-RSJ5", f"{member}'s log begins at {first}, its snapshot is before")
        whole = not durable.entries or last - first + 1 == len(durable.entries)
        _hold(whole, "INV-RSJ5", f"{member}'s log has a gap")

    def commits(self, member: Member, entry: Entry, applied: int, disks: Disks) -> None:
        """A member applies an entry."""
        _hold(
            entry.index == applied + 1,
            "INV-RSJ4",
            f"{member} applies {entry.index} after {applied}",
        )
        if entry.index <= len(self.committed):
            same = self.committed[entry.index - 1] == entry
            _hold(same, "INV-RSJ7", f"{member} commits another entry {entry.index}")
            return
        _hold(entry.index == len(self.committed) + 1, "INV-RSJ4", "a commit leaves entries out")
        self.committed.append(entry)
        if entry.kind is EntryKind.COMMAND:
            _hold(entry.payload not in self._seen, "INV-RSJ9", f"{entry.payload!r} twice")
            _hold(entry.payload not in self._refused, "INV-RSJ9", f"{entry.payload!r} was refused")
            self._seen.add(entry.payload)
            self.commands.append(entry.payload)
        self._command_counts.append(len(self.commands))
        own = disks[member]
        voters = own.membership.voters
        holders = [voter for voter in voters if _holds(disks[voter], entry)]
        _hold(
            2 * len(holders) > len(voters),
            "INV-RSJ3",
            f"{member} commits {entry.index}, which {len(holders)} of {len(voters)} hold",
        )
        term = own.hard.term
        self._committed_in[term] = max(self._committed_in.get(term, 0), entry.index)

    def snapshots(self, member: Member, point: SnapshotPoint) -> None:
        """A member takes a snapshot."""
        self.counted["snapshots"] += 1
        behind = self.committed[: point.index]
        _hold(point.term == behind[-1].term, "INV-RSJ7", f"{member}'s snapshot is of another term")
        said = [each.payload for each in behind if each.kind is EntryKind.MEMBERSHIP]
        right = not said or point.membership == msgspec.msgpack.decode(said[-1], type=Membership)
        _hold(right, "INV-RSJ7", f"{member}'s snapshot names a membership that is not committed")

    def counts_on(
        self, leader: Member, term: Term, reached: Mapping[Member, int], disks: Disks
    ) -> None:
        """A leader takes a follower's log to be its own up to an index."""
        own = disks[leader]
        for member, index in reached.items():
            disk = disks[member]
            if disk.hard.term > term or index <= disk.snapshot.index:
                continue
            held = disk.entry_at(index)
            right = held is not None and own.entry_at(index) in {None, held}
            _hold(right, "INV-RSJ11", f"{leader} counts on {index}, which {member} does not hold")

    def changes(self, member: Member, entry: Entry, applied: int, disk: DurableState) -> None:
        """A leader writes a membership down that is not the group's first."""
        pending = [e for e in disk.entries if e.kind is EntryKind.MEMBERSHIP and e.index > applied]
        _hold(
            not pending,
            "INV-RSJ11",
            f"{member} changes the membership at {entry.index} behind one that is not committed",
        )
        right = applied > 0 and self.committed[applied - 1].term == entry.term
        _hold(right, "INV-RSJ11", f"{member} changes the membership at {entry.index} too early")

    def loads_nonsense(self, member: Member) -> None:
        """A member cannot read the snapshot that it was sent."""
        raise Violated(f"INV-RSJ7: {member} loads pieces of several snapshots")

    def loads(self, member: Member, index: LogIndex, commands: list[bytes]) -> None:
        """A member loads a snapshot."""
        self.counted["loads"] += 1
        _hold(
            index < len(self._command_counts), "INV-RSJ7", f"{member} loads what is not committed"
        )
        right = self.commands[: self._command_counts[index]]
        _hold(commands == right, "INV-RSJ7", f"{member} loads another snapshot at {index}")

    def leader_loads(self, member: Member) -> None:
        """A leader is asked to take a snapshot."""
        raise Violated(f"INV-RSJ6: {member} leads and loads a snapshot")

    # --- callers ---

    def asks(self, ticket: int, wish: Wish, member: Member, payload: bytes = b"") -> None:
        """A caller wants something."""
        self.open[ticket] = Asked(wish, member, payload, self.acknowledged)

    def forgets(self, member: Member) -> None:
        """A member crashed: whoever asked it will not be answered."""
        self.open = {t: asked for t, asked in self.open.items() if asked.member != member}

    def answers(self, answered: Answered, applied: int) -> None:
        """A caller is answered."""
        _hold(answered.ticket not in self._settled, "INV-RSJ9", f"{answered.ticket} answered twice")
        asked = self.open.pop(answered.ticket, None)
        _hold(asked is not None, "INV-RSJ9", f"nobody asked {answered.ticket}")
        assert asked is not None
        self._settled.add(answered.ticket)
        self.counted[f"{asked.wish.name} {answered.outcome.name}"] += 1
        if answered.outcome is Outcome.DONE:
            self.done.add(answered.ticket)
        if answered.outcome is Outcome.DONE and asked.wish is not Wish.TRANSFER:
            self._acknowledges(asked, answered, applied)
        elif answered.outcome is not Outcome.LOST and asked.wish is Wish.PROPOSE:
            _hold(asked.payload not in self._seen, "INV-RSJ9", f"{asked.payload!r} not refused")
            self._refused.add(asked.payload)

    def _acknowledges(self, asked: Asked, answered: Answered, applied: int) -> None:
        index = answered.index
        _hold(index <= applied, "INV-RSJ9", f"{answered.ticket} is answered before it is applied")
        if asked.wish is Wish.READ:
            _hold(
                index >= asked.floor,
                "INV-RSJ8",
                f"a read at {index}, when {asked.floor} had been acknowledged",
            )
        else:
            right = self.committed[index - 1].payload == asked.payload
            _hold(right, "INV-RSJ9", f"{answered.ticket} is acknowledged with another's entry")
        self.acknowledged = max(self.acknowledged, index)


def _holds(disk: DurableState, entry: Entry) -> bool:
    return entry.index <= disk.snapshot.index or disk.entry_at(entry.index) == entry


def _voted(hard: HardState, candidate: Member, term: Term) -> bool:
    """Return whether the disk says so, or may have said so in a former term."""
    return hard.term > term or hard == HardState(term, candidate)


def _hold(condition: bool, rule: str, text: str) -> None:
    if not condition:
        raise Violated(f"{rule}: {text}")
