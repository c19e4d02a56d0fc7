"""Finding the partition a request names, the checks that Fetch, ListOffsets and Produce share, and who leads.

INV-HFP1 a log is served under what its topic is judged by: of a topic that clients are told of, by the name that they are told. A mirror keeps logs of
         others, of topics that wait for their name (T15); under their ids and under the names that they wait by nothing is there
A partition that failed is never read or written: KAFKA_STORAGE_ERROR, so that clients look elsewhere.
Not here: the partition itself (`partitions.partition`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, LogKey
from region_broker.controller.metadata_image import TopicImage
from region_broker.handlers.dispatch.authorizing import denied_topics, topic_name
from region_broker.handlers.dispatch.nodes import NO_NODE, NodeFacts
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield

NodesOf: TypeAlias = Callable[[str | UUID | None, int], NodeFacts]
"""Returns who leads a partition of a topic named by name or id."""


def find_partition(
    services: Services, topic: str | UUID | None, partition: int
) -> Partition | ErrorCode:
    """Return the partition of a topic named by name or id, or the error that says why not."""
    image = services.metadata.image
    if isinstance(topic, UUID):
        if image.topic_by_id(topic) is None:
            return ErrorCode.unknown_topic_id
        found = services.partitions.by_id(topic, partition)
    elif topic is None:
        return ErrorCode.unknown_topic_id
    else:
        found = services.partitions.get(topic, partition) if topic in image.topics else None
    if found is None:
        return ErrorCode.unknown_topic_or_partition
    if found.failed is not None:
        return ErrorCode.kafka_storage_error
    return found


def find_led(services: Services, topic: str | UUID | None, partition: int) -> Partition | ErrorCode:
    """Return the partition of a topic named by name or id, if this node is to serve it (INV-HLA1), or the error that says why not."""
    found = find_partition(services, topic, partition)
    if services.apart is None or isinstance(found, ErrorCode) or services.is_served_here(found):
        return found
    return ErrorCode.not_leader_or_follower


def nodes_of(ctx: RequestContext, topic: str | UUID | None, partition: int) -> NodeFacts:
    """Return who leads a partition of a topic named by name or id, as who asks meets it: those of the main group where nobody knows it."""
    nodes, image = ctx.nodes, ctx.services.metadata.image
    if nodes.spread is None or topic is None:
        return nodes
    known = image.topic_by_id(topic) if isinstance(topic, UUID) else image.topics.get(topic)
    return nodes if known is None else nodes.of(LogKey(known.topic_id, partition))


async def nodes_told(
    ctx: RequestContext, topics: Iterable[str | UUID | None], yielding: CooperativeYield
) -> NodesOf:
    """Return `nodes_of` for topics that a request names, which tells of one that who asks may not see as of one that is not there (INV-HAZ4).

    Where leaders are not spread all of them have the same, so nothing is judged.
    """
    nodes = ctx.nodes
    if nodes.spread is None:
        return lambda _topic, _partition: nodes
    names = (topic_name(ctx.services, topic) for topic in topics)
    denied = await denied_topics(ctx, Operation.DESCRIBE, names, yielding, tells=False)

    def told(topic: str | UUID | None, partition: int) -> NodeFacts:
        name = topic_name(ctx.services, topic)
        return nodes_of(ctx, None if name in denied else topic, partition)

    return told


def assignment_problem(services: Services, replicas: Iterable[tuple[int, ...]]) -> str:
    """Return why partitions cannot be assigned so, "" if they can: one replica each, on the node that a client sees.

    In a region of several nodes each has all logs: nodes of the region, each once, whichever and however many are named. A node that
    is not named has them, too. In one of one node, each region leads a partition with its own node, and a mirror forwards the request: any region's node is meant
    to be the one that leads.
    """
    if not services.nodes.is_alone:
        return _not_of_this_region(services.nodes.replicas, replicas)
    known = services.config.node_ids
    if all(len(nodes) == 1 and nodes[0] in known for nodes in replicas):
        return ""
    own = services.region.node_id
    return (
        f"a partition has one replica, on the only node of the region that was asked ({own} here)"
    )


def _not_of_this_region(known: Sequence[int], replicas: Iterable[tuple[int, ...]]) -> str:
    for nodes in replicas:
        if not nodes or len(set(nodes)) != len(nodes) or not set(nodes) <= set(known):
            return f"a partition's replicas are nodes of its region, each named once: {list(known)} here"
    return ""


def leader_epoch_error(partition: Partition, leader_epoch: LeaderEpoch) -> ErrorCode | None:
    """Compare the leader epoch the client knows (-1: none) with the partition's (KIP-320, R4).

    An empty mirror knows no epoch, so there is nothing to compare: librdkafka sends 0 where Metadata said
    -1, and would ask for ever.
    """
    if (
        leader_epoch < 0
        or partition.sight.leader_epoch < 0
        or leader_epoch == partition.sight.leader_epoch
    ):
        return None
    if leader_epoch < partition.sight.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    return ErrorCode.unknown_leader_epoch


def isolation_of(isolation_level: int) -> Isolation | None:
    """Return the isolation of a request (0 or 1, C37), None when there is no such level."""
    match isolation_level:
        case 0:
            return Isolation.READ_UNCOMMITTED
        case 1:
            return Isolation.READ_COMMITTED
        case _:
            return None


def leader_row(ctx: RequestContext, topic: TopicImage, index: int) -> dict[str, Any]:
    """Return who leads a partition, as Metadata and DescribeTopicPartitions tell it: who leads the region's logs, or its group (INV-HNV2).

    A leader that who asks does not meet is told as in Kafka (KRaftMetadataCache.java `getPartitionMetadata`): by an error that has
    librdkafka and the Java client ask again, and replicas that it does not meet as offline.

    Of a log that has stopped, or is not there, only the node itself knows: where that leads, nobody can lead the partition.
    """
    partition, nodes, own = (
        ctx.services.partitions.get(topic.name, index),
        ctx.nodes.of(LogKey(topic.topic_id, index)),
        ctx.services.region.node_id,
    )
    stopped = nodes.leads and (partition is None or partition.failed is not None)
    usable = nodes.leader is not None and not stopped
    return {
        "error_code": ErrorCode.none if usable else _why_not_usable(ctx, nodes),
        "partition_index": index,
        "leader_id": nodes.leader_id if usable else NO_NODE,
        "leader_epoch": nodes.epoch_to_tell(
            partition.sight.leader_epoch if partition is not None else NO_LEADER_EPOCH
        ),
        "replica_nodes": nodes.replicas,
        "isr_nodes": [each for each in nodes.in_sync if not (stopped and each == own)],
        "offline_replicas": [*nodes.offline, own] if stopped else nodes.offline,
    }


def _why_not_usable(ctx: RequestContext, nodes: NodeFacts) -> ErrorCode:
    if nodes.hides_leader and ctx.version >= _LISTENER_NOT_FOUND_SINCE.get(ctx.api_key, 0):
        return ErrorCode.listener_not_found
    return ErrorCode.leader_not_available


_LISTENER_NOT_FOUND_SINCE: Final = {3: 6}
"""From which version of an API on clients know the error; KafkaApis.scala `handleTopicMetadataRequest` (`errorUnavailableListeners`)."""
