"""Reads that wait until it is proved that this leader still led when they were asked (ReadIndex, thesis 6.4).

INV-RFR1  a read is answered after a majority confirmed a round of heartbeats that began behind it, and once what this
          leader's first entry follows is committed: no entry committed before the read was asked is missing
Reads that come while a round is on its way share the next one.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from region_broker.controller.raft.entries import LogIndex


@dataclass(frozen=True, slots=True)
class WaitingRead:
    """`index`: from where on it is current; `round`: what must be confirmed."""

    ticket: int
    index: LogIndex
    beat: int


class Reads:
    """The reads of one leader, in the order they came."""

    def __init__(self) -> None:
        """Begin without one."""
        self._waiting: deque[WaitingRead] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(self, ticket: int, index: LogIndex, newest_beat: int) -> None:
        """Let a read wait for the round after the newest, which began before it (INV-RFR1)."""
        self._waiting.append(WaitingRead(ticket, index, newest_beat + 1))

    def wants_beat(self, newest_beat: int, confirmed_beat: int) -> bool:
        """Return whether a round should begin: some read needs it, and none is on its way."""
        return (
            bool(self._waiting)
            and self._waiting[-1].beat > newest_beat
            and confirmed_beat >= newest_beat
        )

    def settled(self, confirmed_beat: int, commit_index: LogIndex) -> Iterator[WaitingRead]:
        """Take out the reads that may be answered."""
        while self._waiting:
            first = self._waiting[0]
            if first.beat > confirmed_beat or first.index > commit_index:
                return
            yield self._waiting.popleft()

    def given_up(self) -> Iterator[WaitingRead]:
        """Take out all reads: this member leads no more."""
        while self._waiting:
            yield self._waiting.popleft()
