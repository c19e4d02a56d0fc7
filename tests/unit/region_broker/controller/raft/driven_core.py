"""A core whose effects a test looks at: made from a log, elected by hand, its chance always 0."""

from collections.abc import Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from region_broker.controller.raft.core import RaftCore
from region_broker.controller.raft.effects import (
    AppendAnswer,
    Effect,
    Event,
    Message,
    Received,
    Role,
    Send,
    Ticked,
    VoteAnswer,
)
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
from region_broker.controller.raft.settings import RaftSettings

A, B, C, D, E = (Member(number, UUID(int=number)) for number in range(1, 6))
SETTINGS = RaftSettings(election_timeout_ms=100, heartbeat_ms=10)

AnEffect = TypeVar("AnEffect")
AMessage = TypeVar("AMessage")


def of(effects: Iterable[Effect], kind: type[AnEffect]) -> list[AnEffect]:
    """Return the effects of a kind."""
    return [each for each in effects if isinstance(each, kind)]


def sent(effects: Iterable[Effect], kind: type[AMessage]) -> list[tuple[Member, AMessage]]:
    """Return the messages of a kind, each with whom it goes to."""
    return [(s.target, s.message) for s in of(effects, Send) if isinstance(s.message, kind)]


def entries(*terms: int, first: int = 1) -> tuple[Entry, ...]:
    """Return commands with these terms."""
    return tuple(
        Entry(LogIndex(index), Term(term), EntryKind.COMMAND, b"%d" % index)
        for index, term in enumerate(terms, first)
    )


def point(index: int, term: int, *voters: Member, learners: Sequence[Member] = ()) -> SnapshotPoint:
    """Return where a snapshot stands."""
    return SnapshotPoint(LogIndex(index), Term(term), Membership(tuple(voters), tuple(learners)))


class Driven:
    """A core of `A`, with a clock of its own."""

    def __init__(
        self,
        snapshot: SnapshotPoint,
        log: Sequence[Entry] = (),
        *,
        term: int = 0,
        voted_for: Member | None = None,
        settings: RaftSettings = SETTINGS,
    ) -> None:
        """Start it at 1,000 ms."""
        self.now_ms = 1_000
        self.core = RaftCore(
            A, HardState(Term(term), voted_for), snapshot, log, settings=settings, draw=lambda _: 0
        )
        self.began = self.core.start(self.now_ms)

    def is_a(self, role: Role) -> bool:
        """Return whether it is in this role now."""
        return self.core.role is role

    def step(self, event: Event) -> list[Effect]:
        """Hand it an event now."""
        return self.core.step(event, self.now_ms)

    def hear(self, sender: Member, message: Message) -> list[Effect]:
        """Hand it a message now."""
        return self.step(Received(sender, message))

    def wait(self, passed_ms: int) -> list[Effect]:
        """Let time pass, then tick."""
        self.now_ms += passed_ms
        return self.step(Ticked())

    def elect(self, *granting: Member) -> list[Effect]:
        """Wait for an election and win it."""
        effects = self.wait(100)
        for pre in (True, False):
            term = Term(self.core.term + 1) if pre else self.core.term
            for voter in granting:
                effects += self.hear(voter, VoteAnswer(term, pre=pre, granted=True))
        return effects

    def taken(self, sender: Member, matched: int, beat: int = 0) -> list[Effect]:
        """Let a follower say that it has the log up to `matched`."""
        none = LogIndex(0)
        answer = AppendAnswer(self.core.term, True, LogIndex(matched), none, Term(0), beat)
        return self.hear(sender, answer)

    def refused(self, sender: Member, hint_index: int, hint_term: int) -> list[Effect]:
        """Let a follower refuse."""
        hint = LogIndex(hint_index), Term(hint_term)
        return self.hear(sender, AppendAnswer(self.core.term, False, LogIndex(0), *hint, 0))
