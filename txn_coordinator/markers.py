"""Marker fan-out of one decision: which partitions have not confirmed, and when to try again.

INV-TK1  COMPLETE is due exactly when every partition has confirmed or is gone (C33)
INV-TK2  confirmations of another decision, and repeated ones, change nothing
Not here: sending (`driver`), whether a marker is needed (the partition decides by T6).
"""

from collections.abc import Iterable
from typing import Final

from idempotency.decision import DecisionId
from idempotency.identity import TopicPartition

RETRY_FIRST_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
assert RETRY_FIRST_MS < RETRY_MAX_MS


def retry_delay_ms(attempt: int) -> int:
    """Return the pause before try number `attempt` + 1 (attempt counts from 1): doubling, capped."""
    assert attempt >= 1, attempt
    return min(RETRY_FIRST_MS << min(attempt - 1, 16), RETRY_MAX_MS)


class MarkerFanout:
    """Partitions of one decision that have not confirmed yet."""

    __slots__ = ("_waiting", "decision")

    def __init__(self, decision: DecisionId, partitions: Iterable[TopicPartition]) -> None:
        """Wait for all `partitions`."""
        self.decision = decision
        self._waiting = dict.fromkeys(partitions)

    def confirm(self, decision: DecisionId, tp: TopicPartition) -> bool:
        """Note a confirmation; return whether it was the last one missing."""
        if decision != self.decision or tp not in self._waiting:
            return False
        del self._waiting[tp]
        return not self._waiting

    @property
    def waiting(self) -> tuple[TopicPartition, ...]:
        """Partitions that have not confirmed, in the order they joined."""
        return tuple(self._waiting)
