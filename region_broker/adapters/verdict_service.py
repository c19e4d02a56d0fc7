"""The final word on a transaction, from the acting region's log and lineage (rule T29).

INV-VS1  the answer is never guessed: `lost` needs a record that is not in the world's log, `committed` and
         `aborted` need the marker, anything else is `open`
INV-VS2  only the acting region answers: a mirror may not have copied what decides

The question is a record's position and, where known, the region epoch under which it was written: after a
failover another record may lie at the same offset.
"""

from dataclasses import dataclass

from idempotency.fencing import region_epoch_of
from idempotency.record_batch import BatchHeader, ControlType, iter_headers, read_marker
from region_broker.adapters.failover_ports import MetadataSide
from region_broker.handlers.services import RegionView
from region_broker.replication.partition import Partition
from region_broker.replication.partition_table import PartitionTable

_READ_BYTES = 1024 * 1024


class VerdictRefused(Exception):
    """No verdict can be given here; `status` is the HTTP status that says why."""

    def __init__(self, status: int, code: str, reason: str) -> None:
        """Keep the code beside the text."""
        super().__init__(reason)
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class GivenVerdict:
    """`verdict` is committed, aborted, lost or open; `why` is for people."""

    verdict: str
    why: str


class VerdictService:
    """Answers for the partitions of this node."""

    def __init__(
        self, partitions: PartitionTable, metadata: MetadataSide, region: RegionView
    ) -> None:
        """Read from `partitions` while `region` acts."""
        self._partitions = partitions
        self._metadata = metadata
        self._region = region

    @property
    def refusal(self) -> type[VerdictRefused]:
        """Return the exception of refused questions."""
        return VerdictRefused

    def verdict(
        self, topic: str, partition: int, offset: int, region_epoch: int | None
    ) -> GivenVerdict:
        """Return the verdict on the record at `offset`; raises `VerdictRefused`."""
        if not self._region.acting:
            raise VerdictRefused(
                409, "not-acting", f"ask the acting region: {self._region.reason_not_acting}"
            )
        found = self._partitions.get(topic, partition)
        if found is None:
            raise VerdictRefused(404, "unknown-partition", f"there is no {topic}-{partition}")
        if offset < found.log_start_offset:
            raise VerdictRefused(
                404, "expired", f"{topic}-{partition} begins at {found.log_start_offset} now"
            )
        header = _batch_at(found, offset)
        if header is None:
            return _beyond_the_end(self._region.region_epoch, region_epoch, offset)
        written_under = int(region_epoch_of(header.leader_epoch))
        if region_epoch is not None and written_under != region_epoch:
            return GivenVerdict(
                "lost",
                f"offset {offset} was written under region epoch {written_under}, not {region_epoch}:"
                " the failover in between cut the record off",
            )
        if not header.is_transactional:
            return GivenVerdict("committed", "a plain record, durable")
        return _decided(found, header)


def _beyond_the_end(acting_epoch: int, asked_epoch: int | None, offset: int) -> GivenVerdict:
    if asked_epoch is None or asked_epoch == acting_epoch:
        raise VerdictRefused(404, "never-written", f"no record was ever written at {offset}")
    return GivenVerdict("lost", f"the log ends before {offset}: the failover cut the record off")


def _batch_at(partition: Partition, offset: int) -> BatchHeader | None:
    if offset >= partition.high_watermark:
        return None
    data = partition.read_raw(offset, _READ_BYTES)
    return next((header for _, header in iter_headers(data) if header.last_offset >= offset), None)


def _decided(partition: Partition, header: BatchHeader) -> GivenVerdict:
    """Look for the first marker of the producer behind the batch."""
    position = header.next_offset
    while position < partition.high_watermark:
        data = partition.read_raw(position, _READ_BYTES)
        for start, each in iter_headers(data):
            if each.is_control and each.producer_id == header.producer_id:
                marker = read_marker(data[start : start + each.size_bytes])
                committed = marker.control_type is ControlType.COMMIT
                return GivenVerdict(
                    "committed" if committed else "aborted",
                    f"the marker lies at {each.base_offset}",
                )
            position = each.next_offset
    return GivenVerdict("open", "no marker yet: the transaction is open or being completed")
