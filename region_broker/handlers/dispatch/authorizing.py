"""Who may do what with which API: one row per API, and the only place where handlers ask the authorizer.

INV-HAZ1 an API without a row is served to nobody; a row that says `each` is judged by the API's handler, for each thing it names
INV-HAZ2 a request is judged where it is executed, by whom it says it is from (INV-SID1): who forwards a request judges nothing, and gives
         it no rights of its own
INV-HAZ3 what the whole of a request needs is judged in the step in which its handler begins, on every way there: with a task, and without one
INV-HAZ4 who may not see a thing is answered the same whether it is there or not; a topic that is named by its id is judged by its name
INV-HAZ5 while no access is in force nothing is judged, and one look at that is all it costs
INV-HAZ7 however many topics a request names, who else asks is served while they are judged, also at a node that answers only who leads them
INV-HAZ6 what waits on other clients for long is judged again when it is answered: who may not any more is told so, and nothing of them
A need is an operation on a type of resource. The needs in one tuple are alternatives; all tuples of a row are needed.
Source: Kafka 4.1, "Operations and resources on protocols"; KafkaApis.scala, ControllerApis.scala, AclApis.scala, AuthHelper.scala.
Not here: how ACLs are judged (`security.authorizer`), the answers (each API's file).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.operations import OPERATIONS, bits
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.security.access import CLUSTER_NAME, Operation, ResourceType
from region_broker.security.identity import Identity
from region_broker.wire.codec.fast_paths.transactions import AddRequest
from region_broker.wire.cooperative_yield import CooperativeYield

ERROR_OF: Final[Mapping[ResourceType, ErrorCode]] = {
    ResourceType.TOPIC: ErrorCode.topic_authorization_failed,
    ResourceType.GROUP: ErrorCode.group_authorization_failed,
    ResourceType.CLUSTER: ErrorCode.cluster_authorization_failed,
    ResourceType.TRANSACTIONAL_ID: ErrorCode.transactional_id_authorization_failed,
    ResourceType.DELEGATION_TOKEN: ErrorCode.delegation_token_authorization_failed,
    ResourceType.USER: ErrorCode.delegation_token_authorization_failed,
}
assert set(ERROR_OF) == set(ResourceType) - {ResourceType.ANY}
TOPIC_DENIED: Final = ErrorCode.topic_authorization_failed
GROUP_DENIED: Final = ErrorCode.group_authorization_failed
CLUSTER_DENIED: Final = ErrorCode.cluster_authorization_failed


class Need(NamedTuple):
    """An operation on a type of resource."""

    operation: Operation
    resource_type: ResourceType


Judge: TypeAlias = Callable[[RequestContext, Any, bool], ErrorCode | None]
"""Returns why a whole request is refused; True: say so to who hears of refusals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """How an API is authorized.

    `whole`: what the whole request needs, judged before its handler begins; `judge`: the same by other rules than "all of it". `each`:
    what its handler judges for each thing; `left_out`: what of its answer nobody sees without that. `why_open`: why it needs nothing.
    """

    whole: Sequence[tuple[Need, ...]] = ()
    each: Sequence[tuple[Need, ...]] = ()
    left_out: Sequence[tuple[Need, ...]] = ()
    judge: Judge | None = None
    why_open: str = ""


