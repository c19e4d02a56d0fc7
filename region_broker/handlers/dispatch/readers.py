"""Where consumers read that say in which rack they stand (KIP-392): at the leader, or at a follower in that rack.

INV-HRD1 who leads sends a reader away only while its region takes writes and only if the leader stands in another rack than the
         reader does, to a node in the reader's rack that is in sync, heard, not about to stop, and has said that it serves readers;
         and only at an offset that the log has, and that no follower's log starts behind
         1. A leader deletes, and one follower has heard of it. 2. The leader is lost, and one that has not heard of it leads. 3. A reader
         of what was deleted is sent to that follower, which sends it back, again and again.
INV-HRD2 a node that does not lead serves a Fetch only of a reader that says its rack; whoever says none, or another one, is to ask
         the leader
INV-HRD3 a follower never says that an offset is out of range, as that would make a consumer begin anew: what lies beyond its HW is
         OFFSET_NOT_AVAILABLE once the reader has waited, what lies below its log start the leader is asked for
INV-HRD4 a follower whose bytes are not what was written, or that has not the key of what is sealed, serves no readers until that is mended, and
         sends them to the leader
INV-HRD5 who leads, and is not sure of it, says neither that an offset is out of range nor that a sequence is out of order, but that it does
         not lead: clients ask who does, and come back
Not here: who serves, and until when (`region.cluster.reader_places`, `region.cluster.replica_readers`), reading (`fetch.reading`).
"""

from collections.abc import Sequence
from typing import Final, Protocol

from idempotency.identity import LogKey

SELECTS_LEADER: Final = "leader"
"""The value of `replica_selector` with which nobody is sent away; `rack` sends to the reader's rack."""


class ReaderCounts:
    """Since the start of the node: `sent_away` partitions of answers that named another node; `copy_bytes` read from copies here."""

    __slots__ = ("copy_bytes", "sent_away")

    def __init__(self) -> None:
        """Begin at 0."""
        self.sent_away = self.copy_bytes = 0


class ReaderPlaces(Protocol):
    """What this node knows of who serves readers in its region (`region.cluster.reader_places.RegionReaders`)."""

    counts: ReaderCounts

    def nearer(self, rack: str) -> Sequence[int]:
        """Return the nodes that a reader in `rack` is to ask instead of this one, which leads (INV-HRD1); none: it is served here."""
        ...

    def have(self, key: LogKey, offset: int) -> bool:
        """Return whether no follower's log starts behind `offset`, to which this node's log reaches."""
        ...

    def serves(self, rack: str) -> bool:
        """Return whether this node, which does not lead, serves a reader in `rack` now (INV-HRD2)."""
        ...

    def stop_serving(self, key: LogKey, offset: int, name: str) -> None:
        """Serve no readers as a follower until a log, called `name`, can be read again at `offset` (INV-HRD4)."""
        ...
