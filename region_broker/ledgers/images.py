"""Images of the transaction ledger: made beside everything else, in whatever role the node has; used by a load.

INV-LIG1  an image is used only if the ledger's batch that ends where it ends is the one it names, the ledger begins where
          it began, and nothing at or behind its end was compacted; else the one before it, else the whole ledger is read
INV-LIG2  an image ends at the high watermark of the moment, on a mirror, too: a takeover that comes at once cuts below it,
          but the older one ends a step before
INV-LIG3  what a load reads is bounded by an image, and by STEP_BYTES or an image's size of what came after it,
          whichever is more, and by what was appended while the last image was made
INV-LIG4  making one never holds the event loop for longer than a slice of SLICE_BYTES takes, works no more than a third
          of the time, and stops nothing if it fails

Not here: which rows make an image (`txn_coordinator.image`), the file (`image_file`).
"""

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from idempotency.ports import Clock
from idempotency.record_batch import BatchHeader, iter_headers
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.ledgers.image_file import (
    ImageFile,
    ImageHead,
    image_ends,
    image_path,
    write_image,
)
from region_broker.ledgers.rows import read_slices
from region_broker.log.failures import LogError
from region_broker.log.indexes.checked_file import FrameError
from region_broker.partitions.partition import Partition
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload
from txn_coordinator.image import LedgerImage
from txn_coordinator.ports import LedgerFailed

logger: Final = logging.getLogger(__name__)

STEP_BYTES: Final = 1 << 17
"""Some 800 rows: another node of the region that is to lead reads no more than that of each shard before it serves. A larger step
reads as many rows for its images, and only writes fewer small files."""
SLICE_BYTES: Final = 32 * 1024
_ROWS_AT_ONCE: Final = 2_000
PAUSE_MS: Final = 1_000
_RESTS_PER_WORK: Final = 2


class Partitions(Protocol):
    """Where partitions are found (`partitions.table.PartitionTable`)."""

    def get(self, name: str, partition: int) -> Partition | None:
        """Return the partition, or None if it is not here."""
        ...


@dataclass(slots=True)
class _Shard:
    """What is known of one shard's images."""

    size_bytes: int = 0
    """Of the newest image."""
    looked_to: int = -1
    """How far the ledger went when it was last tried."""


