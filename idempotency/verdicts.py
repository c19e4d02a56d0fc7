"""What a partition's state says about a batch or a marker, in words; no Kafka numbers here.

Not here: how a verdict is answered on the wire (`region_broker.handlers`).
"""

from enum import Enum, auto
from typing import NamedTuple


class Verdict(Enum):
    """The judgement of one batch or marker."""

    FRESH = auto()
    """Append it."""
    DUPLICATE = auto()
    """Already in the log: answer success with the original offset and timestamp (C2)."""
    OUT_OF_ORDER_SEQUENCE = auto()
    """Not the next sequence, and not one of the last five batches (C3, C4, C5)."""
    STALE_PRODUCER_EPOCH = auto()
    """A newer epoch of this producer id is known here (C6, C31)."""
    INVALID_TXN_STATE = auto()
    """Would mix into a transaction that is open on this partition (C10, B9)."""
    INVALID_RECORD = auto()
    """A shape no client may send: a control batch, a producer id without a sequence."""
    COORDINATOR_FENCED = auto()
    """A newer coordinator wrote a marker for this producer (C30)."""
    MARKER_ALREADY_APPLIED = auto()
    """The decision, or a later one, is in the log: acknowledge without appending (T6, P9)."""


class Judgement(NamedTuple):
    """A verdict; `base_offset` and `timestamp_ms` are the original's for a DUPLICATE, else -1."""

    verdict: Verdict
    base_offset: int = -1
    timestamp_ms: int = -1
    detail: str = ""


FRESH: Judgement = Judgement(Verdict.FRESH)
