"""Logs that do not run, put aside for people, with an empty one in their place that is to be copied.

INV-T9  a log that has stopped, or did not open, is put aside whole, durably, before an empty one takes its place, which counts as lost
        until whoever decides who acts has taken note (INV-T6); it is never removed by itself. A copy that was begun so, and has stopped
        before it was whole, is removed; where the disk had refused to make a folder there is nothing to put aside
INV-T10 one that may hold what a takeover has made void, and that was not cut off before, is called so: it is in no quarantine, and
        nobody is to say that all lost is known (INV-TLC7). It is told until people have removed it, or its topic is gone
Not here: when that may be (`region.mending.copying_anew`), the names (`log.recovery.removal`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from region_broker.log.recovery.removal import Removal
from region_broker.partitions.made_partitions import MadePartitions
from region_broker.partitions.partition import Partition


@dataclass(slots=True)
class LogsAside:
    """Of one node. `begin`: opens an empty log in the place of one whose folder is away."""

    made: MadePartitions
    removal: Removal
    folder_of: Callable[[UUID, int], Path]
    begin: Callable[[Partition], None]
    data_dir: Path
    _uncut: list[Path] | None = None

    def uncut(self) -> list[str]:
        """Return the folders that may hold what is void, and in no quarantine (INV-T10). Raises OSError at the first call."""
        if self._uncut is None:
            self._uncut = self.removal.uncut_under(self.data_dir)
        self._uncut = [path for path in self._uncut if self.removal.is_there(path)]
        return [f"{path.parent.name}/{path.name}" for path in self._uncut]

    def put(self, partition: Partition, *, uncut: bool = False) -> str:
        """Keep the folder of a log that does not run under another name, and begin an empty one in its place (INV-T9).

        Return what became of it, empty while something still writes into it: then nothing was done. Whoever follows logs is the
        caller's to tell. Raises OSError: the log is as it was, but for a note that it is lost. `uncut`: it may hold what is void (INV-T10).
        """
        assert partition.failed is not None, partition.tp
        if (
            not partition.log.cleaning.take()
        ):  # never given back: nobody else writes into it any more
            return ""
        try:
            became = self._away(partition.topic_id, partition.tp.partition, uncut=uncut)
        except OSError:
            partition.log.cleaning.release()
            raise
        partition.close(f"{partition.tp} was put aside: it is copied again")
        partition.log.durability.give_up()
        self.begin(partition)
        return became

    def _away(self, topic_id: UUID, number: int, *, uncut: bool) -> str:
        folder = self.folder_of(topic_id, number)
        if not self.removal.is_there(folder):  # the disk refused it when its topic was made
            self.made.note_lost(topic_id, number)
            return "it had no folder"
        if (topic_id, number) not in self.made.lost():
            self.made.note_lost(topic_id, number)
            kept = self.removal.set_aside(folder, uncut=uncut)
            if uncut and self._uncut is not None:
                self._uncut.append(kept)
            return f"it is kept as {kept}, until somebody removes it"
        if not self.removal.put_away(folder, keep=False):
            raise OSError(f"{folder}, a copy that was begun and has stopped, cannot be removed")
        return "it was a copy that had been begun, and is removed"