class LedgerImages:
    """`run` is the node's task that makes them; `newest` serves a load."""

    def __init__(
        self,
        partitions: Partitions,
        disk: Disk,
        clock: Clock,
        *,
        offload: Offload = asyncio.to_thread,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        """`offload` runs what blocks."""
        self._partitions = partitions
        self._disk = disk
        self._clock = clock
        self._offload = offload
        self.step_bytes = step_bytes
        """An image is made when a shard has grown by so much."""
        self.pause_ms = PAUSE_MS
        self._shards: dict[int, _Shard] = {}

    # ---- using

    async def newest(self, partition: Partition) -> ImageFile | None:
        """Return the newest image that is true of the shard as it is when this returns."""
        read: list[ImageFile] = []
        ends: list[int] = []
        await self._offload(lambda: ends.extend(self._ends(partition)))
        for end in ends:
            path = image_path(partition.log.folder, end)
            await self._offload(partial(self._read, path, read))
            if read and _is_true_of(partition, read[-1].head):
                return read[-1]
            read.clear()
        return None

    def _ends(self, partition: Partition) -> list[int]:
        """Return where images end, highest first (in a thread)."""
        folder = partition.log.folder
        try:
            return image_ends(self._disk, folder)
        except OSError as error:
            logger.warning("%s: images cannot be listed, all of it is read: %s", folder, error)
            return []

    def _read(self, path: Path, read: list[ImageFile]) -> None:
        """Append what is in the file to `read`, if it is sound (in a thread)."""
        try:
            read.append(ImageFile.decode(self._disk.read_file(path)))
        except FileNotFoundError:
            return  # newer ones have taken its place meanwhile
        except (FrameError, OSError) as error:
            logger.warning("%s is ignored, more of the ledger is read: %s", path, error)

    # ---- making

    async def run(self) -> None:
        """Make images as they are due, until cancelled."""
        while True:
            await self._clock.sleep_ms(self.pause_ms)
            for number in range(self._shard_count()):
                await self.renew(number)

    def _shard_count(self) -> int:
        number = 0
        while self._partitions.get(TRANSACTION_LEDGER, number) is not None:
            number += 1
        return number

    async def renew(self, number: int) -> bool:
        """Make an image of a shard if it has grown enough; return whether there is a new one."""
        partition = self._partitions.get(TRANSACTION_LEDGER, number)
        if partition is None or partition.failed is not None:
            return False
        shard = self._shards.setdefault(number, _Shard())
        end = partition.high_watermark
        if end <= partition.log.cleaning.holes_below:
            return False
        try:
            if not self._has_grown(partition, shard, end):
                return False
            shard.looked_to = end
            return await self._make(partition, shard, end)
        except (LogError, LedgerFailed, OSError) as error:
            logger.warning("%s: no image was made: %s", partition.tp, error)
            return False

    def _has_grown(self, partition: Partition, shard: _Shard, end: int) -> bool:
        """Return whether enough came after the newest image, and after the last attempt."""
        if shard.looked_to == end:
            return False
        if shard.looked_to < 0:
            ends = image_ends(self._disk, partition.log.folder)
            shard.looked_to = ends[0] if ends else partition.log_start_offset
            if ends:
                path = image_path(partition.log.folder, ends[0])
                shard.size_bytes = self._disk.file_size(path)
        if not partition.log_start_offset <= shard.looked_to <= end:
            shard.looked_to = partition.log_start_offset  # cut since
        enough = max(self.step_bytes, shard.size_bytes)
        return partition.log.segments.bytes_between(shard.looked_to, end, enough) >= enough

    async def _make(self, partition: Partition, shard: _Shard, end: int) -> bool:
        interruptions = partition.log.cleaning.interruptions
        image, offset = await self._base(partition)
        slices = read_slices(partition, offset, end, SLICE_BYTES)
        last: BatchHeader | None = None
        while partition.log.cleaning.interruptions == interruptions:
            started_ms = self._clock.monotonic_ms()
            part = next(slices, None)
            if part is None:
                break
            for row in part.rows:
                image.apply(row)
            last = part.last
            worked_ms = self._clock.monotonic_ms() - started_ms
            await self._clock.sleep_ms(worked_ms * _RESTS_PER_WORK)
        else:
            return False  # cut under it: what was read is of no history any more
        if last is None:
            return False
        head = _head_of(partition, last)

        def write() -> None:
            folder = partition.log.folder
            shard.size_bytes = write_image(self._disk, folder, head, image.rows())

        await self._offload(write)
        logger.info("%s: its image at %d has %d bytes", partition.tp, end, shard.size_bytes)
        return True

    async def _base(self, partition: Partition) -> tuple[LedgerImage, int]:
        """Return what a new image goes on from, and from which offset."""
        image = LedgerImage()
        found = await self.newest(partition)
        if found is None:
            return image, partition.log_start_offset
        for at, row in enumerate(found.rows, 1):
            image.apply(row)
            if at % _ROWS_AT_ONCE == 0:
                await self._clock.sleep_ms(0)
        return image, found.head.end_offset


def _head_of(partition: Partition, last: BatchHeader) -> ImageHead:
    return ImageHead(
        topic_id=partition.topic_id,
        shard=partition.tp.partition,
        start_offset=partition.log_start_offset,
        end_offset=last.next_offset,
        leader_epoch=last.leader_epoch,
        batch_crc=last.crc,
    )


def _is_true_of(partition: Partition, head: ImageHead) -> bool:
    """Return whether the ledger still holds all that the image was made of (INV-LIG1).

    A leader epoch belongs to one life of one region's node, and what is durable is never written again under it: so a
    log that holds the batch holds all that was before it, too, but for what compaction took. Below the clean point no
    image counts: a tombstone that it does not know of may have gone there. Then the log itself is short up to there.
    """
    whole_from = max(partition.log.cleaning.holes_below, partition.log_start_offset)
    if not whole_from < head.end_offset <= partition.high_watermark:
        return False
    try:
        data = partition.reader.read_raw(head.end_offset - 1, 1, head.end_offset)
    except LogError as error:
        logger.warning("%s: the image at %d is not used: %s", partition.tp, head.end_offset, error)
        return False
    headers = [header for _, header in iter_headers(data)]
    return len(headers) == 1 and head == _head_of(partition, headers[0])
