"""What the coordinator says: verdict enums and outcomes, without any Kafka number.

Every request gets exactly one outcome, and its verdict is one of `TxnVerdict`.
Not here: Kafka error codes and their downgrade per version (region_broker.handlers).
"""

from enum import Enum, auto

import msgspec

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId


class TxnVerdict(Enum):
    """Outcome of one transaction request; the handlers map each to a Kafka error."""

    OK = auto()
    LOADING = auto()
    NOT_COORDINATOR = auto()
    UNAVAILABLE = auto()
    """The ledger failed; whether the request took effect is unknown until it is loaded again."""
    CONCURRENT = auto()
    """Something of this transactional id is under way and the hold limit has passed (C14)."""
    FENCED = auto()
    """Another producer epoch is current (PRODUCER_FENCED, INVALID_PRODUCER_EPOCH when old)."""
    STALE_CONNECTION = auto()
    """A newer connection has taken over this transactional id (TV1 connection-order fence)."""
    UNPROVEN_CONNECTION = auto()
    """Data on a connection that was there before an abort: a live client repeats it (INV-TO4)."""
    FENCED_BY_TAKEOVER = auto()
    """(producer id, epoch) was given out before a region takeover: repeat the transaction (T22)."""
    FENCED_BY_TAKEOVER_FATAL = auto()
    """EndTxn whose outcome the ledger cannot name under TV1; ask `verdict` by position (T22)."""
    UNKNOWN_PRODUCER_MAPPING = auto()
    """No such transactional id, or it has another producer id."""
    INVALID_STATE = auto()
    INVALID_TIMEOUT = auto()
    INVALID_REQUEST = auto()
    NOT_IN_TRANSACTION = auto()
    """Verification: the partition is not part of the producer's ongoing transaction (C27)."""
    WRONG_DOMAIN = auto()
    """The transaction names a partition or group of another domain (T28)."""


class InitOutcome(msgspec.Struct, frozen=True):
    """Answer to InitProducerId: the pair to use from now on; (-1, -1) unless OK."""

    verdict: TxnVerdict
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


class EndOutcome(msgspec.Struct, frozen=True):
    """Answer to EndTxn: under TV2 the pair for the next transaction (EndTxn v5), else (-1, -1)."""

    verdict: TxnVerdict
    producer_id: ProducerId = NO_PRODUCER_ID
    producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH


Outcome = TxnVerdict | InitOutcome | EndOutcome
