"""Kafka 4.1's documented table "Operations and Resources on Protocols", row by row, and where Kafka 4.1 itself does something else.

From https://kafka.apache.org/41/security/authorization-and-acls/ . A line is an API's key, and what its rows say: operation and resource. Of what Kafka does
and its table does not say, or says otherwise, `DOES` has the reason: KafkaApis.scala, ControllerApis.scala and AclEntry.java of 4.1.
"""

from collections.abc import Mapping
from typing import Final

from region_broker.security.access import Operation as Op
from region_broker.security.access import ResourceType as R
from tests.unit.region_broker.handlers.kafka_acl_table import Needed

_ROWS: Final = """
0 Write TransactionalId, IdempotentWrite Cluster, Write Topic
1 ClusterAction Cluster, Read Topic
2 Describe Topic
3 Describe Topic, Create Cluster, Create Topic
4 ClusterAction Cluster
5 ClusterAction Cluster
6 ClusterAction Cluster
7 ClusterAction Cluster
8 Read Group, Read Topic
9 Describe Group, Describe Topic
10 Describe Group, Describe TransactionalId
11 Read Group
12 Read Group
13 Read Group
14 Read Group
15 Describe Group
16 Describe Cluster, Describe Group
17
18
19 Create Cluster, Create Topic
20 Delete Topic
21 Delete Topic
22 Write TransactionalId, IdempotentWrite Cluster
23 ClusterAction Cluster, Describe Topic
24 Write TransactionalId, Write Topic
25 Write TransactionalId, Read Group
26 Write TransactionalId
27 Alter Cluster, ClusterAction Cluster
28 Write TransactionalId, Read Group, Read Topic
29 Describe Cluster
30 Alter Cluster
31 Alter Cluster
32 DescribeConfigs Cluster, DescribeConfigs Topic
33 AlterConfigs Cluster, AlterConfigs Topic
34 Alter Cluster
35 Describe Cluster
36
37 Alter Topic
38 CreateTokens User
39
40
41 Describe DelegationToken, DescribeTokens User
42 Delete Group
43 ClusterAction Cluster
44 AlterConfigs Cluster, AlterConfigs Topic
45 Alter Cluster
46 Describe Cluster
47 Delete Group, Read Topic
48 DescribeConfigs Cluster
49 AlterConfigs Cluster
50 Describe Cluster
51 Alter Cluster
52 ClusterAction Cluster
53 ClusterAction Cluster
54 ClusterAction Cluster
55 Describe Cluster
56 ClusterAction Cluster
57 Alter Cluster
58 ClusterAction Cluster
59 ClusterAction Cluster
60 Describe Cluster
61 Read Topic
62 ClusterAction Cluster
63 ClusterAction Cluster
64 Alter Cluster
65 Describe TransactionalId
66 Describe TransactionalId
67 ClusterAction Cluster
68 Read Group
69 Read Group
70 ClusterAction Cluster
71
72
73 ClusterAction Cluster
74 DescribeConfigs Cluster
75 Describe Topic
76 Read Group
77 Describe Group
78 Read Group, Read Topic
79 Read Group, Read Topic
83 ClusterAction Cluster
84 ClusterAction Cluster
85 ClusterAction Cluster
86 ClusterAction Cluster
87 ClusterAction Cluster
88 Read Group, Describe Topic, Create Topic
89 Describe Group, Describe Topic
90 Describe Group, Describe Topic
91 Read Group, Read Topic
92 Delete Group, Read Topic
"""
_OPERATIONS: Final = {each.name.replace("_", "").lower(): each for each in Op}
_RESOURCES: Final = {each.name.replace("_", "").lower(): each for each in R}


def _needed(words: str) -> Needed:
    operation, resource = words.split()
    return Needed(_OPERATIONS[operation.lower()], _RESOURCES[resource.lower()])


def _documented() -> dict[int, frozenset[Needed]]:
    rows = (line.partition(" ") for line in _ROWS.strip().splitlines())
    return {
        int(key): frozenset(_needed(each) for each in needs.split(",") if each.strip())
        for key, _, needs in rows
    }


DOCUMENTED: Final[Mapping[int, frozenset[Needed]]] = _documented()
DOES: Final[Mapping[int, tuple[str, frozenset[Needed], frozenset[Needed]]]] = {
    0: ("since KIP-679 who may write to the topic needs no more", frozenset({Needed(Op.IDEMPOTENT_WRITE, R.CLUSTER)}), frozenset()),
    1: ("followers fetch over the peer port here, which no client reaches", frozenset({Needed(Op.CLUSTER_ACTION, R.CLUSTER)}), frozenset()),
    20: ("ControllerApis asks for the cluster first, as for CreateTopics", frozenset(), frozenset({Needed(Op.DELETE, R.CLUSTER)})),
    22: ("KIP-679: any topic that may be written to gives a producer id", frozenset(), frozenset({Needed(Op.WRITE, R.TOPIC)})),
    24: ("KIP-890: v4 and newer are asked by brokers", frozenset(), frozenset({Needed(Op.CLUSTER_ACTION, R.CLUSTER)})),
    32: ("KIP-848: groups have configs", frozenset(), frozenset({Needed(Op.DESCRIBE_CONFIGS, R.GROUP)})),
    43: ("ControllerApis handleElectLeaders asks for Alter", frozenset({Needed(Op.CLUSTER_ACTION, R.CLUSTER)}), frozenset({Needed(Op.ALTER, R.CLUSTER)})),
    44: ("KIP-848: groups have configs", frozenset(), frozenset({Needed(Op.ALTER_CONFIGS, R.GROUP)})),
    65: ("topics that may not be described are left out", frozenset(), frozenset({Needed(Op.DESCRIBE, R.TOPIC)})),
    68: ("topics that may not be described are refused", frozenset(), frozenset({Needed(Op.DESCRIBE, R.TOPIC)})),
    69: ("KafkaApis asks for Describe, and for that of the topics of members", frozenset({Needed(Op.READ, R.GROUP)}),
        frozenset({Needed(Op.DESCRIBE, R.GROUP), Needed(Op.DESCRIBE, R.TOPIC)})),
    80: ("KIP-853 came without rows", frozenset(), frozenset({Needed(Op.ALTER, R.CLUSTER)})),
    81: ("KIP-853 came without rows", frozenset(), frozenset({Needed(Op.ALTER, R.CLUSTER)})),
}  # fmt: skip
"""By API: why Kafka 4.1 does otherwise, what of its rows it does not ask for, and what it asks for beyond them."""
NOT_SERVED: Final = frozenset(
    {4, 5, 6, 7, 52, 53, 54, 56, 58, 59, 62, 63, 67, 70, 73, *range(76, 80), *range(83, 93)}
)
"""What is between Kafka's nodes, and groups of shares and of streams: no API of this port."""
SUPPORTED: Final[Mapping[R, frozenset[Op]]] = {
    R.TOPIC: frozenset({Op.READ, Op.WRITE, Op.CREATE, Op.DELETE, Op.ALTER, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS}),
    R.GROUP: frozenset({Op.READ, Op.DELETE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS}),
    R.CLUSTER: frozenset({Op.CREATE, Op.ALTER, Op.DESCRIBE, Op.CLUSTER_ACTION, Op.DESCRIBE_CONFIGS, Op.ALTER_CONFIGS, Op.IDEMPOTENT_WRITE}),
}  # fmt: skip
"""What `AclEntry.supportedOperations` of Kafka 4.1.1 answers for what answers tell the operations of (KIP-430)."""
