"""What waits to be sent to one member: bounded, and heartbeats do not wait behind snapshots. Pure.

INV-CLQ1  what waits is bounded in bytes and in number: where something finds no room, the oldest heartbeats go first, then
          the oldest of anything; who sends never waits
INV-CLQ2  messages leave in the order in which they were sent; only pieces of snapshots let the others pass, `PASSED_MAX` of
          them at most for one piece. A heartbeat that passed entries would be refused for what it follows

Raft takes lost and late messages (thesis 3.2); a heartbeat that is newer says more than the one that was dropped.
Not here: when it is sent (`member_line`), bytes (`raft_messages`).
"""

from collections import deque
from typing import Final, NamedTuple

from region_broker.controller.raft.effects import (
    AppendRequest,
    Message,
    SnapshotRequest,
    message_bytes,
)
from region_broker.limits import MIB

QUEUE_BYTES_MAX: Final = 16 * MIB
QUEUE_COUNT_MAX: Final = 1_024
PASSED_MAX: Final = 16


class Waiting(NamedTuple):
    """A message of a group that waits."""

    group: str
    message: Message
    size_bytes: int
    is_heartbeat: bool
    """It says nothing that the next one does not say, too."""


class SendQueue:
    """Messages to one member."""

    def __init__(self, bytes_max: int = QUEUE_BYTES_MAX, count_max: int = QUEUE_COUNT_MAX) -> None:
        """Begin empty."""
        self._bytes_max, self._count_max = bytes_max, count_max
        self._plain: deque[Waiting] = deque()
        self._pieces: deque[Waiting] = deque()
        self._passed = 0
        self._bytes = 0
        self._heartbeats = 0

    def __len__(self) -> int:
        """Return how many messages wait."""
        return len(self._plain) + len(self._pieces)

    def put(self, group: str, message: Message) -> int:
        """Let a message wait; return how many were dropped for it (INV-CLQ1)."""
        is_heartbeat = isinstance(message, AppendRequest) and not message.entries
        waiting = Waiting(group, message, message_bytes(message), is_heartbeat)
        dropped = 0
        while len(self) and not self._has_room(waiting.size_bytes):
            self._drop_oldest()
            dropped += 1
        lane = self._pieces if isinstance(message, SnapshotRequest) else self._plain
        lane.append(waiting)
        self._count(waiting, 1)
        return dropped

    def _has_room(self, size_bytes: int) -> bool:
        return len(self) < self._count_max and self._bytes + size_bytes <= self._bytes_max

    def _count(self, waiting: Waiting, sign: int) -> None:
        self._bytes += sign * waiting.size_bytes
        self._heartbeats += sign * waiting.is_heartbeat

    def _drop_oldest(self) -> None:
        if self._heartbeats:
            place = next(at for at, each in enumerate(self._plain) if each.is_heartbeat)
            waiting = self._plain[place]
            del self._plain[place]
        else:
            waiting = (self._plain or self._pieces).popleft()
        self._count(waiting, -1)

    def take(self) -> Waiting | None:
        """Take out what is to be sent next; None if nothing waits (INV-CLQ2)."""
        if not self._pieces:
            self._passed = 0
        may_pass = self._passed < PASSED_MAX or not self._pieces
        if self._plain and may_pass:
            waiting = self._plain.popleft()
            self._passed += bool(self._pieces)
        elif self._pieces:
            waiting = self._pieces.popleft()
            self._passed = 0
        else:
            return None
        self._count(waiting, -1)
        return waiting

    def clear(self) -> None:
        """Lose all that waits."""
        self._plain.clear()
        self._pieces.clear()
        self._passed = self._bytes = self._heartbeats = 0
