"""Times and limits of a Raft member: whatever a peer or a caller can make grow has one.

Not here: the size of a piece of a snapshot, which whoever reads it chooses (`effects.SendSnapshot`).
"""

from dataclasses import dataclass

from region_broker.controller.raft.effects import ENTRIES_MAX
from region_broker.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times in ms. A leader that is killed is replaced after `election_timeout_ms` and up to as much again of chance."""

    election_timeout_ms: int = 500
    heartbeat_ms: int = 50
    lost_leader_ms: int = 120
    """Whose connection with the leader has ended waits so long for its next heartbeat; the voters that come after it in the order of
    node ids wait once more for each before them, so that votes are seldom split."""
    append_entries_max: int = 256
    append_bytes_max: int = 1 * MIB
    """Payloads of one AppendRequest; one entry goes whatever its size."""
    in_flight_requests_max: int = 8
    """AppendRequests with entries that a follower has not answered; what comes meanwhile leaves in larger batches."""
    in_flight_bytes_max: int = 4 * MIB
    payload_bytes_max: int = 4 * MIB
    """What one proposal may hold."""
    sent_payload_bytes_max: int = 8 * MIB - 64 * KIB
    """What an entry has that is sent as one. The log of a member that was alone has larger ones, which others have by a snapshot."""
    uncommitted_bytes_max: int = 16 * MIB
    waiting_max: int = 10_000
    """Proposals, and as many reads, that wait for their answer."""
    promotion_lag_max: int = 1_000
    """Entries that a learner may lack and yet become a voter."""
    kept_entries: int = 1_000
    """Entries that stay behind a snapshot, so that a follower who was away for a while needs none."""
    snapshot_bytes_max: int = 1_024 * MIB
    entry_bytes: int = 64
    """What an entry counts for beside its payload."""

    def __post_init__(self) -> None:
        """Refuse times and limits that do not fit together."""
        assert 0 < self.heartbeat_ms * 2 < self.election_timeout_ms, "one heartbeat may be lost"
        assert self.heartbeat_ms * 2 < self.lost_leader_ms, (
            "a heartbeat over another connection is awaited"
        )
        assert self.append_bytes_max <= self.in_flight_bytes_max
        assert self.append_bytes_max <= self.sent_payload_bytes_max
        assert self.payload_bytes_max + self.entry_bytes <= self.uncommitted_bytes_max
        assert min(self.append_entries_max, self.in_flight_requests_max, self.waiting_max) > 0
        assert self.append_entries_max <= ENTRIES_MAX, "what is sent is read"
        assert self.kept_entries >= 0
