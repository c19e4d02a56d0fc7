"""Kafka 4.1's table "Operations and resources on protocols", as data: what each API needs, with a request that needs it.

Written from Kafka's documentation and, where that says less than it does, from KafkaApis.scala and ControllerApis.scala; not from our code.
A need is a set of alternatives, in the order in which Kafka asks; the error is that of the last one. Requests name what is not there
wherever they would change it: who may is answered with another error, who may not is told the same as of any other name.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.security.access import Operation as Op
from region_broker.security.access import ResourceType as R

T, G, C, X = R.TOPIC, R.GROUP, R.CLUSTER, R.TRANSACTIONAL_ID
D, U = R.DELEGATION_TOKEN, R.USER
ERROR: Final = {T: 29, G: 30, C: 31, X: 53, D: 65, U: 65}


class Needed(NamedTuple):
    operation: Op
    kind: R


@dataclass(frozen=True)
class Case:
    """One way to ask an API. `hides`: what of the answer only who has the needs may see, as text, or as what finds it; without an error."""

    what: str
    version: int
    values: dict[str, Any]
    needs: Sequence[Sequence[Needed]] = ()
    hides: str | Callable[[Any], bool] = ""
    untold: frozenset[int] = frozenset()
    """Errors that no listener of refusals hears of: nobody named what is refused."""

    def is_shown(self, answer: Any) -> bool:
        """Return whether an answer has what only who has the needs may see."""
        return self.hides in str(answer) if isinstance(self.hides, str) else self.hides(answer)


def n(operation: Op, *kinds: R) -> list[Needed]:
    return [Needed(operation, kind) for kind in kinds]


def batch(*, transactional: bool = False, producer: int = -1) -> bytes:
    origin = None
    if producer >= 0:
        origin = Origin(ProducerId(producer), ProducerEpoch(0), base_sequence=SequenceNumber(0), transactional=transactional)  # fmt: skip
    records = [Record(key=None, value=b"v")]
    return bytes(build_batch(records, origin=origin) if origin else build_batch(records))


def produce(
    records: bytes, transactional_id: str | None = None, topic: str = "orders"
) -> dict[str, Any]:
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 1000, "topic_data": [
        {"name": topic, "partition_data": [{"index": 0, "records": records}]}]}  # fmt: skip


MEMBER: Final = {"group_id": "g", "member_id": "m", "generation_id": 1, "generation_id_or_member_epoch": 1,
                 "group_instance_id": None, "protocol_type": None, "protocol_name": None}  # fmt: skip
PRODUCER: Final = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
COMMITTED: Final = [{"name": "orders", "partitions": [
    {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}]}]  # fmt: skip
NO_OPERATIONS: Final = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}  # fmt: skip
CONFIGS: Final = [{"name": "retention.ms", "value": "1000", "config_operation": 0}]
READ_T, WRITE_T, DESCRIBE_T = n(Op.READ, T), n(Op.WRITE, T), n(Op.DESCRIBE, T)
READ_G, DESCRIBE_G, WRITE_X = n(Op.READ, G), n(Op.DESCRIBE, G), n(Op.WRITE, X)
ALTER_C, DESCRIBE_C = n(Op.ALTER, C), n(Op.DESCRIBE, C)
ACL: Final = {"resource_type": 2, "resource_name": "", "resource_pattern_type": 3, "principal": "User:a", "host": "*",
              "operation": 3, "permission_type": 3}  # fmt: skip
ACL_FILTER: Final = {"resource_type_filter": 2, "resource_name_filter": "nothing", "pattern_type_filter": 3,
                     "principal_filter": None, "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
NOBODY: Final = UUID(int=99)
SEEN: Final = "seen"
"""A transactional id that has `orders` in its transaction."""
READ_BY: Final = "modern"
"""A group with a member that reads `orders`."""
OWNER: Final = "carol"
"""Who has a delegation token that nobody else may renew."""
NO_USER: Final = {"principal_type": "Group", "principal_name": "g"}
"""A renewer that no token can have."""


def token_for(owner: str | None, *renewers: dict[str, str]) -> dict[str, Any]:
    kind = None if owner is None else "User"
    return {"owner_principal_type": kind, "owner_principal_name": owner, "renewers": renewers, "max_lifetime": -1}  # fmt: skip


def tells_operations(answer: Any) -> bool:
    """Return whether an answer says what may be done with the cluster (KIP-430)."""
    return bool(answer.cluster_authorized_operations > 0)


def altered(kind: int, name: str) -> dict[str, Any]:
    return {"validate_only": True, "resources": [{"resource_type": kind, "resource_name": name, "configs": CONFIGS}]}  # fmt: skip


def described(kind: int, name: str) -> dict[str, Any]:
    return {"include_synonyms": False, "include_documentation": False, "resources": [
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}]}  # fmt: skip


def kafka_table(orders: UUID, secret: bytes = b"none") -> dict[int, list[Case]]:
    """Return the cases of each API; `orders`: the id of the topic of that name; `secret`: of the token of `OWNER`."""
    fetched = [{"topic": "orders", "topic_id": orders, "partitions": [{"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0,
        "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 100}]}]  # fmt: skip
    return {
        0: [
            Case("plain", 12, produce(batch()), [WRITE_T]),
            Case("idempotent", 12, produce(batch(producer=7)), [WRITE_T]),
            Case("transactional", 11, produce(batch(producer=7, transactional=True), "x"), [WRITE_X, WRITE_T]),
            Case("by id", 13, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": [
                {"topic_id": orders, "partition_data": [{"index": 0, "records": batch()}]}]}, [WRITE_T]),
        ],
        1: [Case("by id", 17, {"replica_id": -1, "max_wait": 0, "min_bytes": 1, "max_bytes": 100, "isolation_level": 0, "session_id": 0, "session_epoch": -1,
            "topics": fetched, "forgotten_topics_data": [], "rack_id": ""}, [READ_T])],
        2: [Case("latest", 10, {"replica_id": -1, "isolation_level": 0, "timeout": 0, "topics": [{"name": "orders", "partitions": [
            {"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]}]}, [DESCRIBE_T])],
        3: [
            Case("named", 12, {"topics": [{"name": "orders", "topic_id": None}], "allow_auto_topic_creation": False, **NO_OPERATIONS}, [DESCRIBE_T]),
            Case("by id", 12, {"topics": [{"name": None, "topic_id": orders}], "allow_auto_topic_creation": False, **NO_OPERATIONS}, [DESCRIBE_T]),
            Case("created", 12, {"topics": [{"name": "col.lides", "topic_id": None}], "allow_auto_topic_creation": True, **NO_OPERATIONS},
                [DESCRIBE_T, n(Op.CREATE, C, T)]),
            Case("all", 12, {"topics": None, "allow_auto_topic_creation": False, **NO_OPERATIONS}, [DESCRIBE_T], hides="orders"),
        ],
        8: [Case("commit", 9, {**MEMBER, "topics": COMMITTED}, [READ_G, READ_T])],
        9: [
            Case("named", 9, {"require_stable": False, "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [
                {"name": "orders", "partition_indexes": (0,)}]}]}, [DESCRIBE_G, DESCRIBE_T]),
            Case("by id", 10, {"require_stable": False, "groups": [{"group_id": "g", "member_id": None, "member_epoch": -1, "topics": [
                {"topic_id": orders, "partition_indexes": (0,)}]}]}, [DESCRIBE_G, DESCRIBE_T]),
            Case("one group", 7, {"require_stable": False, "group_id": "g", "topics": [{"name": "orders", "partition_indexes": (0,)}]},
                [DESCRIBE_G, DESCRIBE_T]),
        ],
        10: [
            Case("of a group", 6, {"key_type": 0, "coordinator_keys": ("g",)}, [DESCRIBE_G]),
            Case("of an id", 6, {"key_type": 1, "coordinator_keys": ("x",)}, [n(Op.DESCRIBE, X)]),
            Case("before v4", 3, {"key_type": 1, "key": "x"}, [n(Op.DESCRIBE, X)]),
        ],
        11: [Case("join", 9, {**MEMBER, "member_id": "", "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
            "protocols": [{"name": "r", "metadata": b""}], "reason": None}, [READ_G])],
        12: [Case("heartbeat", 4, MEMBER, [READ_G])],
        13: [Case("leave", 5, {**MEMBER, "members": [{"member_id": "m", "group_instance_id": None, "reason": None}]}, [READ_G])],
        14: [Case("sync", 5, {**MEMBER, "assignments": []}, [READ_G])],
        15: [Case("describe", 6, {"groups": ("g",), "include_authorized_operations": False}, [DESCRIBE_G])],
        16: [Case("list", 5, {"states_filter": (), "types_filter": ()}, [[*DESCRIBE_C, *DESCRIBE_G]], hides="'simple'")],
        17: [Case("handshake", 1, {"mechanism": "PLAIN"})],
        18: [Case("versions", 4, {"client_software_name": "c", "client_software_version": "1"})],
        19: [Case("create", 7, {"timeout": 1, "validate_only": True, "topics": [{"name": "new", "num_partitions": 1, "replication_factor": 9,
            "assignments": (), "configs": ()}]}, [n(Op.CREATE, C, T)])],
        20: [
            Case("named", 6, {"timeout": 1, "topics": [{"name": "gone", "topic_id": None}]}, [n(Op.DELETE, C, T)]),
            Case("before v6", 5, {"timeout": 1, "topic_names": ("gone",)}, [n(Op.DELETE, C, T)]),
        ],
        21: [Case("delete", 2, {"timeout": 1, "topics": [{"name": "orders", "partitions": [{"partition_index": 99, "offset": 0}]}]}, [n(Op.DELETE, T)])],
        22: [
            Case("of an id", 5, {**PRODUCER, "transaction_timeout": 1000}, [WRITE_X]),
            Case("plain", 5, {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
                [[Needed(Op.WRITE, T), Needed(Op.IDEMPOTENT_WRITE, C)]]),
        ],
        23: [Case("epoch", 4, {"replica_id": -1, "topics": [{"topic": "orders", "partitions": [
            {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}]}]}, [[Needed(Op.CLUSTER_ACTION, C), *DESCRIBE_T]])],
        24: [
            Case("of a client", 3, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": "orders", "partitions": (0,)}]}, [WRITE_X, WRITE_T]),
            Case("without a task", 2, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
                "v3_and_below_topics": [{"name": "orders", "partitions": (0,)}]}, [WRITE_X, WRITE_T]),
            Case("of a broker", 5, {"transactions": [{**PRODUCER, "verify_only": True, "topics": [{"name": "orders", "partitions": (0,)}]}]},
                [n(Op.CLUSTER_ACTION, C)]),
        ],
        25: [Case("add", 4, {**PRODUCER, "group_id": "g"}, [WRITE_X, READ_G])],
        26: [Case("end", 4, {**PRODUCER, "committed": True}, [WRITE_X])],
        27: [Case("abort", 1, {"markers": [{"producer_id": 7, "producer_epoch": 0, "transaction_result": False, "coordinator_epoch": 0,
            "topics": [{"name": "orders", "partition_indexes": (0,)}]}]}, [[*ALTER_C, Needed(Op.CLUSTER_ACTION, C)]])],
        28: [Case("commit", 4, {**PRODUCER, **MEMBER, "topics": COMMITTED}, [WRITE_X, READ_G, READ_T])],
        29: [Case("describe", 3, ACL_FILTER, [DESCRIBE_C])],
        30: [Case("create", 3, {"creations": [ACL]}, [ALTER_C])],
        31: [Case("delete", 3, {"filters": [ACL_FILTER]}, [ALTER_C])],
        32: [
            Case("of a topic", 4, described(2, "orders"), [n(Op.DESCRIBE_CONFIGS, T)]),
            Case("of a node", 4, described(4, "1"), [n(Op.DESCRIBE_CONFIGS, C)]),
            Case("of a logger", 4, described(8, "1"), [n(Op.DESCRIBE_CONFIGS, C)]),
            Case("of a group", 4, described(32, "g"), [n(Op.DESCRIBE_CONFIGS, G)]),
            Case("of metrics", 4, described(16, "m"), [n(Op.DESCRIBE_CONFIGS, C)]),
        ],
        33: [
            Case("of a topic", 2, altered(2, "orders"), [n(Op.ALTER_CONFIGS, T)]),
            Case("of a node", 2, altered(4, "1"), [n(Op.ALTER_CONFIGS, C)]),
        ],
        34: [Case("move", 2, {"dirs": [{"path": "/x", "topics": [{"name": "orders", "partitions": (0,)}]}]}, [ALTER_C])],
        35: [
            Case("describe", 4, {"topics": None}, [DESCRIBE_C]),
            Case("before v3", 2, {"topics": None}, [DESCRIBE_C], hides="orders"),
        ],
        36: [Case("authenticate", 2, {"auth_bytes": b""})],
        37: [Case("grow", 3, {"timeout": 1, "validate_only": True, "topics": [{"name": "orders", "count": 1, "assignments": None}]}, [n(Op.ALTER, T)])],
        38: [
            Case("one's own", 3, token_for(None, NO_USER)),
            Case("of another", 3, token_for("dave", NO_USER), [n(Op.CREATE_TOKENS, U)]),
        ],
        39: [Case("another's", 2, {"hmac": secret, "renew_period": 1})],
        40: [Case("another's", 2, {"hmac": secret, "expiry_time_period": 1})],
        41: [
            Case("all", 3, {"owners": None}, [[*n(Op.DESCRIBE, D), *n(Op.DESCRIBE_TOKENS, U)]], hides=repr(OWNER)),
            Case("another's", 2, {"owners": [{"principal_type": "User", "principal_name": OWNER}]},
                [[*n(Op.DESCRIBE, D), *n(Op.DESCRIBE_TOKENS, U)]], hides=repr(OWNER)),
        ],
        42: [Case("delete", 2, {"groups_names": ("gone",)}, [n(Op.DELETE, G)])],
        43: [
            Case("elect", 2, {"timeout": 1, "election_type": 0, "topic_partitions": [{"topic": "orders", "partitions": (0,)}]}, [ALTER_C]),
            Case("before v1", 0, {"timeout": 1, "topic_partitions": [{"topic": "orders", "partitions": (0,)}]}, [ALTER_C]),
        ],
        44: [
            Case("of a topic", 1, altered(2, "orders"), [n(Op.ALTER_CONFIGS, T)]),
            Case("of a node", 1, altered(4, "1"), [n(Op.ALTER_CONFIGS, C)]),
            Case("of a group", 1, altered(32, "g"), [n(Op.ALTER_CONFIGS, G)]),
        ],
        45: [Case("move", 0, {"timeout": 1, "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "replicas": (1,)}]}]}, [ALTER_C])],
        46: [Case("list", 0, {"timeout": 1, "topics": None}, [DESCRIBE_C])],
        47: [Case("delete", 0, {"group_id": "simple", "topics": [{"name": "orders", "partitions": [{"partition_index": 99}]}]},
            [n(Op.DELETE, G), READ_T])],
        48: [Case("describe", 1, {"components": [], "strict": False}, [n(Op.DESCRIBE_CONFIGS, C)])],
        49: [Case("alter", 1, {"validate_only": True, "entries": [{"entity": [{"entity_type": "user", "entity_name": "a"}], "ops": []}]},
            [n(Op.ALTER_CONFIGS, C)])],
        50: [Case("describe", 0, {"users": None}, [DESCRIBE_C])],
        51: [Case("alter", 0, {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}, [ALTER_C])],
        55: [Case("describe", 0, {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}, [DESCRIBE_C])],
        57: [Case("update", 1, {"timeout": 1, "validate_only": True, "feature_updates": [
            {"feature": "metadata.version", "max_version_level": 1, "upgrade_type": 1, "allow_downgrade": False}]}, [ALTER_C])],
        60: [
            Case("describe", 1, {"include_cluster_authorized_operations": False, "endpoint_type": 1}),
            Case("operations", 1, {"include_cluster_authorized_operations": True, "endpoint_type": 1}, [DESCRIBE_C], hides=tells_operations),
        ],
        61: [Case("describe", 0, {"topics": [{"name": "orders", "partition_indexes": (0,)}]}, [READ_T])],
        64: [Case("let go", 0, {"broker_id": 77}, [ALTER_C])],
        65: [
            Case("describe", 0, {"transactional_ids": ("nobody",)}, [n(Op.DESCRIBE, X)]),
            Case("topics", 0, {"transactional_ids": (SEEN,)}, [n(Op.DESCRIBE, X), DESCRIBE_T], hides="'orders'"),
        ],
        66: [Case("list", 1, {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}, [n(Op.DESCRIBE, X)], hides=repr(SEEN))],
        68: [Case("heartbeat", 1, {**MEMBER, "member_epoch": 5, "instance_id": None, "rack_id": None, "rebalance_timeout": 1000,
            "subscribed_topic_names": ("orders",), "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": None},
            [READ_G, DESCRIBE_T])],
        69: [
            Case("describe", 1, {"group_ids": ("g",), "include_authorized_operations": False}, [DESCRIBE_G]),
            Case("of members", 1, {"group_ids": (READ_BY,), "include_authorized_operations": False}, [DESCRIBE_G, DESCRIBE_T],
                untold=frozenset({ERROR[T]})),
        ],
        71: [Case("get", 0, {"client_instance_id": NOBODY})],
        72: [Case("push", 0, {"client_instance_id": NOBODY, "subscription_id": 0, "terminating": False, "compression_type": 0, "metrics": b""})],
        74: [Case("list", 1, {"resource_types": ()}, [n(Op.DESCRIBE_CONFIGS, C)])],
        75: [
            Case("named", 0, {"topics": [{"name": "orders"}], "response_partition_limit": 10, "cursor": None}, [DESCRIBE_T]),
            Case("all", 0, {"topics": [], "response_partition_limit": 10, "cursor": None}, [DESCRIBE_T], hides="orders"),
        ],
        80: [Case("add", 0, {"cluster_id": None, "timeout": 1, "voter_id": 1, "voter_directory_id": NOBODY, "listeners": []}, [ALTER_C])],
        81: [Case("remove", 0, {"cluster_id": None, "voter_id": 1, "voter_directory_id": NOBODY}, [ALTER_C])],
    }  # fmt: skip
