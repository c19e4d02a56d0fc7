"""Batches under a right CRC whose records nobody can read, met by who looks into them, and told to the operator.

A client has sent them so, and the readers of that topic see it too. Not here: what is answered in their place (`time_lookup`), damaged bytes
(`sound_reads`).
"""

import logging
from typing import Final

from idempotency.identity import TopicPartition
from idempotency.ports import Clock
from idempotency.said_seldom import SaidSeldom

_log: Final = logging.getLogger(__name__)


class UnreadableRecords:
    """One per node."""

    __slots__ = ("_left_out", "_said")

    def __init__(self, clock: Clock) -> None:
        """Nothing was met yet."""
        self._said = SaidSeldom(clock)
        self._left_out = 0

    def met(self, tp: TopicPartition, offset: int, reason: Exception) -> None:
        """Tell of a batch, seldom: whoever may write to a topic and ask for its times meets as many as it likes (INV-SSD1)."""
        if not self._said.is_due():
            self._left_out += 1
            return
        _log.warning(
            "%s: nobody can read the records of the batch at offset %d, which a client has sent so: %s. Said once a minute, and not of %d others"
            " since the last time",
            tp, offset, reason, self._left_out,
        )  # fmt: skip
        self._left_out = 0
