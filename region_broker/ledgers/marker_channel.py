"""Writes transaction markers to the partitions of this node, and hands on those of others: `txn_coordinator.ports.MarkerChannel`.

INV-AM1  DONE means below the high watermark, and for `__consumer_offsets` applied to group state (C35, P14)
INV-AM2  group state hears of a marker once, in the step that appended it, so that it sees markers and offsets
         in log order; a repeat is not told: the next transaction's offsets may be staged by then (T6, B5)
INV-AM3  all markers that one call brings for a partition are one write, and wait together
INV-AM4  where leaders are spread, a marker is written by the node that leads its partition, by the same code: what another one leads is
         not written here, whatever this node's copy says
Not here: retrying (`txn_coordinator.serving.shard_driver`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from idempotency.identity import LogKey, ProducerId, TopicPartition
from idempotency.ports import Clock
from idempotency.record_batch import ControlType, MarkerFacts
from idempotency.said_seldom import SaidSeldom
from region_broker.controller.metadata_image import OFFSETS_LEDGER, MetadataImage
from region_broker.ledgers.txn_log import Partitions
from region_broker.partitions.admission import AppendOutcome, AppendVerdict
from region_broker.partitions.appending.marker_writes import MarkerBatch
from txn_coordinator.ports import MarkerOrder, MarkerResult

_LOG: Final = logging.getLogger(__name__)

_RESULT_OF: Final = {
    AppendVerdict.STALE_PRODUCER_EPOCH: MarkerResult.SUPERSEDED,
    AppendVerdict.COORDINATOR_FENCED: MarkerResult.FENCED,
    AppendVerdict.NOT_LEADER: MarkerResult.RETRY,
    AppendVerdict.STORAGE_FAILED: MarkerResult.STOPPED,
}
_WRITTEN: Final = (AppendVerdict.APPENDED, AppendVerdict.MARKER_ALREADY_APPLIED)


class _Marker(NamedTuple):
    """One order, and the marker that it puts into each of its partitions."""

    order: MarkerOrder
    batch: MarkerBatch


class LogMarkers(NamedTuple):
    """Markers for one partition that another node leads."""

    tp: TopicPartition
    key: LogKey
    orders: Sequence[MarkerOrder]


class MarkersApart(Protocol):
    """The way to partitions that other nodes lead (`region.cluster.marker_sending.MarkerSending`)."""

    def is_apart(self, key: LogKey) -> bool:
        """Return whether a log is in a data group now, whoever leads it."""
        ...

    def write(self, found: Sequence[LogMarkers]) -> None:
        """Have markers written, in order; each listener is told later."""
        ...


class _Written:
    """Markers of one partition that wait for one commit."""

    __slots__ = ("_orders", "_tp")

    def __init__(self, tp: TopicPartition, orders: list[MarkerOrder]) -> None:
        self._tp = tp
        self._orders = orders

    def committed(self) -> None:
        """See `CommitListener`."""
        self._notify(MarkerResult.DONE)

    def not_committed(self, error: Exception) -> None:
        """See `CommitListener`: the retry finds the decision applied, or writes it (T6)."""
        _LOG.info("markers of %s are tried again: %s", self._tp, error)
        self._notify(MarkerResult.RETRY)

    def _notify(self, result: MarkerResult) -> None:
        for order in self._orders:
            order.listener.marked(order, self._tp, result)


class PartitionMarkerChannel:
    """Markers into partitions that this node leads."""

    def __init__(
        self,
        partitions: Partitions,
        clock: Clock,
        *,
        image: Callable[[], MetadataImage],
        on_offsets_marker: Callable[[int, ProducerId, bool], None],
    ) -> None:
        """Take where partitions and topics are found.

        `on_offsets_marker(shard, producer_id, commit)` applies a marker to group state, at once.
        """
        self._partitions = partitions
        self._clock = clock
        self._image = image
        self._on_offsets_marker = on_offsets_marker
        self._said_refused = SaidSeldom(clock)
        self.apart: MarkersApart | None = None
        """Set where this region has several nodes."""

    def write(self, orders: Sequence[MarkerOrder]) -> None:
        """Write the markers of all orders, or have them written (INV-AM4); repeats of a decision are confirmed without writing (T6)."""
        apart = self.apart
        if apart is None or self._image().spread is None:
            self.write_here(orders)
            return
        here: list[MarkerOrder] = []
        elsewhere: dict[TopicPartition, tuple[LogKey, list[MarkerOrder]]] = {}
        for order in orders:
            own: list[TopicPartition] = []
            for tp in order.partitions:
                partition = self._partitions.get(tp.topic, tp.partition)
                if partition is None or not apart.is_apart(partition.key):
                    own.append(tp)
                    continue
                elsewhere.setdefault(tp, (partition.key, []))[1].append(order)
            if len(own) == len(order.partitions):
                here.append(order)
            elif own:
                here.append(replace(order, partitions=tuple(own)))
        if elsewhere:
            apart.write([LogMarkers(tp, *found) for tp, found in elsewhere.items()])
        self.write_here(here)

    def write_here(self, orders: Sequence[MarkerOrder]) -> None:
        """Write the markers of all orders to partitions that this node leads."""
        wall_ms = self._clock.wall_ms()
        of_partition: dict[TopicPartition, list[_Marker]] = {}
        for order in orders:
            marker = _Marker(order, _batch(order, wall_ms))
            for tp in order.partitions:
                of_partition.setdefault(tp, []).append(marker)
        for tp, markers in of_partition.items():
            self._write_to(tp, markers)

    def _write_to(self, tp: TopicPartition, markers: list[_Marker]) -> None:
        partition = self._partitions.get(tp.topic, tp.partition)
        if partition is None:
            known = self._image().topics.get(tp.topic)
            gone = known is None or tp.partition >= known.partition_count
            result = MarkerResult.GONE if gone else MarkerResult.RETRY
            for marker in markers:
                marker.order.listener.marked(marker.order, tp, result)
            return
        outcomes = partition.writer.append_markers([marker.batch for marker in markers])
        if tp.topic == OFFSETS_LEDGER:
            self._notify_groups(tp.partition, markers, outcomes)
        written: list[MarkerOrder] = []
        next_offset = 0
        for marker, outcome in zip(markers, outcomes, strict=True):
            if outcome.verdict in _WRITTEN:
                written.append(marker.order)
                next_offset = max(next_offset, outcome.next_offset)
            else:
                self._refused(marker.order, tp, outcome)
        if written:
            partition.commits.notify(next_offset, _Written(tp, written))

    def _refused(self, order: MarkerOrder, tp: TopicPartition, outcome: AppendOutcome) -> None:
        result = _RESULT_OF[outcome.verdict]
        if result is not MarkerResult.RETRY and self._said_refused.is_due():
            _LOG.warning(
                "marker for %s not written: %s. Said once a minute, of any partition", tp, outcome.detail
            )  # fmt: skip
        order.listener.marked(order, tp, result)

    def _notify_groups(
        self, shard: int, markers: list[_Marker], outcomes: list[AppendOutcome]
    ) -> None:
        for marker, outcome in zip(markers, outcomes, strict=True):
            if outcome.verdict is AppendVerdict.APPENDED:
                order = marker.order
                self._on_offsets_marker(shard, order.producer_id, order.commit)


def _batch(order: MarkerOrder, wall_ms: int) -> MarkerBatch:
    facts = MarkerFacts(
        order.producer_id,
        order.producer_epoch,
        ControlType.COMMIT if order.commit else ControlType.ABORT,
        order.coordinator_epoch,
        order.decision,
        wall_ms,
    )
    return MarkerBatch(facts, tv2=order.tv2)