_T, _G, _C = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_X, _D, _U = ResourceType.TRANSACTIONAL_ID, ResourceType.DELEGATION_TOKEN, ResourceType.USER
_READ_TOPIC: Final = Need(Operation.READ, _T)
_WRITE_TOPIC: Final = Need(Operation.WRITE, _T)
_CREATE_TOPIC: Final = Need(Operation.CREATE, _T)
_DELETE_TOPIC: Final = Need(Operation.DELETE, _T)
_ALTER_TOPIC: Final = Need(Operation.ALTER, _T)
_DESCRIBE_TOPIC: Final = Need(Operation.DESCRIBE, _T)
_TOPIC_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _T)
_ALTER_TOPIC_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _T)
_READ_GROUP: Final = Need(Operation.READ, _G)
_DELETE_GROUP: Final = Need(Operation.DELETE, _G)
_DESCRIBE_GROUP: Final = Need(Operation.DESCRIBE, _G)
_GROUP_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _G)
_ALTER_GROUP_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _G)
_WRITE_ID: Final = Need(Operation.WRITE, _X)
_DESCRIBE_ID: Final = Need(Operation.DESCRIBE, _X)
_CREATE_CLUSTER: Final = Need(Operation.CREATE, _C)
_ALTER_CLUSTER: Final = Need(Operation.ALTER, _C)
_DELETE_CLUSTER: Final = Need(Operation.DELETE, _C)
_DESCRIBE_CLUSTER: Final = Need(Operation.DESCRIBE, _C)
_CLUSTER_CONFIGS: Final = Need(Operation.DESCRIBE_CONFIGS, _C)
_ALTER_CLUSTER_CONFIGS: Final = Need(Operation.ALTER_CONFIGS, _C)
_CLUSTER_ACTION: Final = Need(Operation.CLUSTER_ACTION, _C)
_IDEMPOTENT: Final = Need(Operation.IDEMPOTENT_WRITE, _C)
_CREATE_TOKENS: Final = Need(Operation.CREATE_TOKENS, _U)
_DESCRIBE_TOKENS: Final = Need(Operation.DESCRIBE_TOKENS, _U)
_DESCRIBE_TOKEN: Final = Need(Operation.DESCRIBE, _D)
_ADD_BATCHED_SINCE: Final = 4


def _init_producer_id(ctx: RequestContext, request: Any, tells: bool) -> ErrorCode | None:
    """Judge a transactional id, or whether any topic may be written to (KIP-679)."""
    name = request.transactional_id
    if name is not None:
        return None if _is_allowed(ctx, _WRITE_ID, name, tells=tells) else ERROR_OF[_X]
    if _is_allowed(ctx, _IDEMPOTENT, CLUSTER_NAME, tells=False):
        return None
    if ctx.services.authorizer.allows_any(ctx.identity, Operation.WRITE, _T):
        return None
    if tells:
        ctx.services.on_denied(ctx, _IDEMPOTENT.operation, _C, CLUSTER_NAME)
    return ERROR_OF[_C]


def _add_partitions(ctx: RequestContext, request: Any, tells: bool) -> ErrorCode | None:
    """Judge a client's transactional id; what comes for several transactions is asked by brokers (KIP-890)."""
    if ctx.version >= _ADD_BATCHED_SINCE:
        allowed = _is_allowed(ctx, _CLUSTER_ACTION, CLUSTER_NAME, tells=tells)
        return None if allowed else ERROR_OF[_C]
    plain = isinstance(request, AddRequest)
    name = request.transactional_id if plain else request.v3_and_below_transactional_id
    return None if _is_allowed(ctx, _WRITE_ID, name, tells=tells) else ERROR_OF[_X]


_OF_A_CLUSTER_ALTERED: Final = Row(whole=[(_ALTER_CLUSTER,)])
_OF_A_CLUSTER_DESCRIBED: Final = Row(whole=[(_DESCRIBE_CLUSTER,)])
_OF_A_MEMBER: Final = Row(whole=[(_READ_GROUP,)])
_OF_CONFIGS: Final = Row(
    each=[(_ALTER_TOPIC_CONFIGS, _ALTER_GROUP_CONFIGS, _ALTER_CLUSTER_CONFIGS)]
)
_OF_OWN_TOKENS: Final = Row(why_open="of a token its owner and its renewers alone (KIP-48)")
_BEFORE_LOGIN: Final = Row(why_open="it comes before anybody is known")
_OF_METRICS: Final = Row(why_open="it tells nothing, and what comes is dropped; nor does Kafka ask")

