"""Answers another region that asks for a range of a log which its disk has lost.

INV-RGS1  only sound, durable bytes below what both regions share leave, and none where a cleaning may have thinned them
         out (INV-SLG1, INV-PT6, T13)
INV-RGS2  an answer holds at most `RANGE_BYTES_MAX` and one batch; what memory has not is read in by a thread

Not here: what the other region makes of it (`partitions.mending`).
"""

from functools import partial
from typing import Final

from geo_replicator.lineage import LogKey
from idempotency.record_batch import BatchHeader, Buffer, iter_headers
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import CorruptRange, LogError
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.mending.messages import AskRange, RangeSent
from region_broker.region.mending.shared_logs import NothingShared, SharedLogs
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply

RANGE_BYTES_MAX: Final = 512 * 1024
NOT_SHARED: Final = "not-shared"
DAMAGED_HERE: Final = "damaged-here"
_ONE_BATCH: Final = 1


class RangeSide:
    """`register` it with the peer server once."""

    def __init__(self, partitions: PartitionTable, shared: SharedLogs) -> None:
        """Serve what `partitions` holds, as far as `shared` says."""
        self._partitions = partitions
        self._shared = shared

    def register(self, server: PeerServer) -> None:
        """Answer on `server`."""
        server.register(AskRange, self._ask_range)

    async def _ask_range(
        self, _session: PeerSession, message: AskRange, _attachment: memoryview
    ) -> Reply:
        try:
            key = LogKey.decode(message.key)
        except ValueError as error:
            raise PeerRefused("malformed", f"a log key is none: {error}") from error
        partition = self._admitted(key, message)
        wanted = message.from_offset, message.to_offset
        bytes_max = max(1, min(message.bytes_max, RANGE_BYTES_MAX))
        header, data = await sound_range(self._partitions.cold_reads, partition, wanted, bytes_max)
        self._admitted(key, message)  # the log may have been cut, the region fenced, meanwhile
        told = RangeSent(
            above_leader_epoch=header.leader_epoch,
            above_base_offset=header.base_offset,
            above_crc=header.crc,
        )
        return Reply(told, [data])

    def _admitted(self, key: LogKey, message: AskRange) -> Partition:
        """Return the log; raises `PeerRefused` unless all of the range is shared (INV-RGS1)."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None or partition.failed is not None:
            raise PeerRefused(NOT_SHARED, f"there is no log {message.key} here that runs")
        try:
            end = self._shared.end_of(key, message.region_epoch)
        except NothingShared as error:
            raise PeerRefused(NOT_SHARED, str(error)) from error
        start = max(partition.kept_from, partition.log.cleaning.holes_below)
        if not start <= message.from_offset < message.to_offset <= end:
            raise PeerRefused(
                NOT_SHARED,
                f"[{message.from_offset}, {message.to_offset}) is not within [{start}, {end}), which is here as it was"
                " written, and under a tidemark",
            )
        return partition


async def sound_range(
    cold_reads: ColdReads, partition: Partition, wanted: tuple[int, int], bytes_max: int
) -> tuple[BatchHeader, Buffer]:
    """Return the batch that begins where a range ends, and batches from its start on; raises `PeerRefused` (INV-RGS2)."""
    from_offset, to_offset = wanted
    read_raw = partition.reader.read_raw
    try:
        above = await cold_reads.read(partial(read_raw, to_offset, _ONE_BATCH, None))
        data = await cold_reads.read(partial(read_raw, from_offset, bytes_max, to_offset))
    except CorruptRange as error:
        raise PeerRefused(DAMAGED_HERE, f"it is damaged here, too: {error}") from error
    except LogError as error:
        raise PeerRefused(NOT_SHARED, f"it cannot be read here: {error}") from error
    header = _first(above)
    if header is None:
        raise PeerRefused(NOT_SHARED, f"nothing durable lies at {to_offset} here")
    return header, data


def _first(data: Buffer) -> BatchHeader | None:
    return next((header for _, header in iter_headers(data)), None)
