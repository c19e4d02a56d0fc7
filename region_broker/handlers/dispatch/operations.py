"""What can be done with a resource, as a bit field (KIP-430).

Bits are the codes of Kafka's AclOperation; which a resource has stands in Kafka's AclEntry.supportedOperations.
Not here: what of it somebody may do (`authorizing`).
"""

from collections.abc import Mapping
from typing import Final

from region_broker.security.access import Operation, ResourceType

NOT_ASKED: Final = -(1 << 31)


def bits(*operations: Operation) -> int:
    """Return operations as a bit field."""
    return sum(1 << operation for operation in operations)


OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
}  # fmt: skip
