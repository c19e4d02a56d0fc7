"""Identity types: the numbers that must never be mixed up, each with its own name.

There are four kinds of epoch here, and a batch carries an id, two epochs, a sequence number and an offset side by side.
So a producer id, a producer, leader, coordinator or region epoch, a sequence number and a round have types of their own
wherever a parameter, a field or a result is called by such a name, in every package and to the last private function; mypy
and a tidy test hold it. What comes from outside (the wire, a file, JSON) gets its type where it is decoded.

Offsets are plain integers, and say by their names what they point at (`base_offset`, `cut_offset`): they are counted
with everywhere. A sequence number is the only other number that is taken for one, and that has its type.

Not here: arithmetic on sequences (`sequence`), comparison of epochs (`fencing`).
"""

import re
from typing import Final, NamedTuple, NewType, TypeAlias
from uuid import UUID

import msgspec

TopicName = NewType("TopicName", str)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
LeaderEpoch = NewType("LeaderEpoch", int)
RegionEpoch = NewType("RegionEpoch", int)
CoordinatorEpoch = NewType("CoordinatorEpoch", int)
SequenceNumber = NewType("SequenceNumber", int)
Round = NewType("Round", int)

ProducerPair: TypeAlias = tuple[ProducerId, ProducerEpoch]
"""What names one life of a producer."""

TRANSACTION_LEDGER: Final = TopicName("__transaction_state")
OFFSETS_LEDGER: Final = TopicName("__consumer_offsets")
TIDEMARK_LEDGER: Final = TopicName("__tidemarks")
INTERNAL_TOPICS: Final = (TRANSACTION_LEDGER, OFFSETS_LEDGER, TIDEMARK_LEDGER)
"""The ledgers. A topic is one of these or it is none: users may have topics whose names begin like theirs."""

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = SequenceNumber(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_COORDINATOR_EPOCH: Final = CoordinatorEpoch(-1)


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """One partition of one topic, by name; prints as Kafka's folders do: ``orders-3``."""

    topic: TopicName
    partition: int

    def __str__(self) -> str:
        """Return ``topic-partition``."""
        return f"{self.topic}-{self.partition}"


_ENCODED_LOG_KEY: Final = re.compile("[0-9a-f]{32}/[0-9]{1,10}")


class LogKey(NamedTuple):
    """One partition log, on any node of any region: topic id and partition number."""

    topic_id: UUID
    partition: int

    def encode(self) -> str:
        """Return ``topic_id-hex/partition``: the key used in lineage entries and on disk."""
        return f"{self.topic_id.hex}/{self.partition}"

    @staticmethod
    def is_encoded(text: str) -> bool:
        """Return whether `encode` can have written it: quicker than `decode`."""
        return _ENCODED_LOG_KEY.fullmatch(text) is not None

    @classmethod
    def decode(cls, text: str) -> "LogKey":
        """Parse what `encode` wrote; raises ValueError on anything else."""
        topic_id_hex, _, partition = text.partition("/")
        return cls(UUID(hex=topic_id_hex), int(partition))


class Member(msgspec.Struct, frozen=True, order=True):
    """One folder of one node: `incarnation` is drawn when the folder is made, so an emptied one is another member (KIP-853)."""

    node_id: int
    incarnation: UUID

    def __str__(self) -> str:
        """Return ``node/first digits of the incarnation``."""
        return f"{self.node_id}/{self.incarnation.hex[:8]}"
