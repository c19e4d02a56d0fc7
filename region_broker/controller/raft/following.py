"""How a follower takes its leader's log: entries behind what both have, or a snapshot in place of it all.

INV-RFF1  entries are cut off only where the leader's differ, and never at or before the commit index
INV-RFF2  a follower commits no further than it knows its log to be the leader's
INV-RFF3  a leader takes no entries and no snapshot

A snapshot comes in pieces, of one leader in one term: two members' snapshots of one point need not be the same bytes.
"""

from dataclasses import dataclass

from region_broker.controller.raft.effects import (
    AppendAnswer,
    AppendRequest,
    KeepSnapshotPiece,
    Role,
    SnapshotAnswer,
    SnapshotRequest,
)
from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    Entry,
    LogIndex,
    Member,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.member_state import MemberState


@dataclass(slots=True)
class Install:
    """A snapshot on its way: whose, and how much of it is here."""

    leader: Member
    term: Term
    point: SnapshotPoint
    have_bytes: int = 0


class Following:
    """What a member does with the requests of the leader of its term."""

    def __init__(self, state: MemberState) -> None:
        """Begin without a snapshot on its way."""
        self._state = state
        self._install: Install | None = None

    def take_entries(self, sender: Member, request: AppendRequest) -> None:
        """Take what follows what both logs have, or say where the leader should look."""
        state = self._state
        assert state.role is not Role.LEADER, "INV-RFF3: one leader a term"
        state.heard_leader(sender)
        refusal = self._refusal(request)
        if refusal is not None:
            state.send(sender, refusal)
            return
        self._append(request.entries)
        matched = LogIndex(request.previous_index + len(request.entries))
        # INV-RFF2: behind `matched` may be entries of another leader.
        state.commit_to(min(request.commit_index, matched))
        answer = AppendAnswer(state.term, True, matched, BEFORE_FIRST, NO_TERM, request.beat)
        state.send(sender, answer)

    def refuse_entries(self, sender: Member, request: AppendRequest) -> None:
        """Answer a leader of a former term, so that it learns."""
        log = self._state.log
        answer = AppendAnswer(
            self._state.term, False, BEFORE_FIRST, log.last_index, log.last_term, request.beat
        )
        self._state.send(sender, answer)

    def take_piece(self, sender: Member, request: SnapshotRequest) -> None:
        """Take a piece of a snapshot, and with the last one the snapshot in place of the log."""
        state = self._state
        assert state.role is not Role.LEADER, "INV-RFF3: one leader a term"
        state.heard_leader(sender)
        point = request.point
        if self._has_all_of(point):
            self._install = None
            state.commit_to(point.index)
            state.send(sender, SnapshotAnswer(state.term, point.index, 0, True))
            return
        install = self._install_for(sender, request)
        if install is None:
            state.send(sender, SnapshotAnswer(state.term, point.index, 0, False))
            return
        if request.position == install.have_bytes and self._fits(request):
            self._keep(install, request)
        done = state.log.snapshot == point
        state.send(sender, SnapshotAnswer(state.term, point.index, install.have_bytes, done))

    def refuse_piece(self, sender: Member, request: SnapshotRequest) -> None:
        """Answer a leader of a former term, so that it learns."""
        answer = SnapshotAnswer(self._state.term, request.point.index, 0, False)
        self._state.send(sender, answer)

    def _refusal(self, request: AppendRequest) -> AppendAnswer | None:
        """Return the answer where this log lacks what the entries follow. What is committed, no leader lacks."""
        state = self._state
        previous = request.previous_index
        if previous <= state.commit_index:
            known = state.log.term_at(previous)
            # INV-RFF1: what is committed here is in the log of every later leader.
            assert known in {None, request.previous_term}, (previous, known, request.previous_term)
            return None
        if state.log.term_at(previous) == request.previous_term:
            return None
        hint = state.log.last_not_above(previous, request.previous_term)
        return AppendAnswer(state.term, False, BEFORE_FIRST, *hint, request.beat)

    def _append(self, entries: tuple[Entry, ...]) -> None:
        """Put what is missing behind the log; cut off first what differs (INV-RFF1), and nothing else."""
        state = self._state
        for place, entry in enumerate(entries):
            if entry.index <= state.log.snapshot.index:
                continue
            known = state.log.term_at(entry.index)
            if known == entry.term:
                continue
            cut_behind = None if known is None else LogIndex(entry.index - 1)
            state.take_entries(cut_behind, entries[place:])
            return

    def _has_all_of(self, point: SnapshotPoint) -> bool:
        state = self._state
        return point.index <= state.commit_index or state.log.term_at(point.index) == point.term

    def _install_for(self, sender: Member, request: SnapshotRequest) -> Install | None:
        """Return what the piece belongs to, or None for a piece of what is not being taken."""
        install = self._install
        if install is not None and (install.leader, install.term) == (sender, request.term):
            if install.point == request.point:
                return install
            if install.point.index > request.point.index:
                return None
        if request.position != 0:
            return None
        self._install = Install(sender, request.term, request.point)
        return self._install

    def _fits(self, request: SnapshotRequest) -> bool:
        held_bytes = request.position + len(request.data)
        return held_bytes <= self._state.settings.snapshot_bytes_max

    def _keep(self, install: Install, request: SnapshotRequest) -> None:
        state = self._state
        install.have_bytes += len(request.data)
        piece = KeepSnapshotPiece(request.point, request.position, request.data, request.last)
        state.effects.append(piece)
        if request.last:
            self._install = None
            state.log.replace_by(request.point)
            state.commit_index = request.point.index