TABLE: Final[Mapping[int, Row]] = {
    0: Row(each=[(_WRITE_ID,), (_WRITE_TOPIC,)]),  # Produce
    1: Row(each=[(_READ_TOPIC,)]),  # Fetch; replicas have a port of their own (INV-H11)
    2: Row(each=[(_DESCRIBE_TOPIC,)]),  # ListOffsets
    3: Row(each=[(_DESCRIBE_TOPIC,), (_CREATE_CLUSTER, _CREATE_TOPIC)]),  # Metadata
    8: Row(whole=[(_READ_GROUP,)], each=[(_READ_TOPIC,)]),  # OffsetCommit
    9: Row(each=[(_DESCRIBE_GROUP,), (_DESCRIBE_TOPIC,)]),  # OffsetFetch
    10: Row(each=[(_DESCRIBE_GROUP, _DESCRIBE_ID)]),  # FindCoordinator: by the type of key
    11: _OF_A_MEMBER,  # JoinGroup
    12: _OF_A_MEMBER,  # Heartbeat
    13: _OF_A_MEMBER,  # LeaveGroup
    14: _OF_A_MEMBER,  # SyncGroup
    15: Row(each=[(_DESCRIBE_GROUP,)]),  # DescribeGroups
    16: Row(left_out=[(_DESCRIBE_CLUSTER, _DESCRIBE_GROUP)]),  # ListGroups
    17: _BEFORE_LOGIN,  # SaslHandshake
    18: _BEFORE_LOGIN,  # ApiVersions
    19: Row(
        each=[(_CREATE_CLUSTER, _CREATE_TOPIC)],
        left_out=[(_TOPIC_CONFIGS,)],
    ),  # CreateTopics
    20: Row(each=[(_DELETE_CLUSTER, _DELETE_TOPIC)]),  # DeleteTopics
    21: Row(each=[(_DELETE_TOPIC,)]),  # DeleteRecords
    22: Row(whole=[(_WRITE_ID, _IDEMPOTENT, _WRITE_TOPIC)], judge=_init_producer_id),
    23: Row(each=[(_CLUSTER_ACTION, _DESCRIBE_TOPIC)]),  # OffsetForLeaderEpoch
    24: Row(
        whole=[(_WRITE_ID, _CLUSTER_ACTION)], each=[(_WRITE_TOPIC,)], judge=_add_partitions
    ),  # AddPartitionsToTxn
    25: Row(whole=[(_WRITE_ID,), (_READ_GROUP,)]),  # AddOffsetsToTxn
    26: Row(whole=[(_WRITE_ID,)]),  # EndTxn
    27: Row(whole=[(_ALTER_CLUSTER, _CLUSTER_ACTION)]),  # WriteTxnMarkers
    28: Row(whole=[(_WRITE_ID,), (_READ_GROUP,)], each=[(_READ_TOPIC,)]),  # TxnOffsetCommit
    29: _OF_A_CLUSTER_DESCRIBED,  # DescribeAcls
    30: _OF_A_CLUSTER_ALTERED,  # CreateAcls
    31: _OF_A_CLUSTER_ALTERED,  # DeleteAcls
    32: Row(
        each=[(_TOPIC_CONFIGS, _GROUP_CONFIGS, _CLUSTER_CONFIGS)]
    ),  # DescribeConfigs: by the type of resource
    33: _OF_CONFIGS,  # AlterConfigs
    34: _OF_A_CLUSTER_ALTERED,  # AlterReplicaLogDirs
    35: _OF_A_CLUSTER_DESCRIBED,  # DescribeLogDirs
    36: _BEFORE_LOGIN,  # SaslAuthenticate
    37: Row(each=[(_ALTER_TOPIC,)]),  # CreatePartitions
    38: Row(each=[(_CREATE_TOKENS,)]),  # CreateDelegationToken, for somebody else
    39: _OF_OWN_TOKENS,  # RenewDelegationToken
    40: _OF_OWN_TOKENS,  # ExpireDelegationToken
    41: Row(left_out=[(_DESCRIBE_TOKEN, _DESCRIBE_TOKENS)]),  # DescribeDelegationToken
    42: Row(each=[(_DELETE_GROUP,)]),  # DeleteGroups
    43: _OF_A_CLUSTER_ALTERED,  # ElectLeaders
    44: _OF_CONFIGS,  # IncrementalAlterConfigs
    45: _OF_A_CLUSTER_ALTERED,  # AlterPartitionReassignments
    46: _OF_A_CLUSTER_DESCRIBED,  # ListPartitionReassignments
    47: Row(whole=[(_DELETE_GROUP,)], each=[(_READ_TOPIC,)]),  # OffsetDelete
    48: Row(whole=[(_CLUSTER_CONFIGS,)]),  # DescribeClientQuotas
    49: Row(whole=[(_ALTER_CLUSTER_CONFIGS,)]),  # AlterClientQuotas
    50: _OF_A_CLUSTER_DESCRIBED,  # DescribeUserScramCredentials
    51: _OF_A_CLUSTER_ALTERED,  # AlterUserScramCredentials
    55: _OF_A_CLUSTER_DESCRIBED,  # DescribeQuorum
    57: _OF_A_CLUSTER_ALTERED,  # UpdateFeatures
    60: Row(left_out=[(_DESCRIBE_CLUSTER,)]),  # DescribeCluster: of the operations alone
    61: Row(each=[(_READ_TOPIC,)]),  # DescribeProducers
    64: _OF_A_CLUSTER_ALTERED,  # UnregisterBroker
    65: Row(each=[(_DESCRIBE_ID,)], left_out=[(_DESCRIBE_TOPIC,)]),  # DescribeTransactions
    66: Row(left_out=[(_DESCRIBE_ID,)]),  # ListTransactions
    68: Row(whole=[(_READ_GROUP,)], each=[(_DESCRIBE_TOPIC,)]),  # ConsumerGroupHeartbeat
    69: Row(each=[(_DESCRIBE_GROUP,), (_DESCRIBE_TOPIC,)]),  # ConsumerGroupDescribe
    71: _OF_METRICS,  # GetTelemetrySubscriptions
    72: _OF_METRICS,  # PushTelemetry
    74: Row(whole=[(_CLUSTER_CONFIGS,)]),  # ListConfigResources
    75: Row(each=[(_DESCRIBE_TOPIC,)]),  # DescribeTopicPartitions
    80: _OF_A_CLUSTER_ALTERED,  # AddRaftVoter
    81: _OF_A_CLUSTER_ALTERED,  # RemoveRaftVoter
}
_NAME_IN_REQUEST: Final[Mapping[ResourceType, str]] = {_G: "group_id", _X: "transactional_id"}
_OWN_NAMES: Final = frozenset({_C, *_NAME_IN_REQUEST})
assert all(
    need.resource_type in _OWN_NAMES
    for row in TABLE.values()
    for needs in (() if row.judge else row.whole)
    for need in needs
), "a whole request is judged by a resource that it does not name"


