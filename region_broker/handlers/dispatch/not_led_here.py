"""What a node of a region does with each API while another node leads the region's logs, or nobody does.

INV-HNL1 each API has a row: nothing is executed on a node that does not lead only because nobody thought of it
INV-HNL2 what is answered makes a client look for the leader and ask again; nothing has been done, so no answer is an end
One node leads all logs and coordinates everything, so "not here" is a matter of the API, never of what a request names. Where leaders
are spread, it is a matter of the API for nodes that lead nothing, and of the partition for the others (`led_apart`).
Why these errors: clients treat the same number differently, by API.
- 6 NOT_LEADER_OR_FOLLOWER of a partition: every client fetches its metadata and asks again, Produce of any version included (C28).
- 16 NOT_COORDINATOR: every client asks FindCoordinator anew. Not for InitProducerId without a transactional id: the Java client
  would look for the coordinator of nothing and fail for good (InitProducerIdHandler in TransactionManager.java); it asks again
  after 14 COORDINATOR_LOAD_IN_PROGRESS, as librdkafka and franz-go do.
- 41 NOT_CONTROLLER: the Java client's and franz-go's admin fetch their metadata and ask again for this one only; other retriable
  errors they hand to whoever asked (KafkaAdminClient.java `handleNotControllerError`).
- 15 COORDINATOR_NOT_AVAILABLE of a list: asked again. While another node leads, its lists are here empty, without an error: clients
  ask all nodes, and put together what they say.
Not here: building the answers (`registry.Api`), carrying requests to the leader (`region.peers.forwarder`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from kio.schema.errors import ErrorCode


class Elsewhere(Enum):
    """What becomes of a request on a node that does not lead."""

    HERE = auto()
    """It is served here: of this very node, or of what all nodes know."""
    REFUSED = auto()
    """It is answered with an error: the client is to ask the leader."""
    LISTED = auto()
    """It asks for a list of what this node leads or coordinates: nothing."""
    FORWARDED = auto()
    """It is carried to the leader."""


@dataclass(frozen=True, slots=True)
class Rule:
    """`error`: with what the request is answered where it is refused, listed while nobody leads, or cannot be carried."""

    what: Elsewhere
    error: ErrorCode = ErrorCode.none


_HERE: Final = Rule(Elsewhere.HERE)
_OF_A_PARTITION: Final = Rule(Elsewhere.REFUSED, ErrorCode.not_leader_or_follower)
_OF_A_COORDINATOR: Final = Rule(Elsewhere.REFUSED, ErrorCode.not_coordinator)
_LISTS: Final = Rule(Elsewhere.LISTED, ErrorCode.coordinator_not_available)
_CHANGES: Final = Rule(Elsewhere.FORWARDED, ErrorCode.not_controller)
_DRAWS_AN_ID: Final = Rule(Elsewhere.FORWARDED, ErrorCode.coordinator_load_in_progress)

RULES: Final[Mapping[int, Rule]] = {
    0: _OF_A_PARTITION,  # Produce
    1: _OF_A_PARTITION,  # Fetch; of a reader in this node's rack: `Api.at_followers`
    2: _OF_A_PARTITION,  # ListOffsets
    3: _HERE,  # Metadata
    8: _OF_A_COORDINATOR,  # OffsetCommit
    9: _OF_A_COORDINATOR,  # OffsetFetch
    10: _HERE,  # FindCoordinator
    11: _OF_A_COORDINATOR,  # JoinGroup
    12: _OF_A_COORDINATOR,  # Heartbeat
    13: _OF_A_COORDINATOR,  # LeaveGroup
    14: _OF_A_COORDINATOR,  # SyncGroup
    15: _OF_A_COORDINATOR,  # DescribeGroups
    16: _LISTS,  # ListGroups
    17: _HERE,  # SaslHandshake
    18: _HERE,  # ApiVersions
    19: _CHANGES,  # CreateTopics
    20: _CHANGES,  # DeleteTopics
    21: _OF_A_PARTITION,  # DeleteRecords
    22: _OF_A_COORDINATOR,  # InitProducerId; without a transactional id: `rule_of`
    23: _OF_A_PARTITION,  # OffsetForLeaderEpoch
    24: _OF_A_COORDINATOR,  # AddPartitionsToTxn
    25: _OF_A_COORDINATOR,  # AddOffsetsToTxn
    26: _OF_A_COORDINATOR,  # EndTxn
    27: _OF_A_PARTITION,  # WriteTxnMarkers
    28: _OF_A_COORDINATOR,  # TxnOffsetCommit
    29: _HERE,  # DescribeAcls: all nodes know them
    30: _CHANGES,  # CreateAcls
    31: _CHANGES,  # DeleteAcls
    32: _HERE,  # DescribeConfigs: a node's own, and what all nodes know
    33: _CHANGES,  # AlterConfigs; a node's own: `Api.is_own`
    34: _HERE,  # AlterReplicaLogDirs: of this very node
    35: _HERE,  # DescribeLogDirs: of this very node
    36: _HERE,  # SaslAuthenticate: of this very connection
    37: _CHANGES,  # CreatePartitions
    38: _CHANGES,  # CreateDelegationToken
    39: _CHANGES,  # RenewDelegationToken
    40: _CHANGES,  # ExpireDelegationToken
    41: _HERE,  # DescribeDelegationToken: all nodes know, and derive the secrets
    42: _OF_A_COORDINATOR,  # DeleteGroups
    43: _CHANGES,  # ElectLeaders
    44: _CHANGES,  # IncrementalAlterConfigs; a node's own: `Api.is_own`
    45: _CHANGES,  # AlterPartitionReassignments
    46: _HERE,  # ListPartitionReassignments: all nodes know that nothing moves
    47: _OF_A_COORDINATOR,  # OffsetDelete
    48: _HERE,  # DescribeClientQuotas
    49: _CHANGES,  # AlterClientQuotas
    50: _HERE,  # DescribeUserScramCredentials: all nodes know
    51: _CHANGES,  # AlterUserScramCredentials
    55: _HERE,  # DescribeQuorum: as this node sees it
    57: _CHANGES,  # UpdateFeatures
    60: _HERE,  # DescribeCluster
    61: _OF_A_PARTITION,  # DescribeProducers
    64: _CHANGES,  # UnregisterBroker
    65: _OF_A_COORDINATOR,  # DescribeTransactions
    66: _LISTS,  # ListTransactions
    68: _OF_A_COORDINATOR,  # ConsumerGroupHeartbeat
    69: _OF_A_COORDINATOR,  # ConsumerGroupDescribe
    71: _HERE,  # GetTelemetrySubscriptions
    72: _HERE,  # PushTelemetry
    74: _HERE,  # ListConfigResources
    75: _HERE,  # DescribeTopicPartitions
    80: _HERE,  # AddRaftVoter: the quorum's leader carries it out, whoever leads the logs
    81: _HERE,  # RemoveRaftVoter
}
OF_PARTITIONS: Final = frozenset(key for key, rule in RULES.items() if rule is _OF_A_PARTITION)
"""What the leader of a data group executes, by partition (INV-HLA1)."""
_INIT_PRODUCER_ID: Final = 22


def rule_of(api_key: int, request: Any) -> Rule:
    """Return what becomes of a request here while this node does not lead."""
    if api_key == _INIT_PRODUCER_ID and request.transactional_id is None:
        return _DRAWS_AN_ID
    return RULES[api_key]
