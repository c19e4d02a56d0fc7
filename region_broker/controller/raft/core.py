"""One member of a Raft group as a step function: an event and the time in, effects out (what a driver owes: the package).

INV-RFC1  a message of a former term changes nothing; who asked in it is told the present term
INV-RFC2  a higher term makes a follower, before anything else is done with the message that told of it
INV-RFC3  a wish that nobody can serve here is answered at once; one that was passed on is lost
INV-RFC4  nobody is told that a folder wants to join while another folder of its node is in the membership and heard

The roles' parts: `elections`, `following`, `leading`. What they share: `member_state`. Not here: any I/O, clock or chance.
"""

from collections.abc import Sequence
from typing import assert_never

from region_broker.controller.raft.effects import (
    NOBODY,
    AppendAnswer,
    AppendRequest,
    BeginElection,
    DropLog,
    Effect,
    Event,
    JoinAsked,
    MembershipAsked,
    Message,
    Outcome,
    PassedOn,
    PeerLost,
    Proposed,
    ReadAsked,
    Received,
    Role,
    SnapshotAnswer,
    SnapshotRequest,
    Snapshotted,
    Ticked,
    TransferAsked,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.elections import Elections
from region_broker.controller.raft.entries import (
    Entry,
    HardState,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.following import Following
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.raft.leading import Leading
from region_broker.controller.raft.log_view import LogView
from region_broker.controller.raft.member_state import Draw, MemberState
from region_broker.controller.raft.settings import RaftSettings


class RaftCore:
    """One member. It is made from what is durable, `start`ed once, and then given one event after the other."""

    def __init__(
        self,
        me: Member,
        hard_state: HardState,
        snapshot: SnapshotPoint,
        entries: Sequence[Entry],
        *,
        settings: RaftSettings,
        draw: Draw,
    ) -> None:
        """Go on from what is durable.

        A group begins with a snapshot at index 0 that names its first voters, the same on each of them; who joins later
        begins with an empty membership. `draw`: returns a number from 0 up to and without its argument.
        """
        log = LogView(snapshot, entries)
        self._state = MemberState(me, settings, draw, hard_state, log, snapshot.index)
        self._elections = Elections(self._state)
        self._following = Following(self._state)
        self._leading: Leading | None = None

    @property
    def me(self) -> Member:
        """Return which member this is."""
        return self._state.me

    @property
    def role(self) -> Role:
        """Return what this member is."""
        return self._state.role

    @property
    def term(self) -> Term:
        """Return the present term."""
        return self._state.term

    @property
    def leader(self) -> Member | None:
        """Return who leads the present term, as far as this member knows."""
        return self._state.leader

    @property
    def commit_index(self) -> LogIndex:
        """Return up to where the log is known to be committed."""
        return self._state.commit_index

    @property
    def membership(self) -> Membership:
        """Return the membership in force: the newest in the log, committed or not."""
        return self._state.log.membership

    @property
    def facts(self) -> GroupFacts:
        """Return what this member knows of its group now."""
        state = self._state
        return GroupFacts(
            me=state.me, leader=state.leader, term=state.term, commit_index=state.commit_index,
            last_index=state.log.last_index, membership=state.log.membership,
            followers={} if self._leading is None else self._leading.followers,
        )  # fmt: skip

    def point_at(self, index: LogIndex) -> SnapshotPoint:
        """Return the point of a snapshot of the state machine after the committed entry `index`."""
        state = self._state
        term = state.log.term_at(index)
        assert term is not None, index
        assert state.log.snapshot.index <= index <= state.commit_index, index
        return SnapshotPoint(index, term, state.log.membership_at(index))

    def start(self, now_ms: int) -> list[Effect]:
        """Begin as a follower; who votes alone leads at once."""
        state = self._state
        state.now_ms = now_ms
        if state.log.stale_up_to is not None:
            state.effects.append(DropLog(state.log.stale_up_to))
        state.put_election_off()
        state.become(Role.FOLLOWER, None)
        if state.log.membership.voters == (state.me,):
            self._campaign(by_order=False)
        return self._taken()

    def step(self, event: Event, now_ms: int) -> list[Effect]:
        """Take one event; the effects are to be carried out in their order."""
        state = self._state
        assert now_ms >= state.now_ms, "the clock is monotonic"
        state.now_ms = now_ms
        match event:
            case Received(sender, message):
                self._receive(sender, message)
            case Ticked():
                self._tick()
            case PeerLost(member):
                if self._leading is None and member == state.leader:
                    state.lost_leader()
            case Snapshotted(point):
                self._snapshotted(point)
            case _:
                self._wish(event)
        if self._leading is not None and self._leading.is_removed:
            self._leading.name_successor()
            self._step_down()
        return self._taken()

    def _taken(self) -> list[Effect]:
        effects, self._state.effects = self._state.effects, []
        return effects

    # --- wishes ---

    def _wish(self, event: Proposed | ReadAsked | MembershipAsked | TransferAsked) -> None:
        leading = self._leading
        if leading is None:  # INV-RFC3
            state = self._state
            state.answer(event.ticket, Outcome.NOT_LEADER, state.commit_index)
            return
        match event:
            case Proposed():
                leading.propose(event)
            case ReadAsked(ticket):
                leading.read(ticket)
            case MembershipAsked():
                leading.change_membership(event)
            case TransferAsked():
                leading.hand_over(event)
            case _:
                assert_never(event)

    # --- messages ---

    def _receive(self, sender: Member, message: Message) -> None:
        match message:
            case VoteRequest():
                self._take_vote_request(sender, message)
            case VoteAnswer():
                self._take_vote_answer(sender, message)
            case AppendRequest() | SnapshotRequest():
                self._take_from_leader(sender, message)
            case AppendAnswer() | SnapshotAnswer():
                self._take_from_follower(sender, message)
            case BeginElection(term):
                if (term, sender) == (self._state.term, self._state.leader):
                    self._campaign(by_order=True)
            case (
                PassedOn() | JoinAsked()
            ):  # their term is no claim: whoever asks may be behind, or new
                if self._leading is not None:
                    self._take_wish(self._leading, sender, message)
            case _:
                assert_never(message)

    def _take_wish(self, leading: Leading, sender: Member, wish: PassedOn | JoinAsked) -> None:
        if isinstance(wish, PassedOn):
            leading.propose(Proposed(NOBODY, wish.payload))
        else:
            leading.note_joining(sender)

    def _take_vote_request(self, sender: Member, request: VoteRequest) -> None:
        state = self._state
        if request.pre:
            granted = self._elections.would_vote(sender, request)
            term = request.term if granted else state.term
            state.send(sender, VoteAnswer(term, True, granted))
            return
        if request.term < state.term or self._elections.is_bound_to_leader(request):
            state.send(sender, VoteAnswer(state.term, False, False))
            return
        if request.term > state.term:
            self._adopt(request.term, successor=sender)
        granted = self._elections.vote(sender, request)
        state.send(sender, VoteAnswer(state.term, False, granted))

    def _take_vote_answer(self, sender: Member, answer: VoteAnswer) -> None:
        promised = answer.pre and answer.granted
        if answer.term > self._state.term and not promised:
            self._adopt(answer.term)
        elif self._elections.take_answer(sender, answer):
            self._lead()

    def _take_from_leader(self, sender: Member, request: AppendRequest | SnapshotRequest) -> None:
        is_former = request.term < self._state.term
        if request.term > self._state.term:
            self._adopt(request.term)
        following = self._following
        match request:
            case AppendRequest():
                take = following.refuse_entries if is_former else following.take_entries
                take(sender, request)
            case SnapshotRequest():
                keep = following.refuse_piece if is_former else following.take_piece
                keep(sender, request)
            case _:
                assert_never(request)

    def _take_from_follower(self, sender: Member, answer: AppendAnswer | SnapshotAnswer) -> None:
        if answer.term > self._state.term:
            self._adopt(answer.term)
        if self._leading is None or answer.term < self._state.term:  # INV-RFC1
            return
        match answer:
            case AppendAnswer():
                self._leading.take_answer(sender, answer)
            case SnapshotAnswer():
                self._leading.take_snapshot_answer(sender, answer)
            case _:
                assert_never(answer)

    # --- time, snapshots, roles ---

    def _tick(self) -> None:
        if self._leading is not None:
            if not self._leading.tick():
                self._step_down()
        elif self._state.now_ms >= self._state.election_due_ms:
            self._campaign(by_order=False)

    def _snapshotted(self, point: SnapshotPoint) -> None:
        state = self._state
        if point.index <= state.log.snapshot.index:
            return
        assert point.index <= state.commit_index, "INV-RFS2: only what is committed is applied"
        up_to = state.log.snapshotted(point, state.settings.kept_entries)
        if up_to is not None:
            state.effects.append(DropLog(up_to))

    def _campaign(self, *, by_order: bool) -> None:
        if self._elections.may_campaign():
            if self._elections.campaign(by_order=by_order):
                self._lead()
        else:
            self._state.put_election_off()
            if not self._state.has_fresh_leader:
                self._state.become(Role.FOLLOWER, None)

    def _lead(self) -> None:
        state = self._state
        state.become(Role.LEADER, state.me)
        self._leading = Leading(state)
        self._leading.begin()

    def _adopt(self, term: Term, successor: Member | None = None) -> None:
        """Follow into a higher term (INV-RFC2)."""
        self._state.enter_term(term, None)
        self._step_down(successor)

    def _step_down(self, successor: Member | None = None) -> None:
        """Follow; whom is not known yet."""
        state = self._state
        if self._leading is not None:
            state.leader = None
            self._leading.resign(successor)
            self._leading = None
            state.put_election_off()
        state.become(Role.FOLLOWER, None)
