"""Partitions whose topic is deleted, or has fewer of them: left in one step, and what is to be done on disk put together for a thread.

INV-LGO1  the folder is marked, then the manifest names its logs no more, then what is kept of them is synced, then the folder is renamed: a crash
          behind any of them is completed by the next start, which finds the mark, and misses no log that nobody has (INV-T6)
INV-LGO2  once the folder is durably away, and not before, nobody needs what the journal has of its logs (INV-K4)

Not here: which partitions (`table`), the renaming (`log.recovery.removal`), leaving one log (`log.leaving`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from region_broker.log.leaving import Leaving
from region_broker.log.recovery.kept_deletions import DeletionNote
from region_broker.log.recovery.removal import Removal
from region_broker.partitions.made_partitions import MadePartitions
from region_broker.partitions.partition import Partition


@dataclass(frozen=True, slots=True)
class LettingGo:
    """Of one node. `refused`: logs that the journal could not be replayed into, and why, by topic id and number."""

    data_dir: Path
    removal: Removal
    made: MadePartitions
    refused: dict[tuple[bytes, int], str]

    def begin(
        self, folder: Path, partitions: Sequence[Partition], note: DeletionNote, why: str
    ) -> None:
        """Leave partitions that nobody finds any more, and let their folder be on its way out."""
        keep = self.removal.keeps and any(map(holds_records, partitions))
        keys = [each.key for each in partitions]
        leaving = [Leaving(each.log, keep=keep) for each in partitions]
        for each in partitions:  # which waits for no disk: their logs are left
            each.close(why)

        def first() -> None:  # INV-LGO1
            self.removal.mark(folder, note)
            self.made.note_removed(keys)
            for log in leaving:
                log.sync()

        def end() -> None:
            for log in leaving:
                log.end()

        def give_up() -> None:  # INV-LGO2
            for log in leaving:
                log.give_up()
            for topic_id, number in keys:
                self.refused.pop((topic_id.bytes, number), None)

        self.removal.begin(folder, keep=keep, first=first, on_left=end, on_gone=give_up)

    async def finish_of(self, topic_id: UUID) -> None:
        """Return once what was dropped of a topic is out of the way, durably, or a disk refuses it (INV-RM7)."""
        await self.removal.finish(self.data_dir / topic_id.hex)


def holds_records(partition: Partition) -> bool:
    """Return whether a partition has, or may have, bytes of records."""
    return partition.failed is not None or partition.log_end_offset > partition.kept_from
