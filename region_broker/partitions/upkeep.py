"""A round of upkeep over all logs of a node: what nobody needs any more goes, a little in each step.

INV-UPK1  a round asks each log once, and again where a step ended within it (INV-SG6), and gives way in between: beginning at the first log anew
         with each step, ten thousand logs would be asked a thousand times each
INV-UPK2  what a log may lose is asked in the step in which it goes; a log that was dropped in between is passed

Not here: what goes of one log (`parts.retention`), when a round is due, and that it ends where the node's role does (`node.retaining`).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from idempotency.pieces import Pieces
from idempotency.ports import Clock
from region_broker.log.failures import LogError
from region_broker.log.segment import DeletionBudget
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.retention import Due
from region_broker.partitions.producer_room import ProducerRoom
from region_broker.partitions.trimming import Hold
from region_broker.wire.cooperative_yield import CooperativeYield

logger: Final = logging.getLogger(__name__)


def no_bound(_partition: Partition) -> None:
    """Return how far a region has reached a log that is not copied from another region."""
    return


def no_copy(_partition: Partition) -> bool:
    """Return that no log is a copy whose rounds are needed here."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Upkeep:
    """Of all `partitions`; `is_there` says whether one still is. `maintain` is to be called now and then (a minute)."""

    partitions: Iterable[Partition]
    is_there: Callable[[Partition], bool]
    clock: Clock
    producers: ProducerRoom
    producer_expiration_ms: int

    def maintain(
        self,
        hold_of: Callable[[Partition], Hold | None],
        reached_of: Callable[[Partition], int | None] = no_bound,
        keeps_rounds: Callable[[Partition], bool] = no_copy,
    ) -> Pieces[int]:
        """Apply retention and producer expiry everywhere, in pieces; return how many segments were deleted.

        `hold_of` says what of a partition must be kept, or None; `reached_of`, `keeps_rounds`: see `Retention.maintain`.
        """
        self.count_producers()
        due, yielding = self._due(), CooperativeYield()
        deleted = 0
        for partition in list(self.partitions):
            while self.is_there(partition):
                count = 0
                try:
                    count = partition.retention.maintain(
                        due,
                        hold=hold_of(partition),
                        reached=reached_of(partition),
                        keeps_rounds=keeps_rounds(partition),
                    )
                except LogError as error:  # damaged files, too: the others go on (INV-T3)
                    logger.warning("%s is not maintained: %s", partition.tp, error)
                deleted += count
                is_used_up = due.budget is not None and due.budget.left <= 0
                if is_used_up or yielding.due():
                    yield
                    # As of now: who wrote in between is idle since then (INV-PRR2).
                    due = self._due()
                if not is_used_up or count == 0:
                    break  # else it may have more
        self.count_producers()
        return deleted

    def count_producers(self) -> None:
        """Tell how many producers all logs know (`producer_room`)."""
        self.producers.counted(len(each.state.producer_table) for each in self.partitions)

    def _due(self) -> Due:
        return Due(
            now_ms=self.clock.wall_ms(),
            monotonic_ms=self.clock.monotonic_ms(),
            producer_expiration_ms=self.producer_expiration_ms,
            producers_kept=self.producers.kept,
            budget=DeletionBudget(),
        )
