"""How a member becomes leader: it asks whether it would be elected (PreVote), then for votes, then counts the voters.

INV-RFV1  only a member whose log holds all that mine does gets my vote (Raft 5.4.1)
INV-RFV2  who has a fresh leader votes for nobody, unless that leader ordered the election (thesis 4.2.3, 3.10). One whose connection
          has ended is fresh no more, until it is heard again: a process that is killed is replaced without the whole time-out
INV-RFV3  asking beforehand changes no term and no vote (thesis 9.6)
INV-RFV4  only voters of the membership in force are counted, each once, and only answers of the present election

Who does not vote any more goes on asking until the entry that says so is committed: else an entry that only it holds
could keep all others from an election for ever (thesis 4.2.2). Learners and others never ask.
"""

from region_broker.controller.raft.effects import Role, VoteAnswer, VoteRequest
from region_broker.controller.raft.entries import LogIndex, Member, Term
from region_broker.controller.raft.member_state import MemberState
from region_broker.controller.raft.memberships import is_majority


class Elections:
    """The candidate's and the voter's side of elections."""

    def __init__(self, state: MemberState) -> None:
        """Begin without an election."""
        self._state = state
        self._pre = False
        self._granted: set[Member] = set()

    def may_campaign(self) -> bool:
        """Return whether this member votes in a membership that may be the newest committed one.

        After a start that is every one behind the snapshot.
        """
        return self._state.log.may_vote(self._state.me, self._state.commit_index)

    def campaign(self, *, by_order: bool = False) -> bool:
        """Begin an election, beforehand unless it was ordered; return whether it is won at once."""
        state = self._state
        if by_order or state.log.membership.voters == (state.me,):
            return self._ask_for_votes(by_order=by_order)
        self._pre = True
        return self._ask(VoteRequest(Term(state.term + 1), *self._log_end(), pre=True))

    def take_answer(self, sender: Member, answer: VoteAnswer) -> bool:
        """Count an answer; return whether this member now leads. Answers of other elections say nothing (INV-RFV4)."""
        state = self._state
        asked_term = state.term + 1 if self._pre else state.term
        if state.role is not Role.CANDIDATE or (answer.pre, answer.term) != (self._pre, asked_term):
            return False
        if not answer.granted:
            return False
        self._granted.add(sender)
        if not self._is_elected():
            return False
        return self._ask_for_votes(by_order=False) if self._pre else True

    def would_vote(self, sender: Member, request: VoteRequest) -> bool:
        """Return whether a request that is asked beforehand would be granted (INV-RFV3)."""
        state = self._state
        return (
            request.term > state.term
            and not self.is_bound_to_leader(request)
            and self._is_up_to_date(request)
            and sender != state.me
        )

    def is_bound_to_leader(self, request: VoteRequest) -> bool:
        """Return whether a leader that is fresh keeps this member from the election (INV-RFV2)."""
        return self._state.has_fresh_leader and not request.by_order

    def vote(self, sender: Member, request: VoteRequest) -> bool:
        """Vote for a candidate of the present term, or not (INV-RFS1, INV-RFV1)."""
        state = self._state
        assert request.term == state.term, (request.term, state.term)
        if state.hard.voted_for not in {None, sender} or not self._is_up_to_date(request):
            return False
        state.enter_term(state.term, sender)
        state.put_election_off()
        return True

    def _ask_for_votes(self, *, by_order: bool) -> bool:
        state = self._state
        self._pre = False
        state.enter_term(Term(state.term + 1), state.me)
        return self._ask(VoteRequest(state.term, *self._log_end(), pre=False, by_order=by_order))

    def _ask(self, request: VoteRequest) -> bool:
        state = self._state
        assert self.may_campaign(), "INV-RFV4: learners and others ask for no votes"
        state.become(Role.CANDIDATE, None)
        state.put_election_off()
        self._granted = {state.me}
        if self._is_elected():
            return True
        for voter in state.log.membership.voters:
            if voter != state.me:
                state.send(voter, request)
        return False

    def _is_elected(self) -> bool:
        return is_majority(self._granted, self._state.log.membership.voters)

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        log = self._state.log
        return (request.last_term, request.last_index) >= (log.last_term, log.last_index)

    def _log_end(self) -> tuple[LogIndex, Term]:
        return self._state.log.last_index, self._state.log.last_term
