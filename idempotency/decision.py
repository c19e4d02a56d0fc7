"""Decision ids and rounds: what a marker says about the decision that it carries out.

INV-D1  A decision id names the PREPARE record of one decision: ledger shard, leader epoch of the
        record's batch, its offset; `stamp` is the round the decision was taken in (T2).
INV-D2  Of two decisions of one producer id, the newer one has the greater (leader_epoch, offset) (T6).
        The offset alone would not do: offsets above a cut are used again after a takeover. The
        coordinator epoch would not do: it grows at a reload, while the decision stays the same.
INV-D3  round = term << 32 | n, so rounds of a later term are greater (T1).

Not here: who takes decisions (txn_coordinator), who closes rounds (geo_replicator.cut_rounds).
"""

import struct
from typing import Final, Self

import msgspec

from idempotency.identity import LeaderEpoch, Round

_LAYOUT: Final = struct.Struct(">biiqq")
_LAYOUT_VERSION: Final = 0
_ROUND_NUMBER_BITS: Final = 32
ROUND_NUMBER_MAX: Final = (1 << _ROUND_NUMBER_BITS) - 1

DECISION_BYTES: Final = _LAYOUT.size
DECISION_HEADER: Final = b"tidemark.decision"
NO_ROUND: Final = Round(0)


class DecisionError(ValueError):
    """The bytes of a decision id cannot be read; the message says why."""


class DecisionId(msgspec.Struct, frozen=True):
    """Names one commit or abort decision by the ledger position of its PREPARE record."""

    shard: int
    leader_epoch: LeaderEpoch
    offset: int
    stamp: Round

    def is_newer_than(self, other: "DecisionId | None") -> bool:
        """Return whether this decision was taken after `other` of the same producer id (T6)."""
        if other is None:
            return True
        return (self.leader_epoch, self.offset) > (other.leader_epoch, other.offset)

    def encode(self) -> bytes:
        """Return the 25 bytes that travel in a marker's `tidemark.decision` header."""
        return _LAYOUT.pack(_LAYOUT_VERSION, self.shard, self.leader_epoch, self.offset, self.stamp)

    @classmethod
    def decode(cls, data: bytes | bytearray | memoryview) -> Self:
        """Return the decision id in `data`.

        Raises:
            DecisionError: wrong length, or a layout version this build does not know.
        """
        if len(data) != DECISION_BYTES:
            raise DecisionError(f"a decision id has {DECISION_BYTES} bytes, got {len(data)}")
        version, shard, leader_epoch, offset, stamp = _LAYOUT.unpack(data)
        if version != _LAYOUT_VERSION:
            raise DecisionError(
                f"decision id layout {version} is unknown to this build (knows {_LAYOUT_VERSION}): "
                "it was written by a newer version, upgrade this node"
            )
        return cls(shard, leader_epoch, offset, stamp)


def round_of(term: int, number: int) -> Round:
    """Return round `number` (from 1) of the cut leader's `term` (T1).

    Raises:
        OverflowError: the term has used up its 2**32 - 1 rounds; a new term is needed.
    """
    if not 0 <= number <= ROUND_NUMBER_MAX:
        raise OverflowError(f"round number {number} does not fit: let the cut leader start a term")
    return Round(term << _ROUND_NUMBER_BITS | number)


def round_number(stamp: Round) -> int:
    """Return the number of a round within its term."""
    return stamp & ROUND_NUMBER_MAX
