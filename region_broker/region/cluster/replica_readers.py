"""Which copies of this follower readers see, and until when (KIP-392).

INV-RRD1 a copy is shown from the first answer in a session that names it: its history was compared with the leader's in that session,
         and its HW is what that leader has said. It is shown while the leader's last answer says that the region takes writes, while
         the metadata here have that the region acts, that this leader leads under this leader epoch, and that this node is in sync, heard
         and not about to stop, and while the leader was heard within `PATIENCE_MS`
INV-RRD2 where one of these ends, nothing is shown in the same step, and before a HW that came with the news counts
INV-RRD3 what was hidden because the session ended is shown in no other session without being named there
         1. The region mirrors another one from now on. 2. The leader cuts a log, and copies the primary's records, below HW of its own
         nodes. 3. A follower that has not heard of it would show what no tidemark has shown (T17), or what is cut. It is in a new
         session by then (INV-RLD6, INV-RTM4), whose leader says that its region takes no writes.

What a reader sees here lies below a HW that the leader had while its region took writes: that one showed it before, or would have, so a
failover takes back no more than what it takes back from readers of a leader that was deposed and has not heard of it (T31). Inside the
region nothing below HW is cut, but by an operator's unclean election.
A leader that is cut off shows what it has for as long as it hears of nobody else; a follower only for `PATIENCE_MS`.
Not here: how far a copy is committed (`replication.following`), who is sent here (`reader_places`), reading (`handlers.fetch`).
"""

from collections.abc import Callable
from typing import Final

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey, Member
from region_broker.partitions.partition import Partition

PATIENCE_MS: Final = 2_000
"""A leader answers a waiting fetch twice a second."""

MayServe = Callable[[Member, LeaderEpoch], bool]


def nobody_reads(_leader: Member, _leader_epoch: LeaderEpoch) -> bool:
    """Return False: this node serves no readers while it follows."""
    return False


class ReplicaReaders:
    """Of one follower; belongs to `replica_following`, which says what happens."""

    def __init__(self, may_serve: MayServe) -> None:
        """Show nothing. `may_serve`: whether the metadata here let this node serve readers as a follower of that leader."""
        self._may_serve = may_serve
        self._leader: Member | None = None
        self._leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self._leader_acts = False
        self._heard_ms = 0
        self._named: dict[LogKey, Partition] = {}
        """The logs that an answer of this session has named."""
        self.is_open = False
        """Whether readers are served now."""

    @property
    def wants_looks(self) -> bool:
        """Return whether this follower may ever serve readers: only then is there something to see by the time."""
        return self._may_serve is not nobody_reads

    @property
    def named_count(self) -> int:
        """Return how many logs can be read here while readers are served."""
        return len(self._named)

    def begin(self, leader: Member, leader_epoch: LeaderEpoch) -> None:
        """A session begins: nothing is named in it yet."""
        self.end()
        self._leader, self._leader_epoch = leader, leader_epoch

    def heard(self, now_ms: int, *, acts: bool) -> None:
        """The leader has answered; `acts`: whether its region takes writes. To be told before what the answer brings."""
        self._heard_ms, self._leader_acts = now_ms, acts
        self.look(now_ms)

    def named(self, partition: Partition) -> None:
        """An answer of this session has named a log, and its HW is known here."""
        if partition.key not in self._named:
            self._named[partition.key] = partition
            if self.is_open:
                partition.copy_view.show(self._leader_epoch)

    def gone(self, partition: Partition) -> None:
        """A log has left the session, or stopped."""
        if self._named.pop(partition.key, None) is not None:
            partition.copy_view.hide()

    def look(self, now_ms: int) -> None:
        """See whether readers may be served (INV-RRD1); at each change of the metadata, and now and then."""
        leader = self._leader
        may = (
            leader is not None
            and self._leader_acts
            and now_ms - self._heard_ms <= PATIENCE_MS
            and self._may_serve(leader, self._leader_epoch)
        )
        if may and not self.is_open:
            self.is_open = True
            for partition in self._named.values():
                partition.copy_view.show(self._leader_epoch)
        elif not may:
            self._close()

    def end(self) -> None:
        """The session has ended (INV-RRD3)."""
        self._close()
        self._named.clear()
        self._leader, self._leader_acts = None, False

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            for partition in self._named.values():
                partition.copy_view.hide()
