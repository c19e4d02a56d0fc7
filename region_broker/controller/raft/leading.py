"""What a leader does: it appends, replicates, counts, commits, confirms that it leads, and hands over.

INV-RFD1  only entries of the leader's own term are committed by counting; older ones are with them (Raft 5.4.2)
INV-RFD2  every wish is answered once: DONE with its entry committed, or LOST when the leader leads no more
INV-RFD3  a membership is proposed when the one before it and an entry of this term are committed (thesis 4.1, and
          Ongaro's correction of 2015)
INV-RFD4  a leader that has not heard a majority of the voters for an election timeout leads no more (thesis 6.2)
INV-RFD5  an entry that is larger than a message is never sent: whoever lacks it gets the snapshot that it is in, as soon as there is one. Only
          the log of a member that was alone has such entries, all of them committed, and a snapshot is due behind each; a disk may have had no
          room for it

Requests leave before this leader's own disk has the entries (thesis 10.2.1): the count of its own copy stands behind the
`Persist` in the order of effects.
"""

from collections import deque
from dataclasses import dataclass

from region_broker.controller.raft.effects import (
    AppendAnswer,
    AppendRequest,
    BeginElection,
    Joining,
    MembershipAsked,
    Outcome,
    Persist,
    Proposed,
    SendSnapshot,
    SnapshotAnswer,
    TransferAsked,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
)
from region_broker.controller.raft.group_facts import FollowerFacts
from region_broker.controller.raft.member_state import MemberState
from region_broker.controller.raft.memberships import (
    is_majority,
    is_one_step,
    membership_payload,
    reached_by_majority,
)
from region_broker.controller.raft.progress import Mode, Progress
from region_broker.controller.raft.reads import Reads


@dataclass(frozen=True, slots=True)
class Transfer:
    """The leadership is being handed over; `due_ms`: when that is given up."""

    ticket: int
    target: Member
    due_ms: int