def check_rows(keys: Sequence[int]) -> None:
    """Fail, at import, for an API that nobody has said who may use (INV-HAZ1)."""
    missing = sorted(set(keys) - TABLE.keys())
    assert not missing, f"INV-HAZ1: no row says who may use the APIs {missing}"


# --- the whole of a request -----------------------------------------------------------------------


def refusal(ctx: RequestContext, request: Any, *, tells: bool = True) -> ErrorCode | None:
    """Return why nothing of a request is executed for who asks, None if it may begin (INV-HAZ3)."""
    row = TABLE[ctx.api_key]
    if not row.whole or not ctx.services.authorizer.in_force:
        return None
    if row.judge is not None:
        return row.judge(ctx, request, tells)
    for needs in row.whole:
        if not any(_is_allowed(ctx, need, _name_in(request, need), tells=False) for need in needs):
            last = needs[-1]
            if tells:
                name = _name_in(request, last)
                ctx.services.on_denied(ctx, last.operation, last.resource_type, name)
            return ERROR_OF[last.resource_type]
    return None


def _name_in(request: Any, need: Need) -> str:
    field = _NAME_IN_REQUEST.get(need.resource_type)
    return CLUSTER_NAME if field is None else str(getattr(request, field))


def _is_allowed(ctx: RequestContext, need: Need, name: str, *, tells: bool) -> bool:
    services = ctx.services
    if services.authorizer.allows(ctx.identity, need.operation, need.resource_type, name):
        return True
    if tells:
        services.on_denied(ctx, need.operation, need.resource_type, name)
    return False


# --- the things that a request names --------------------------------------------------------------


