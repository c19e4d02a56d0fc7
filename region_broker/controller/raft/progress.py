"""How far a leader knows one follower's log to be its own, and what is on its way there.

INV-RFP1  `match_index` never falls while its leader leads
INV-RFP2  what is on its way is bounded, in requests and in bytes, but for one request

As etcd's tracker: a follower is *probed* with one request at a time until it takes one, then entries are sent on without
waiting for answers; what is gone from the log, a snapshot brings.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum, auto

from region_broker.controller.raft.entries import BEFORE_FIRST, LogIndex
from region_broker.controller.raft.settings import RaftSettings


class Mode(Enum):
    """How a follower is sent the log."""

    PROBE = auto()
    REPLICATE = auto()
    SNAPSHOT = auto()


@dataclass(slots=True)
class Progress:
    """One follower. `next_index`: of the next entry to send."""

    next_index: LogIndex
    heard_ms: int
    match_index: LogIndex = BEFORE_FIRST
    mode: Mode = Mode.PROBE
    probing: bool = False
    """A probe with entries is on its way, and no other follows it before the answer, or the next heartbeat's."""
    acked_beat: int = 0
    told_commit: LogIndex = BEFORE_FIRST
    """The commit index that the last request carried."""
    snapshot_position: int = 0
    snapshot_sent_ms: int = 0
    in_flight: deque[tuple[LogIndex, int]] = field(default_factory=deque)
    """Of each request with entries that was not answered: its last index, its bytes."""
    in_flight_bytes: int = 0

    def may_send(self, settings: RaftSettings) -> bool:
        """Return whether entries may be sent now (INV-RFP2)."""
        if self.mode is Mode.PROBE:
            return not self.probing
        return (
            self.mode is Mode.REPLICATE
            and len(self.in_flight) < settings.in_flight_requests_max
            and self.in_flight_bytes < settings.in_flight_bytes_max
        )

    def sent(self, last_index: LogIndex, payload_bytes: int) -> None:
        """Take note of entries that were sent."""
        if self.mode is Mode.PROBE:
            self.probing = True
            return
        self.next_index = LogIndex(last_index + 1)
        self.in_flight.append((last_index, payload_bytes))
        self.in_flight_bytes += payload_bytes

    def taken_up_to(self, matched: LogIndex) -> None:
        """The follower has the leader's log up to `matched`: entries are sent on from there without waiting."""
        self.match_index = max(self.match_index, matched)  # INV-RFP1: answers come in any order
        if self.mode is not Mode.REPLICATE:
            self.mode = Mode.REPLICATE
            self.next_index = LogIndex(self.match_index + 1)
        self.next_index = LogIndex(max(self.next_index, self.match_index + 1))
        while self.in_flight and self.in_flight[0][0] <= self.match_index:
            self.in_flight_bytes -= self.in_flight.popleft()[1]

    def refused(self, look_at: LogIndex) -> None:
        """The follower lacks what the request followed: look no higher than at `look_at`."""
        lower = min(self.next_index, LogIndex(look_at + 1))
        self.next_index = LogIndex(max(lower, self.match_index + 1))
        self._wait_in(Mode.PROBE)

    def needs_snapshot(self, now_ms: int) -> None:
        """What the follower needs next is gone from the log."""
        self._wait_in(Mode.SNAPSHOT)
        self.snapshot_position = 0
        self.snapshot_sent_ms = now_ms

    def _wait_in(self, mode: Mode) -> None:
        self.mode = mode
        self.probing = False
        self.in_flight.clear()
        self.in_flight_bytes = 0
