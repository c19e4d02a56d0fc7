"""The APIs of Apache Kafka 4.1 that a client can meet, and why Tidemark lacks what it lacks of them.

Source: `ApiKeys` of kafka-clients 4.1.1 (listener BROKER; stable versions only: `latestVersion(false)`).
Not here: what Tidemark serves (`region_broker.handlers.apis`), the tables made of both (`generated`).
"""

from collections.abc import Mapping
from typing import Final, NamedTuple


class KafkaApi(NamedTuple):
    """One API of Kafka and its stable versions."""

    name: str
    versions: range


_ROWS: Final = (
    (0, "Produce", 3, 13),
    (1, "Fetch", 4, 18),
    (2, "ListOffsets", 1, 10),
    (3, "Metadata", 0, 13),
    (8, "OffsetCommit", 2, 9),
    (9, "OffsetFetch", 1, 9),
    (10, "FindCoordinator", 0, 6),
    (11, "JoinGroup", 0, 9),
    (12, "Heartbeat", 0, 4),
    (13, "LeaveGroup", 0, 5),
    (14, "SyncGroup", 0, 5),
    (15, "DescribeGroups", 0, 6),
    (16, "ListGroups", 0, 5),
    (17, "SaslHandshake", 0, 1),
    (18, "ApiVersions", 0, 4),
    (19, "CreateTopics", 2, 7),
    (20, "DeleteTopics", 1, 6),
    (21, "DeleteRecords", 0, 2),
    (22, "InitProducerId", 0, 5),
    (23, "OffsetForLeaderEpoch", 2, 4),
    (24, "AddPartitionsToTxn", 0, 5),
    (25, "AddOffsetsToTxn", 0, 4),
    (26, "EndTxn", 0, 5),
    (27, "WriteTxnMarkers", 1, 1),
    (28, "TxnOffsetCommit", 0, 5),
    (29, "DescribeAcls", 1, 3),
    (30, "CreateAcls", 1, 3),
    (31, "DeleteAcls", 1, 3),
    (32, "DescribeConfigs", 1, 4),
    (33, "AlterConfigs", 0, 2),
    (34, "AlterReplicaLogDirs", 1, 2),
    (35, "DescribeLogDirs", 1, 4),
    (36, "SaslAuthenticate", 0, 2),
    (37, "CreatePartitions", 0, 3),
    (38, "CreateDelegationToken", 1, 3),
    (39, "RenewDelegationToken", 1, 2),
    (40, "ExpireDelegationToken", 1, 2),
    (41, "DescribeDelegationToken", 1, 3),
    (42, "DeleteGroups", 0, 2),
    (43, "ElectLeaders", 0, 2),
    (44, "IncrementalAlterConfigs", 0, 1),
    (45, "AlterPartitionReassignments", 0, 1),
    (46, "ListPartitionReassignments", 0, 0),
    (47, "OffsetDelete", 0, 0),
    (48, "DescribeClientQuotas", 0, 1),
    (49, "AlterClientQuotas", 0, 1),
    (50, "DescribeUserScramCredentials", 0, 0),
    (51, "AlterUserScramCredentials", 0, 0),
    (55, "DescribeQuorum", 0, 2),
    (57, "UpdateFeatures", 0, 2),
    (60, "DescribeCluster", 0, 2),
    (61, "DescribeProducers", 0, 0),
    (64, "UnregisterBroker", 0, 0),
    (65, "DescribeTransactions", 0, 0),
    (66, "ListTransactions", 0, 2),
    (68, "ConsumerGroupHeartbeat", 0, 1),
    (69, "ConsumerGroupDescribe", 0, 1),
    (71, "GetTelemetrySubscriptions", 0, 0),
    (72, "PushTelemetry", 0, 0),
    (74, "ListConfigResources", 0, 1),
    (75, "DescribeTopicPartitions", 0, 0),
    (76, "ShareGroupHeartbeat", 1, 1),
    (77, "ShareGroupDescribe", 1, 1),
    (78, "ShareFetch", 1, 1),
    (79, "ShareAcknowledge", 1, 1),
    (80, "AddRaftVoter", 0, 0),
    (81, "RemoveRaftVoter", 0, 0),
    (83, "InitializeShareGroupState", 0, 0),
    (84, "ReadShareGroupState", 0, 0),
    (85, "WriteShareGroupState", 0, 0),
    (86, "DeleteShareGroupState", 0, 0),
    (87, "ReadShareGroupStateSummary", 0, 0),
    (90, "DescribeShareGroupOffsets", 0, 0),
    (91, "AlterShareGroupOffsets", 0, 0),
    (92, "DeleteShareGroupOffsets", 0, 0),
)
KAFKA_APIS: Final[Mapping[int, KafkaApi]] = {
    key: KafkaApi(name, range(low, high + 1)) for key, name, low, high in _ROWS
}

_NO_SHARE: Final = "share groups (KIP-932) are not built"

# By key: why versions, or the whole API, are missing. Only read for what is really missing.
WHY_NOT: Final[Mapping[int, str]] = {
    76: _NO_SHARE, 77: _NO_SHARE, 78: _NO_SHARE, 79: _NO_SHARE, 83: _NO_SHARE, 84: _NO_SHARE,
    85: _NO_SHARE, 86: _NO_SHARE, 87: _NO_SHARE, 90: _NO_SHARE, 91: _NO_SHARE, 92: _NO_SHARE,
}  # fmt: skip
