"""The states of a group of the new protocol and of its members (KIP-848).

Not here: what makes them change (`reconcile`, `heartbeat`).
"""

from enum import Enum, unique


@unique
class MemberState(Enum):
    """How far a member is on its way to its target; the number is Kafka's, in the ledger."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2


@unique
class ModernState(Enum):
    """The states of a group, by the names that Kafka's tools print."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"
