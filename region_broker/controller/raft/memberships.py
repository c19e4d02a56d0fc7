"""Who decides: majorities of voters, one-step changes, and the memberships that a log holds.

INV-RFM1  a majority of n voters is n // 2 + 1 of them, each counted once; nobody else counts
INV-RFM2  the newest membership in the log is in force, committed or not; when it is cut off, the one before it is
"""

from bisect import bisect_right
from collections.abc import Container, Iterable, Mapping
from typing import Final

import msgspec

from region_broker.controller.raft.entries import (
    MEMBERS_MAX,
    Entry,
    EntryKind,
    LogIndex,
    Member,
    Membership,
    SnapshotPoint,
)


def majority_of(count: int) -> int:
    """Return how many of `count` voters decide (INV-RFM1)."""
    return count // 2 + 1


def is_majority(members: Container[Member], voters: tuple[Member, ...]) -> bool:
    """Return whether these members hold a majority of the voters."""
    return sum(voter in members for voter in voters) >= majority_of(len(voters))


def reached_by_majority(reached: Mapping[Member, int], voters: tuple[Member, ...]) -> int:
    """Return the greatest number that a majority of the voters has reached; who is not named has reached 0."""
    ranked = sorted((reached.get(voter, 0) for voter in voters), reverse=True)
    return ranked[majority_of(len(voters)) - 1]


def is_one_step(before: Membership, after: Membership) -> bool:
    """Return whether `after` is well formed and differs from `before` in the standing of exactly one member (INV-RE3)."""
    members = (*after.voters, *after.learners)
    if not after.voters or len(set(members)) != len(members) or len(members) > MEMBERS_MAX:
        return False
    if list(after.voters) != sorted(after.voters) or list(after.learners) != sorted(after.learners):
        return False
    return len(_standings(before) ^ _standings(after)) - len(_moved(before, after)) == 1


def _standings(membership: Membership) -> set[tuple[Member, bool]]:
    voters = {(member, True) for member in membership.voters}
    return voters | {(member, False) for member in membership.learners}


def _moved(before: Membership, after: Membership) -> set[Member]:
    """Return who was a voter and is a learner, or the other way: they stand in the difference twice."""
    demoted = set(before.voters) & set(after.learners)
    return demoted | (set(before.learners) & set(after.voters))


def membership_payload(membership: Membership) -> bytes:
    """Return a membership as it stands in an entry."""
    return msgspec.msgpack.encode(membership)


_DECODER: Final = msgspec.msgpack.Decoder(Membership)


def memberships_of(entries: Iterable[Entry]) -> list[Membership]:
    """Return the memberships that entries say, in order."""
    return [_DECODER.decode(each.payload) for each in entries if each.kind is EntryKind.MEMBERSHIP]


class MembershipHistory:
    """The membership of the snapshot, and those of the entries behind it (INV-RFM2)."""

    def __init__(self, snapshot: SnapshotPoint) -> None:
        """Begin with what the snapshot says."""
        self._indexes: list[LogIndex] = [snapshot.index]
        self._memberships: list[Membership] = [snapshot.membership]

    @property
    def in_force(self) -> Membership:
        """Return the newest membership."""
        return self._memberships[-1]

    @property
    def index(self) -> LogIndex:
        """Return where the newest membership stands."""
        return self._indexes[-1]

    def at(self, index: LogIndex) -> Membership:
        """Return the membership that the log says up to `index`, which is not before the snapshot."""
        place = bisect_right(self._indexes, index)
        assert place > 0, (index, self._indexes[0])
        return self._memberships[place - 1]

    def may_vote(self, member: Member, index: LogIndex) -> bool:
        """Return whether a member votes in the membership at `index`, or in any later one."""
        place = bisect_right(self._indexes, index)
        assert place > 0, (index, self._indexes[0])
        return any(member in each.voters for each in self._memberships[place - 1 :])

    def append(self, entry: Entry) -> None:
        """Take note of an entry."""
        if entry.kind is EntryKind.MEMBERSHIP:
            self._indexes.append(entry.index)
            self._memberships.append(_DECODER.decode(entry.payload))

    def cut_behind(self, index: LogIndex) -> None:
        """Forget what the entries behind `index` said."""
        place = bisect_right(self._indexes, index)
        assert place > 0, "INV-RFM2: what a snapshot says is committed, and is not cut off"
        del self._indexes[place:], self._memberships[place:]

    def begin_at(self, snapshot: SnapshotPoint) -> None:
        """Forget what was said before a snapshot that the log goes on behind."""
        place = bisect_right(self._indexes, snapshot.index)
        self._indexes[:place] = [snapshot.index]
        self._memberships[:place] = [snapshot.membership]
