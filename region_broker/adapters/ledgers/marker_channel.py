"""Writes transaction markers to the partitions of this node: `txn_coordinator.ports.MarkerChannel`.

INV-AM1  DONE means below the high watermark, and for `__consumer_offsets` applied to group state (C35, P14)
INV-AM2  group state hears of a marker once, in the step that appended it, so that it sees markers and offsets
         in log order; a repeat is not told: the next transaction's offsets may be staged by then (T6, B5)
Not here: retrying (`txn_coordinator.shard_driver`).
"""

import logging
from collections.abc import Callable
from typing import Final

from idempotency.ports import Clock
from idempotency.record_batch import ControlType
from region_broker.adapters.ledgers.txn_log import Partitions
from region_broker.controller.metadata_image import OFFSETS_LEDGER, MetadataImage
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.replication.admission import AppendOutcome, AppendVerdict
from region_broker.replication.partition import Partition
from txn_coordinator.ports import MarkerOrder, MarkerResult

_LOG: Final = logging.getLogger(__name__)

_RESULT_OF: Final = {
    AppendVerdict.STALE_PRODUCER_EPOCH: MarkerResult.SUPERSEDED,
    AppendVerdict.COORDINATOR_FENCED: MarkerResult.FENCED,
    AppendVerdict.NOT_LEADER: MarkerResult.RETRY,
    AppendVerdict.STORAGE_FAILED: MarkerResult.RETRY,
}
_WRITTEN: Final = (AppendVerdict.APPENDED, AppendVerdict.MARKER_ALREADY_APPLIED)


class PartitionMarkerChannel:
    """Markers into partitions that this node leads."""

    def __init__(
        self,
        partitions: Partitions,
        clock: Clock,
        *,
        image: Callable[[], MetadataImage],
        on_offsets_marker: Callable[[int, int, bool], None],
    ) -> None:
        """Take where partitions and topics are found.

        `on_offsets_marker(shard, producer_id, commit)` applies a marker to group state, at once.
        """
        self._partitions = partitions
        self._clock = clock
        self._image = image
        self._on_offsets_marker = on_offsets_marker

    async def write(self, marker: MarkerOrder) -> MarkerResult:
        """Write one marker; repeats of a decision are confirmed without writing (T6)."""
        partition = self._partitions.get(marker.tp.topic, marker.tp.partition)
        if partition is None:
            known = self._image().topics.get(marker.tp.topic)
            gone = known is None or marker.tp.partition >= known.partition_count
            return MarkerResult.GONE if gone else MarkerResult.RETRY
        outcome = self._append(partition, marker)
        if outcome.verdict not in _WRITTEN:
            result = _RESULT_OF[outcome.verdict]
            if result is not MarkerResult.RETRY:
                _LOG.warning("marker for %s not written: %s", marker.tp, outcome.detail)
            return result
        try:
            await partition.wait_committed(outcome.next_offset)
        except (PartitionFailed, NotLeader):
            return MarkerResult.RETRY  # the retry finds the decision applied, or writes it (T6)
        return MarkerResult.DONE

    def _append(self, partition: Partition, marker: MarkerOrder) -> AppendOutcome:
        outcome = partition.append_marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            control_type=ControlType.COMMIT if marker.commit else ControlType.ABORT,
            coordinator_epoch=marker.coordinator_epoch,
            decision=marker.decision,
            timestamp_ms=self._clock.wall_ms(),
            tv2=marker.tv2,
        )
        if outcome.verdict is AppendVerdict.APPENDED and marker.tp.topic == OFFSETS_LEDGER:
            self._on_offsets_marker(marker.tp.partition, marker.producer_id, marker.commit)
        return outcome