def may(ctx: RequestContext, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Return whether who asks may do that with a thing that the request names; a refusal is told."""
    services = ctx.services
    authorizer = services.authorizer
    if not authorizer.in_force or authorizer.allows(ctx.identity, operation, resource_type, name):
        return True
    services.on_denied(ctx, operation, resource_type, name)
    return False


def sees(ctx: RequestContext, operation: Operation, resource_type: ResourceType, name: str) -> bool:
    """Return the same of a thing that nobody named: it is left out, and nobody is told."""
    services = ctx.services
    if not services.authorizer.in_force:
        return True
    return services.authorizer.allows(ctx.identity, operation, resource_type, name)


async def denied_topics(
    ctx: RequestContext,
    operation: Operation,
    names: Iterable[str | None],
    yielding: CooperativeYield,
    *,
    tells: bool = True,
) -> frozenset[str]:
    """Return those of the topics that who asks may not do that with, each judged once; others are served in between (INV-HAZ7).

    `tells`: whether refusals are told, as `may` does and `sees` does not.
    """
    if not ctx.services.authorizer.in_force:
        return frozenset()
    judge = may if tells else sees
    denied: set[str] = set()
    for name in dict.fromkeys(names):
        await yielding.row()
        if name is not None and not judge(ctx, operation, _T, name):
            denied.add(name)
    return frozenset(denied)


def may_topic(ctx: RequestContext, operation: Operation, topic: str | UUID | None) -> bool:
    """Return `may` of a topic by its name or id; True of an id that there is no topic of: nothing is there to be judged (INV-HAZ4)."""
    if isinstance(topic, UUID):
        if not ctx.services.authorizer.in_force:
            return True  # without a look for its name
        topic = topic_name(ctx.services, topic)
    return topic is None or may(ctx, operation, _T, topic)


def may_read_topic(services: Services, identity: Identity, topic: str | UUID | None) -> bool:
    """Return whether records of a topic may be told; for who reads again and again, and is told once."""
    name = topic_name(services, topic)
    return name is None or services.authorizer.allows(identity, Operation.READ, _T, name)


def sees_topic(ctx: RequestContext, operation: Operation, topic: str | UUID | None) -> bool:
    """Return `sees` of a topic by its name or id; False of an id that there is no topic of."""
    if not ctx.services.authorizer.in_force:
        return True
    name = topic_name(ctx.services, topic)
    return name is not None and sees(ctx, operation, _T, name)


def topic_name(services: Services, topic: str | UUID | None) -> str | None:
    """Return by what name a topic is judged that is named by name or id; None where there is none of that id."""
    if not isinstance(topic, UUID):
        return topic
    found = services.metadata.image.topic_by_id(topic)
    return None if found is None else found.name


def sees_cluster(ctx: RequestContext, operation: Operation) -> bool:
    """Return whether an operation on the whole cluster is allowed, which makes one on each thing needless."""
    return sees(ctx, operation, _C, CLUSTER_NAME)


def may_by_cluster(ctx: RequestContext, operation: Operation, topic: str) -> bool:
    """Return whether that is allowed on the whole cluster, or `may` on this topic; where it changes the audit trail, so must ALTER be (INV-AUZ7)."""
    if sees_cluster(ctx, operation):
        changes_trail = ctx.services.authorizer.changes_trail(operation, topic)
        if not changes_trail or sees_cluster(ctx, Operation.ALTER):
            return True
    return may(ctx, operation, _T, topic)


def rows_of_operations(ctx: RequestContext) -> int:
    """Return for how many rows of work `operations_of` counts, where nothing of that is remembered: 0.2 ms (INV-HW2)."""
    return 20 if ctx.services.authorizer.in_force else 0


def operations_of(ctx: RequestContext, resource_type: ResourceType, name: str) -> int:
    """Return what who asks may do with a thing, as a bit field (KIP-430)."""
    asked = OPERATIONS[resource_type]
    return bits(*(each for each in asked if sees(ctx, each, resource_type, name)))


def cluster_operations(ctx: RequestContext) -> int:
    """Return the same of the cluster; 0 for who may not describe it."""
    if not sees_cluster(ctx, Operation.DESCRIBE):
        return 0
    return operations_of(ctx, _C, CLUSTER_NAME)
