"""What a client may do with a resource, as a bit field (KIP-430): everything, as there is no security yet.

Bits are the codes of Kafka's AclOperation; which a resource has stands in Kafka's AclEntry.supportedOperations.
Not here: checking anything.
"""

from typing import Final

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = 3, 4, 5, 6, 7, 8
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = 9, 10, 11, 12
NOT_ASKED: Final = -(1 << 31)


def _bits(*codes: int) -> int:
    return sum(1 << code for code in codes)


TOPIC_OPERATIONS: Final = _bits(
    _READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE, _DESCRIBE_CONFIGS, _ALTER_CONFIGS
)
CLUSTER_OPERATIONS: Final = _bits(
    _CREATE, _ALTER, _DESCRIBE, _CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS,
    _IDEMPOTENT_WRITE,
)  # fmt: skip
GROUP_OPERATIONS: Final = _bits(_READ, _DELETE, _DESCRIBE)
