"""Finding the partition a request names, the checks that Fetch, ListOffsets and Produce share, and who leads.

A partition that failed is never read or written: KAFKA_STORAGE_ERROR, so that clients look elsewhere.
Not here: the partition itself (`partitions.partition`).
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from idempotency.identity import LeaderEpoch
from region_broker.controller.metadata_image import TopicImage
from region_broker.handlers.dispatch.services import Services
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation


def find_partition(
    services: Services, topic: str | UUID | None, partition: int
) -> Partition | ErrorCode:
    """Return the partition of a topic named by name or id, or the error that says why not."""
    if topic is None:
        return ErrorCode.unknown_topic_id
    if isinstance(topic, UUID):
        found = services.partitions.by_id(topic, partition)
        if found is None:
            known = services.metadata.image.topic_by_id(topic) is not None
            return ErrorCode.unknown_topic_or_partition if known else ErrorCode.unknown_topic_id
    else:
        found = services.partitions.get(topic, partition)
    if found is None:
        return ErrorCode.unknown_topic_or_partition
    if found.failed is not None:
        return ErrorCode.kafka_storage_error
    return found


def assignment_problem(services: Services, replicas: Iterable[tuple[int, ...]]) -> str:
    """Return why partitions cannot be assigned so, "" if they can: one replica each, on the node that a client sees.

    Each region leads a partition with its own node, and a mirror forwards the request: any region's node is meant
    to be the one that leads.
    """
    known = services.config.node_ids
    if all(len(nodes) == 1 and nodes[0] in known for nodes in replicas):
        return ""
    own = services.region.node_id
    return (
        f"a partition has one replica, on the only node of the region that was asked ({own} here)"
    )


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


def leader_row(services: Services, topic: TopicImage, index: int) -> dict[str, Any]:
    """Return who leads a partition, as Metadata and DescribeTopicPartitions tell it: this node does."""
    partition = services.partitions.get(topic.name, index)
    node_id = services.region.node_id
    usable = partition is not None and partition.failed is None
    return {
        "error_code": ErrorCode.none if usable else ErrorCode.leader_not_available,
        "partition_index": index,
        "leader_id": node_id if usable else -1,
        "leader_epoch": partition.sight.leader_epoch if partition is not None else -1,
        "replica_nodes": [node_id],
        "isr_nodes": [node_id] if usable else [],
        "offline_replicas": [] if usable else [node_id],
    }
