"""What is done to which node, by a seed: each kind of fault comes as often as any other.

Not here: how it is done (`stage`).
"""

import enum
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final


class Fault(enum.Enum):
    """What happens to a node; it runs again at the end of the round."""

    KILL = "SIGKILL, then started again"
    PAUSE = "SIGSTOP for some seconds, then SIGCONT"
    RESTART = "SIGTERM, then started again"
    CUT = "its network is cut in silence, then joined again"
    PART = (
        "it is cut off from the other nodes in silence, and not from its clients; then joined again"
    )
    FULL = "its disk is filled to the last byte; freed, and the node restarted, as the runbook says"
    EIO = "its disk answers EIO to what it writes; mended, and the node restarted, as the runbook says"


PLAIN_FAULTS: Final = (Fault.KILL, Fault.PAUSE, Fault.RESTART)
"""What needs no namespaces and no disk of its own."""
DISK_FAULTS: Final = (Fault.FULL, Fault.EIO)
NETWORK_FAULTS: Final = (Fault.CUT, Fault.PART)
LASTING_FAULTS: Final = (*NETWORK_FAULTS, *DISK_FAULTS)
"""What lasts until it is mended: clients must get on while it does."""
INSIDE_FAULTS: Final = (*NETWORK_FAULTS, Fault.FULL)
"""What needs namespaces of its own."""


class Victim(enum.Enum):
    """Whom it is meant for; whoever leads the logs may lead the quorum, too."""

    LEADER = "leads the logs"
    FOLLOWER = "leads nothing"
    QUORUM = "leads the metadata quorum"


@dataclass(frozen=True, slots=True)
class Round:
    """One fault. `pause_s`: how long the region is left alone before it."""

    number: int
    fault: Fault
    victim: Victim
    pause_s: float


def rounds(
    seed: int, count: int, faults: Sequence[Fault] = PLAIN_FAULTS, victims: Sequence[Victim] = tuple(Victim)
) -> Iterator[Round]:  # fmt: skip
    """Deal out the pairs in an order of chance, again and again."""
    chance = random.Random(seed)
    pairs: list[tuple[Fault, Victim]] = []
    for number in range(1, count + 1):
        if not pairs:
            pairs = list(product(faults, victims))
            chance.shuffle(pairs)
        fault, victim = pairs.pop()
        yield Round(number, fault, victim, chance.uniform(1.0, 2.0))
