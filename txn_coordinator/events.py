"""What can happen to one ledger shard's coordinator core.

Client requests carry a `request_id` chosen by the driver; each is answered exactly once
(`effects.Answer`). The same request objects wait in the core while something else is under way.
Not here: what the core does with them (`core`).
"""

import msgspec

from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicPartition,
)
from txn_coordinator.ports import LedgerPosition


class InitProducerIdReceived(msgspec.Struct, frozen=True):
    """InitProducerId of a transactional id; the pair is (-1, -1) or the one held so far (KIP-360)."""

    request_id: int
    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class AddPartitionsReceived(msgspec.Struct, frozen=True):
    """Partitions join the transaction; `tv` is the client's protocol generation (1 or 2)."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TopicPartition, ...]
    tv: int = 1


class EndTxnReceived(msgspec.Struct, frozen=True):
    """Commit or abort; `tv` is the client's protocol generation (C20)."""

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool
    tv: int = 1


class AbortReceived(msgspec.Struct, frozen=True):
    """An administrator ends the transaction of a transactional id, over its producer's head (KIP-664, B13).

    `partitions` have data of this pair and no marker, whether or not the ledger knows it.
    """

    request_id: int
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TopicPartition, ...] = ()


class SettledAsked(msgspec.Struct, frozen=True):
    """To be answered when nothing of the transactional id (or orphan) is under way: all markers written."""

    request_id: int
    transactional_id: str


Request = (
    InitProducerIdReceived | AddPartitionsReceived | EndTxnReceived | AbortReceived | SettledAsked
)


class RecordDurable(msgspec.Struct, frozen=True):
    """The appended transition of `transactional_id` is below the high watermark at `position`."""

    transactional_id: str
    position: LedgerPosition


class MarkerConfirmed(msgspec.Struct, frozen=True):
    """A partition needs no marker of `decision` any more."""

    transactional_id: str
    decision: DecisionId
    tp: TopicPartition


class HoldExpired(msgspec.Struct, frozen=True):
    """A held request has waited as long as the broker lets it."""

    request_id: int
    transactional_id: str


class TransactionTimedOut(msgspec.Struct, frozen=True):
    """The transaction has been open longer than its time-out (C24); from `view.timed_out`."""

    transactional_id: str


class TransactionalIdExpired(msgspec.Struct, frozen=True):
    """The transactional id has been idle past its retention (C25); from `view.expired`."""

    transactional_id: str


class AbortOrphan(msgspec.Struct, frozen=True):
    """Abort what `producer_id` has open in `partitions` though no ledger entry knows it (T21)."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TopicPartition, ...]


class AdoptOngoing(msgspec.Struct, frozen=True):
    """A new region aborts the entry's transaction; `found_open` are partitions that have its data."""

    transactional_id: str
    found_open: tuple[TopicPartition, ...] = ()


class EnterRound(msgspec.Struct, frozen=True):
    """ENTER{round} of the cut leader (T2)."""

    round: Round


class RoundAppended(msgspec.Struct, frozen=True):
    """ROUND{round} was appended at `offset` of the ledger shard."""

    round: Round
    offset: int


class ReleaseRound(msgspec.Struct, frozen=True):
    """RELEASE{round}: markers of stamps up to it may go (T3)."""

    round: Round


class TimersRestarted(msgspec.Struct, frozen=True):
    """The shard is loaded: every open transaction has its full time-out again (G7)."""


class MarkersDeferred(msgspec.Struct, frozen=True):
    """A takeover begins to decide, or has decided all: no markers of new decisions in between (T21)."""

    deferred: bool


class PairsInherited(msgspec.Struct, frozen=True):
    """The region that acted under `drained` was drained, and the cut holds every pair that it gave out (T22)."""

    drained: RegionEpoch


class MarkersResumed(msgspec.Struct, frozen=True):
    """After a load: the markers of every decided entry are to be sent again, with the old decision ids.

    Orphan aborts go in a second event: they may only reach a partition after the markers of older
    decisions of the same producer id, which T6 would otherwise make void.
    """

    orphans: bool
    only: tuple[str, ...] | None = None
    """Of these entries, in order; None: of all."""


class ProducerIdsGranted(msgspec.Struct, frozen=True):
    """Fresh producer ids for this shard, never given out before (C11)."""

    first: ProducerId
    count: int


TxnEvent = (
    Request
    | RecordDurable
    | MarkerConfirmed
    | HoldExpired
    | TransactionTimedOut
    | TransactionalIdExpired
    | AbortOrphan
    | AdoptOngoing
    | EnterRound
    | RoundAppended
    | ReleaseRound
    | TimersRestarted
    | MarkersDeferred
    | PairsInherited
    | MarkersResumed
    | ProducerIdsGranted
)
