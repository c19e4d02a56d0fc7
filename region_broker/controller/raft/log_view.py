"""The log as a core sees it: the newest snapshot's point, and the entries that have not been dropped.

INV-RFL1  entries follow each other without a gap, and terms never fall (INV-RE1)
INV-RFL2  the log reaches back to the snapshot: nothing is missing between the two

The entry before the first one that is held is known by its term alone: so the first AppendRequest behind it can be made.
"""

from bisect import bisect_right
from collections.abc import Sequence

from region_broker.controller.raft.entries import (
    Entry,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.memberships import MembershipHistory


class LogView:
    """Entries up to `last_index`; those that were dropped are in the snapshot."""

    def __init__(self, snapshot: SnapshotPoint, entries: Sequence[Entry]) -> None:
        """Go on from what is durable. `stale_up_to`: the end of a log that a newer snapshot took the place of."""
        self.snapshot = snapshot
        self.stale_up_to: LogIndex | None = None
        self._base_index = snapshot.index
        self._base_term = snapshot.term
        self._entries: list[Entry] = []
        self._memberships = MembershipHistory(snapshot)
        if not entries:
            return
        first = entries[0]
        assert first.index <= snapshot.index + 1, "INV-RFL2: the log reaches back to its snapshot"
        if first.index <= snapshot.index:
            place = snapshot.index - first.index
            if place >= len(entries) or entries[place].term != snapshot.term:
                self.stale_up_to = entries[-1].index
                return
            self._base_index, self._base_term = first.index, first.term
            entries = entries[1:]
        self.append(entries)

    @property
    def last_index(self) -> LogIndex:
        """Return the index of the last entry, or of the snapshot."""
        return LogIndex(self._base_index + len(self._entries))

    @property
    def last_term(self) -> Term:
        """Return the term of the last entry, or of the snapshot."""
        return self._entries[-1].term if self._entries else self._base_term

    @property
    def membership(self) -> Membership:
        """Return the membership in force: the newest in the log (INV-RFM2)."""
        return self._memberships.in_force

    @property
    def membership_index(self) -> LogIndex:
        """Return where the membership in force stands."""
        return self._memberships.index

    def membership_at(self, index: LogIndex) -> Membership:
        """Return what the log says of the membership up to `index`."""
        return self._memberships.at(index)

    def may_vote(self, member: Member, committed: LogIndex) -> bool:
        """Return whether a member votes in any membership that may be the newest committed one."""
        return self._memberships.may_vote(member, committed)

    def term_at(self, index: LogIndex) -> Term | None:
        """Return the term of an entry, or None where it is not there (any more)."""
        place = index - self._base_index - 1
        if place == -1:
            return self._base_term
        return self._entries[place].term if 0 <= place < len(self._entries) else None

    def between(self, after: LogIndex, up_to: LogIndex) -> tuple[Entry, ...]:
        """Return the entries behind `after` up to `up_to`, all of which are there."""
        assert self._base_index <= after <= up_to <= self.last_index, (after, up_to)
        return tuple(self._entries[after - self._base_index : up_to - self._base_index])

    def batch(self, after: LogIndex, entries_max: int, bytes_max: int) -> tuple[Entry, ...]:
        """Return entries behind `after`, as many as fit, and one however large it is."""
        place = after - self._base_index
        taken = self._entries[place : place + entries_max]
        held_bytes = 0
        for count, entry in enumerate(taken):
            held_bytes += len(entry.payload)
            if held_bytes > bytes_max and count:
                return tuple(taken[:count])
        return tuple(taken)

    def last_not_above(self, index: LogIndex, term: Term) -> tuple[LogIndex, Term]:
        """Return the last place at or before `index` whose term is at most `term` (thesis 5.3, etcd's findConflictByTerm).

        Where nothing is known of such a place, it is the one before all that is.
        """
        end = max(0, min(index, self.last_index) - self._base_index)
        place = bisect_right(self._entries, term, hi=end, key=lambda entry: entry.term)
        if place:
            return LogIndex(self._base_index + place), self._entries[place - 1].term
        if index >= self._base_index and self._base_term <= term:
            return self._base_index, self._base_term
        return LogIndex(max(0, min(index, self._base_index - 1))), term

    def append(self, entries: Sequence[Entry]) -> None:
        """Put entries behind the last one."""
        for entry in entries:
            assert entry.index == self.last_index + 1, "INV-RFL1: no gap"
            assert entry.term >= self.last_term, "INV-RFL1: terms never fall"
            self._entries.append(entry)
            self._memberships.append(entry)

    def cut_behind(self, index: LogIndex) -> None:
        """Forget all entries behind `index`."""
        assert self.snapshot.index <= index < self.last_index, index
        del self._entries[index - self._base_index :]
        self._memberships.cut_behind(index)

    def snapshotted(self, point: SnapshotPoint, kept_entries: int) -> LogIndex | None:
        """Take note of a newer snapshot of the own state machine; return up to where the log may go, if it may."""
        self.snapshot = point
        self._memberships.begin_at(point)
        up_to = LogIndex(point.index - kept_entries)
        if up_to <= self._base_index:
            return None
        term = self.term_at(up_to)
        assert term is not None, "INV-RFL2: only what is in the log can have been applied"
        del self._entries[: up_to - self._base_index]
        self._base_index, self._base_term = up_to, term
        return up_to

    def replace_by(self, point: SnapshotPoint) -> None:
        """Forget the whole log for a snapshot that a leader sent."""
        self.snapshot = point
        self._base_index, self._base_term = point.index, point.term
        self._entries.clear()
        self._memberships = MembershipHistory(point)
