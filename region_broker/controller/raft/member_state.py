"""What one member is: its term and vote, its log, its role, and the effects of the event that it is taking.

INV-RFS1  a term never falls, and a vote is given once in a term: both are persisted before anything is sent that tells of them
INV-RFS2  the commit index never falls, and never passes the log's end
INV-RFS3  nothing at or before the commit index is cut off the log
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from region_broker.controller.raft.effects import (
    Answered,
    Committed,
    Effect,
    Message,
    Outcome,
    Persist,
    Role,
    RoleChanged,
    Send,
)
from region_broker.controller.raft.entries import Entry, HardState, LogIndex, Member, Term
from region_broker.controller.raft.log_view import LogView
from region_broker.controller.raft.settings import RaftSettings

Draw = Callable[[int], int]
"""Returns a number from 0 up to and without its argument: the member's own chance."""


@dataclass(slots=True)
class MemberState:
    """Shared by the parts of one core, which change it in turn. Times are of the driver's clock."""

    me: Member
    settings: RaftSettings
    draw: Draw
    hard: HardState
    log: LogView
    commit_index: LogIndex
    role: Role = Role.FOLLOWER
    leader: Member | None = None
    heard_leader_ms: int = 0
    election_due_ms: int = 0
    now_ms: int = 0
    effects: list[Effect] = field(default_factory=list)
    _told: RoleChanged | None = None

    @property
    def term(self) -> Term:
        """Return the present term."""
        return self.hard.term

    @property
    def is_voter(self) -> bool:
        """Return whether the membership in force has this member vote."""
        return self.me in self.log.membership.voters

    @property
    def has_fresh_leader(self) -> bool:
        """Return whether a leader was heard within the election timeout, or is this member."""
        if self.role is Role.LEADER:
            return True
        silent_ms = self.now_ms - self.heard_leader_ms
        return self.leader is not None and silent_ms < self.settings.election_timeout_ms

    def send(self, target: Member, message: Message) -> None:
        """Send a message behind all that was decided before it."""
        self.effects.append(Send(target, message))

    def answer(self, ticket: int, outcome: Outcome, index: LogIndex) -> None:
        """Settle a caller's wish."""
        self.effects.append(Answered(ticket, outcome, index, self.leader))

    def enter_term(self, term: Term, voted_for: Member | None) -> None:
        """Make a higher term, or the vote in this one, durable (INV-RFS1)."""
        if term == self.term:
            # INV-RFS1: one vote a term
            assert self.hard.voted_for in {None, voted_for}, (term, self.hard, voted_for)
        assert term >= self.term, "INV-RFS1: a term never falls"
        if self.hard != (wanted := HardState(term, voted_for)):
            self.hard = wanted
            self.effects.append(Persist(wanted, None, ()))

    def become(self, role: Role, leader: Member | None) -> None:
        """Take a role, and say so if that is news."""
        self.role = role
        self.leader = leader
        news = RoleChanged(role, self.term, leader)
        if news != self._told:
            self._told = news
            self.effects.append(news)

    def heard_leader(self, leader: Member) -> None:
        """Follow whoever leads this term."""
        self.heard_leader_ms = self.now_ms
        self.put_election_off()
        self.become(Role.FOLLOWER, leader)

    def lost_leader(self) -> None:
        """Count the leader as silent, and ask for votes soon, in turn with the other voters, unless it is heard again."""
        self.heard_leader_ms = self.now_ms - self.settings.election_timeout_ms
        others = sorted(voter for voter in self.log.membership.voters if voter != self.leader)
        turn = others.index(self.me) if self.me in others else len(others)
        due_ms = self.now_ms + self.settings.lost_leader_ms * (turn + 1)
        self.election_due_ms = min(self.election_due_ms, due_ms)

    def put_election_off(self) -> None:
        """Wait an election timeout, and up to as much again, before asking for votes."""
        timeout_ms = self.settings.election_timeout_ms
        self.election_due_ms = self.now_ms + timeout_ms + self.draw(timeout_ms)

    def take_entries(self, cut_behind: LogIndex | None, entries: tuple[Entry, ...]) -> None:
        """Change the log's end, and make that durable."""
        if cut_behind is not None:
            assert cut_behind >= self.commit_index, "INV-RFS3: what is committed stays"
            self.log.cut_behind(cut_behind)
        self.log.append(entries)
        self.effects.append(Persist(None, cut_behind, entries))

    def commit_to(self, index: LogIndex) -> None:
        """Commit what is not yet, up to `index`."""
        if index <= self.commit_index:
            return
        assert index <= self.log.last_index, "INV-RFS2: only what is in the log is committed"
        entries = self.log.between(self.commit_index, index)
        self.commit_index = index
        self.effects.append(Committed(entries))
