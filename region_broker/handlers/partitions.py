"""Finding the partition a request names, and the checks that Fetch, ListOffsets and Produce share.

INV-H3  a partition that failed is never read or written: KAFKA_STORAGE_ERROR, so that clients look elsewhere
Not here: the partition itself (`replication.partition`).
"""

from uuid import UUID

from kio.schema.errors import ErrorCode

from region_broker.handlers.services import Services
from region_broker.replication.partition import Isolation, Partition


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


def leader_epoch_error(partition: Partition, leader_epoch: int) -> ErrorCode | None:
    """Compare the leader epoch the client knows (-1: none) with the partition's (KIP-320, R4).

    An empty mirror knows no epoch, so there is nothing to compare: librdkafka sends 0 where Metadata said
    -1, and would ask for ever.
    """
    if leader_epoch < 0 or partition.leader_epoch < 0 or leader_epoch == partition.leader_epoch:
        return None
    if leader_epoch < partition.leader_epoch:
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
