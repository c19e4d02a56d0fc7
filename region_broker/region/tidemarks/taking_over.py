"""What a node finds reached that begins to lead a region of several: in its own logs, as its own file may be old (T16).

INV-TKO1 the point is never below what another node of the region has reached and shown: that is committed, so it is here
INV-TKO2 nor is it one that the region may not claim: none that is void (T25), none beyond a log that has stopped, that is not
         cut to the lineage yet (T23), that was copied with holes of a cleaning (T13), or that the registry here does not have (T15)
INV-TKO3 what this node itself has written down as reached is not lowered but by the lineage, whatever its disk has lost of it
         since: that is told as a loss (INV-LD5)
INV-TKO4 a node that begins to lead knows nothing to be whole, whatever its file says of it (T17): ends are looked for again
INV-TKO5 a node that follows forgets no transaction beyond what it would find reached: else the one that leads next shows nothing to
         read-committed readers, until the primary has sent a tidemark that covers all of it

T15: a tidemark names its logs by topic id and partition, and M, the version of the primary's registry, which the registry here
knows nothing of; so the names decide. A log with records that is missing here keeps a tidemark from being reached, whether its topic
is to be created or to grow yet. A topic that is here still, though the tidemark does not name it any more, keeps nothing back: it
goes behind that tidemark, when the primary's registry was read (INV-TH2), and the former leader may have shown the tidemark.
A topic that was deleted in this region is not missed below the base that the region was cut to, only above (INV-FR8).

INV-TKO4: 1. A node leads, shows a tidemark, and stops leading. 2. Another one leads; the primary's loss is accepted, and what the
mirror had shown is given up, with its ends (INV-LD7). 3. The history that is copied instead gives the same number to another
tidemark. 4. The first one leads again: by its file, ends of the old history would be shown, in the midst of transactions.

A tidemark above what was told with a promise may be found: it was copied before, and committed since. It is shown to nobody while
the promise stands, and a later base makes it void (T24).
Not here: when it is asked (`node`), what is shown (`geo_replicator.link.reaching`), what is whole (`region.mirror.mirror_view`).
"""

import logging
from collections.abc import Iterator
from functools import cache
from typing import Final, NamedTuple

from geo_replicator.lineage import BEFORE_ALL, Cut, Lineage, LogKey, TidemarkPoint
from geo_replicator.reading import book_in_pieces, point_without_lack
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import LedgerTopics
from idempotency.fencing import region_epoch_of, region_ordinal_of
from idempotency.pieces import Pieces
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.mirror.mirror_log import TidemarkLog
from region_broker.wire.cooperative_yield import run_yielding

_log: Final = logging.getLogger("tidemark.mirror")


class OwnFile(NamedTuple):
    """Which region this is, and what this node's file names."""

    region: str
    ordinal: int
    point: TidemarkPoint


async def taken_over(
    partitions: PartitionTable,
    ledgers: LedgerTopics,
    image: MetadataImage,
    lineage: Lineage,
    own: OwnFile,
) -> TidemarkPoint:
    """Return what the file of this node has to name, giving way to others (INV-TR3).

    Where this region acts, and has published, that is what it names: the claim is what was published (T24), and the file is
    for the time before.
    """
    standing = own.point
    if lineage.is_void(standing):
        standing = lineage.fallback_of(standing).point
    records = TidemarkLog(partitions, ledgers)
    try:
        newest = (await run_yielding(book_in_pieces(records, ledgers, None))).book.newest
        if newest is None:
            return standing
        point = newest.newest.point
        published_here = region_ordinal_of(point.region_epoch) == own.ordinal
        if published_here and image.main_domain.acting_region == own.region:
            return own.point
        logs = _Logs(partitions, image, lineage)
        found = await run_yielding(_newest_held(records, ledgers, lineage, point, logs))
    except TidemarkError as error:
        _log.error("what this region has reached is not to be found in its logs: %s", error)
        return standing
    return max(standing, found)


async def cut_at(records: TidemarkLog, ledgers: LedgerTopics, point: TidemarkPoint) -> Cut | None:
    """Return the positions of a tidemark, giving way to others (INV-TR3); None where it is not known. Raises `TidemarkError`."""
    return (await run_yielding(book_in_pieces(records, ledgers, point))).book.positions(point)


def _newest_held(
    records: TidemarkLog,
    ledgers: LedgerTopics,
    lineage: Lineage,
    newest: TidemarkPoint,
    logs: "_Logs",
) -> Pieces[TidemarkPoint]:
    floor = lineage.fallback_of(newest).point if lineage.is_void(newest) else newest
    found = yield from point_without_lack(records, ledgers, floor, logs.lacks)
    base = lineage.entries[-1].base if lineage.entries else BEFORE_ALL
    if found < base:
        below = min(floor, base)
        below_base = yield from point_without_lack(records, ledgers, below, logs.lacks_below_base)
        found = max(found, below_base)
    return found


class _Logs:
    """What the logs here hold of the history that is in force, at one moment: each log is looked at once.

    A thousand tidemarks name the same logs again and again. Looking anew for each of them stopped the node's loop for
    seconds; it was fenced for that, and the next one, which began to lead then, did the same.
    """

    def __init__(self, partitions: PartitionTable, image: MetadataImage, lineage: Lineage) -> None:
        self._partitions = partitions
        self._image = image
        # Asked for each log of each tidemark: neither changes with the tidemark.
        self._held_of = cache(lineage.held_of)
        self._held_to: dict[LogKey, int] = {}

    def lacks(self, key: LogKey, position: int) -> bool:
        """Return whether this log keeps a tidemark from being reached that names `position` of it (INV-TKO2)."""
        if position == 0:
            return False
        partition = self._partitions.by_id(key.topic_id, key.partition)
        topic = self._image.topic_by_id(key.topic_id)
        if partition is None or topic is None or key.partition >= topic.partition_count:
            return True
        if position < partition.log.cleaning.holes_below:
            return True
        if key not in self._held_to:
            self._held_to[key] = min(partition.high_watermark, *self._held_ends(partition))
        return position > self._held_to[key]

    def lacks_below_base(self, key: LogKey, position: int) -> bool:
        """Return the same up to the base that the region was cut to: what it has deleted is not missed there (INV-FR8)."""
        is_deleted = key.topic_id in self._image.deleted
        if is_deleted and self._image.topic_by_id(key.topic_id) is None:
            return False
        return self.lacks(key, position)

    def _held_ends(self, partition: Partition) -> Iterator[int]:
        """Yield where the log ends, and where it leaves the history in force: its tail is not cut yet (T23)."""
        end = partition.log_end_offset
        yield end
        for leader_epoch, start in reversed(partition.log.epochs.entries()):
            held = self._held_of(region_epoch_of(leader_epoch))
            if held is not None and held.position_of(partition.key) < end:
                yield max(held.position_of(partition.key), start)
            end = start