class Leading:
    """One leadership: from the election to the step down."""

    def __init__(self, state: MemberState) -> None:
        """Lead the present term, with nothing known of the others' logs."""
        self._state = state
        self._first_index = LogIndex(state.log.last_index + 1)
        self._progress: dict[Member, Progress] = {}
        self._waiting: deque[tuple[int, LogIndex]] = deque()
        self._uncommitted_bytes = 0
        self._reads = Reads()
        self._newest_beat = 0
        self._confirmed_beat = 0
        self._heartbeat_due_ms = state.now_ms
        self._transfer: Transfer | None = None
        self._follow_membership()

    def begin(self) -> None:
        """Append the term's first entry, without which nothing older could commit.

        The first leader of all writes the first membership down, too: who joins later has it from nowhere else.
        """
        self._append(EntryKind.LEADER, b"")
        if self._state.log.membership_index == BEFORE_FIRST:
            self._append(EntryKind.MEMBERSHIP, membership_payload(self._state.log.membership))
        self._heartbeat_due_ms = self._state.now_ms + self._state.settings.heartbeat_ms

    @property
    def followers(self) -> dict[Member, FollowerFacts]:
        """Return how far each other member is known to be."""
        return {
            member: FollowerFacts(each.match_index, each.heard_ms)
            for member, each in self._progress.items()
        }

    # --- wishes ---

    def propose(self, event: Proposed) -> None:
        """Append a command, unless too much waits or the leadership is being handed over."""
        state, limits = self._state, self._state.settings
        if len(event.payload) > limits.payload_bytes_max:
            state.answer(event.ticket, Outcome.REFUSED, state.commit_index)
            return
        wanted_bytes = self._uncommitted_bytes + len(event.payload) + limits.entry_bytes
        full = wanted_bytes > limits.uncommitted_bytes_max
        if full or self._transfer is not None or len(self._waiting) >= limits.waiting_max:
            state.answer(event.ticket, Outcome.BUSY, state.commit_index)
            return
        self._append(EntryKind.COMMAND, event.payload, event.ticket)

    def read(self, ticket: int) -> None:
        """Let a read wait for the next round of heartbeats, and begin it if none is on its way."""
        state = self._state
        if len(self._reads) >= state.settings.waiting_max:
            state.answer(ticket, Outcome.BUSY, state.commit_index)
            return
        self._reads.ask(ticket, max(state.commit_index, self._first_index), self._newest_beat)
        self._settle_reads()

    def change_membership(self, event: MembershipAsked) -> None:
        """Append a membership that is one step from the present one (INV-RFD3)."""
        state = self._state
        pending = max(state.log.membership_index, self._first_index) > state.commit_index
        if pending or self._transfer is not None:
            state.answer(event.ticket, Outcome.BUSY, state.commit_index)
        elif not self._is_allowed(event.membership):
            state.answer(event.ticket, Outcome.REFUSED, state.commit_index)
        else:
            payload = membership_payload(event.membership)
            self._append(EntryKind.MEMBERSHIP, payload, event.ticket)

    def hand_over(self, event: TransferAsked) -> None:
        """Tell another voter to take over as soon as it has the whole log."""
        state = self._state
        if self._transfer is not None:
            state.answer(event.ticket, Outcome.BUSY, state.commit_index)
        elif event.target == state.me or event.target not in state.log.membership.voters:
            state.answer(event.ticket, Outcome.REFUSED, state.commit_index)
        else:
            due_ms = state.now_ms + state.settings.election_timeout_ms
            self._transfer = Transfer(event.ticket, event.target, due_ms)
            self._order_election()

    def note_joining(self, member: Member) -> None:
        """Say that a folder wants to be a member, unless it is one, or another one of its node is heard (INV-RFC4)."""
        if member == self._state.me or member in self._progress:
            return
        known = [
            each for each in (self._state.me, *self._progress) if each.node_id == member.node_id
        ]
        displaces = known[0] if known else None
        if displaces is not None:
            progress = self._progress.get(displaces)
            if progress is None or self._is_fresh(progress):
                return
        self._state.effects.append(Joining(member, displaces))

    # --- answers ---

    def take_answer(self, sender: Member, answer: AppendAnswer) -> None:
        """Take note of how far a follower is, commit what that commits, and send it what it lacks."""
        progress = self._progress.get(sender)
        if progress is None:
            return
        progress.heard_ms = self._state.now_ms
        progress.acked_beat = max(progress.acked_beat, answer.beat)
        if answer.taken:
            progress.taken_up_to(answer.matched)
            self._count()
            self._order_election()
        elif progress.mode is not Mode.SNAPSHOT and answer.hint_index >= progress.match_index:
            log = self._state.log
            progress.refused(log.last_not_above(answer.hint_index, answer.hint_term)[0])
        self._confirm()
        self._replicate(sender, progress)

    def take_snapshot_answer(self, sender: Member, answer: SnapshotAnswer) -> None:
        """Send the next piece, or go on with entries."""
        progress = self._progress.get(sender)
        if progress is None:
            return
        progress.heard_ms = self._state.now_ms
        if answer.done:
            progress.taken_up_to(answer.index)
            self._count()
            self._replicate(sender, progress)
        elif progress.mode is Mode.SNAPSHOT:
            is_present = answer.index >= self._state.log.snapshot.index
            have_bytes = answer.have_bytes if is_present else 0
            if have_bytes != progress.snapshot_position:
                self._send_piece(sender, progress, have_bytes)

    # --- time ---

    def tick(self) -> bool:
        """Send heartbeats when they are due; return whether this member may go on leading (INV-RFD4)."""
        state = self._state
        if not self._is_heard():
            return False
        if self._transfer is not None and state.now_ms >= self._transfer.due_ms:
            state.answer(self._transfer.ticket, Outcome.REFUSED, state.commit_index)
            self._transfer = None
        if state.now_ms >= self._heartbeat_due_ms:
            self._order_election()
            self._begin_beat()
        return True

    @property
    def is_removed(self) -> bool:
        """Return whether it is committed that this leader votes no more."""
        log = self._state.log
        return not self._state.is_voter and log.membership_index <= self._state.commit_index

    def resign(self, successor: Member | None = None) -> None:
        """Answer all that waits; a hand-over is done if its target is about to take over (INV-RFD2)."""
        state = self._state
        for ticket, index in self._waiting:
            state.answer(ticket, Outcome.LOST, index)
        self._waiting.clear()
        for read in self._reads.given_up():
            state.answer(read.ticket, Outcome.LOST, read.index)
        if self._transfer is not None:
            done = successor == self._transfer.target
            outcome = Outcome.DONE if done else Outcome.LOST
            state.answer(self._transfer.ticket, outcome, state.commit_index)
            self._transfer = None

    def name_successor(self) -> None:
        """Tell the voter that has most of the log to take over: this leader is removed."""
        state = self._state
        voters = [voter for voter in state.log.membership.voters if voter in self._progress]
        target = max(voters, key=lambda voter: (self._progress[voter].match_index, voter))
        state.send(target, BeginElection(state.term))

    # --- inside ---

    def _append(self, kind: EntryKind, payload: bytes, ticket: int | None = None) -> None:
        state = self._state
        entry = Entry(LogIndex(state.log.last_index + 1), state.term, kind, payload)
        state.log.append((entry,))
        if ticket is not None:
            self._waiting.append((ticket, entry.index))
        self._uncommitted_bytes += len(payload) + state.settings.entry_bytes
        if kind is EntryKind.MEMBERSHIP:
            self._follow_membership()
        for member, progress in self._progress.items():
            self._replicate(member, progress)
        state.effects.append(Persist(None, None, (entry,)))
        self._count()
        self._confirm()

    def _follow_membership(self) -> None:
        """Know of the members of the membership in force, and of no others."""
        state = self._state
        membership = state.log.membership
        known = self._progress
        self._progress = {
            member: known.get(member) or Progress(LogIndex(state.log.last_index + 1), state.now_ms)
            for member in (*membership.voters, *membership.learners)
            if member != state.me
        }

    def _is_allowed(self, wanted: Membership) -> bool:
        """Return whether it is one step, and whoever is to vote from now on has almost the whole log."""
        state = self._state
        present = state.log.membership
        if not is_one_step(present, wanted):
            return False
        for member in set(wanted.voters) - set(present.voters):
            progress = self._progress.get(member)
            if progress is None or not self._is_fresh(progress):
                return False
            if state.log.last_index - progress.match_index > state.settings.promotion_lag_max:
                return False
        return True

    def _is_fresh(self, progress: Progress) -> bool:
        silent_ms = self._state.now_ms - progress.heard_ms
        return silent_ms < self._state.settings.election_timeout_ms

    def _is_heard(self) -> bool:
        heard = {member for member, each in self._progress.items() if self._is_fresh(each)}
        return is_majority(heard | {self._state.me}, self._state.log.membership.voters)

    def _count(self) -> None:
        """Commit what a majority of the voters has (INV-RFD1), and tell the others."""
        state = self._state
        reached: dict[Member, int] = {m: each.match_index for m, each in self._progress.items()}
        reached[state.me] = state.log.last_index
        index = LogIndex(reached_by_majority(reached, state.log.membership.voters))
        if index <= state.commit_index or state.log.term_at(index) != state.term:
            return
        for entry in state.log.between(state.commit_index, index):
            if entry.term == state.term:
                self._uncommitted_bytes -= len(entry.payload) + state.settings.entry_bytes
        state.commit_to(index)
        while self._waiting and self._waiting[0][1] <= index:
            ticket, at = self._waiting.popleft()
            state.answer(ticket, Outcome.DONE, at)
        for member, progress in self._progress.items():
            self._replicate(member, progress)
        self._settle_reads()

    def _confirm(self) -> None:
        """Note which round a majority has confirmed, and answer the reads that waited for it."""
        acked: dict[Member, int] = {m: each.acked_beat for m, each in self._progress.items()}
        acked[self._state.me] = self._newest_beat
        self._confirmed_beat = reached_by_majority(acked, self._state.log.membership.voters)
        self._settle_reads()

    def _settle_reads(self) -> None:
        state = self._state
        if self._reads.wants_beat(self._newest_beat, self._confirmed_beat):
            self._begin_beat()
            return
        for read in self._reads.settled(self._confirmed_beat, state.commit_index):
            state.answer(read.ticket, Outcome.DONE, read.index)

    def _begin_beat(self) -> None:
        """Begin a round of heartbeats."""
        state = self._state
        self._newest_beat += 1
        self._heartbeat_due_ms = state.now_ms + state.settings.heartbeat_ms
        for member, progress in self._progress.items():
            self._heartbeat(member, progress)
        self._confirm()

    def _heartbeat(self, member: Member, progress: Progress) -> None:
        state = self._state
        if progress.mode is Mode.SNAPSHOT:
            if state.now_ms - progress.snapshot_sent_ms >= state.settings.election_timeout_ms:
                self._send_piece(member, progress, progress.snapshot_position)
            self._send(member, progress, state.log.snapshot.index, ())
            return
        previous = LogIndex(progress.next_index - 1)
        if state.log.term_at(previous) is None:
            self._begin_snapshot(member, progress)
            previous = state.log.snapshot.index
        self._send(member, progress, previous, ())

    def _replicate(self, member: Member, progress: Progress) -> None:
        """Send a follower what it lacks, as much as may be on its way; if nothing, how far it may commit."""
        state, limits = self._state, self._state.settings
        while progress.next_index <= state.log.last_index and progress.may_send(limits):
            previous = LogIndex(progress.next_index - 1)
            if state.log.term_at(previous) is None:
                self._begin_snapshot(member, progress)
                return
            entries = state.log.batch(previous, limits.append_entries_max, limits.append_bytes_max)
            if len(entries[0].payload) > limits.sent_payload_bytes_max:  # INV-RFD5
                if state.log.snapshot.index >= entries[0].index:
                    self._begin_snapshot(member, progress)
                return
            self._send(member, progress, previous, entries)
            progress.sent(entries[-1].index, sum(len(each.payload) for each in entries))
        if progress.mode is Mode.REPLICATE and progress.told_commit < state.commit_index:
            previous = LogIndex(progress.next_index - 1)
            if state.log.term_at(previous) is not None:
                self._send(member, progress, previous, ())

    def _send(
        self, member: Member, progress: Progress, previous: LogIndex, entries: tuple[Entry, ...]
    ) -> None:
        state = self._state
        previous_term = state.log.term_at(previous)
        assert previous_term is not None, "INV-RFL2: what is gone is in the snapshot"
        progress.told_commit = state.commit_index
        request = AppendRequest(
            state.term, previous, previous_term, entries, state.commit_index, self._newest_beat
        )
        state.send(member, request)

    def _begin_snapshot(self, member: Member, progress: Progress) -> None:
        progress.needs_snapshot(self._state.now_ms)
        self._send_piece(member, progress, 0)

    def _send_piece(self, member: Member, progress: Progress, position: int) -> None:
        progress.snapshot_position = position
        progress.snapshot_sent_ms = self._state.now_ms
        self._state.effects.append(SendSnapshot(member, self._state.term, position))

    def _order_election(self) -> None:
        """Send the order to take over, if its target has the whole log; again with each heartbeat, as it may be lost."""
        state = self._state
        if self._transfer is None:
            return
        progress = self._progress.get(self._transfer.target)
        if progress is not None and progress.match_index == state.log.last_index:
            state.send(self._transfer.target, BeginElection(state.term))
