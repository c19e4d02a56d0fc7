"""Identity types: the numbers that must never be mixed up, each with its own name.

Inside Tidemark no bare `epoch` or `offset` crosses a module boundary: a value is a producer epoch, a
leader epoch, a coordinator epoch or a region epoch, and its type says which.

Not here: arithmetic on sequences (`sequence`), comparison of epochs (`fencing`).
"""

from typing import Final, NewType

import msgspec

TopicName = NewType("TopicName", str)
TransactionalId = NewType("TransactionalId", str)
GroupId = NewType("GroupId", str)
RegionName = NewType("RegionName", str)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
RegionEpoch = NewType("RegionEpoch", int)
CoordinatorEpoch = NewType("CoordinatorEpoch", int)
Offset = NewType("Offset", int)
Round = NewType("Round", int)

TRANSACTION_LEDGER: Final = TopicName("__transaction_state")
OFFSETS_LEDGER: Final = TopicName("__consumer_offsets")
TIDEMARK_LEDGER: Final = TopicName("__tidemarks")
INTERNAL_TOPICS: Final = (TRANSACTION_LEDGER, OFFSETS_LEDGER, TIDEMARK_LEDGER)
"""The ledgers. A topic is one of these or it is none: users may have topics whose names begin like theirs."""

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = -1


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """One partition of one topic, by name; prints as Kafka's folders do: ``orders-3``."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        """Return ``topic-partition``."""
        return f"{self.topic}-{self.partition}"
