"""The leader of data groups writes the markers that the coordinator, at the leader of the main group, sends it (ADR 53).

INV-AMT1 a marker is written only for whoever the metadata here name as the leader of the main group, under the leader epoch that it names, and
         only into a log that this node leads under the leader epoch that it names for that: who was deposed writes nothing
INV-AMT2 `DONE` is said once the marker is below the high watermark (C35); the offset beside it is the high watermark by then
INV-AMT3 an answer waits `SETTLED_WITHIN_S` at most: what is not committed by then is `RETRY`, and found in the log when it comes again (T6)
Not here: appending (`ledgers.marker_channel`, by the same code as at the coordinator's node), who sends (`marker_sending`).
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from idempotency.identity import LeaderEpoch, LogKey, Member, TopicName, TopicPartition
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.leader_messages import (
    LedLog,
    WriteMarkers,
    WrittenMarkers,
    main_epoch_of,
)
from region_broker.region.peers.protocol import NOT_LEADING, PeerRefused
from region_broker.region.peers.sessions import Handlers, NodeSession
from txn_coordinator.ports import MarkerOrder, MarkerResult

SETTLED_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingParts:
    """What it is joined with.

    `leads_under`: under which leader epoch this node leads a log in a data group that is open. `write`: writes orders to partitions that this
    node leads (`ledgers.marker_channel.PartitionMarkerChannel.write_here`).
    """

    image: Callable[[], MetadataImage]
    partitions: PartitionTable
    leads_under: Callable[[LogKey], LeaderEpoch | None]
    write: Callable[[Sequence[MarkerOrder]], None]


class _Collected:
    """A `MarkerListener` of the orders of one message."""

    closed = False

    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self._left = 0
        self.results: dict[tuple[MarkerOrder, TopicPartition], tuple[str, int]] = {}
        self.settled = asyncio.Event()

    def expect(self, count: int) -> None:
        self._left += count

    def begun(self) -> None:
        """All orders are written or refused: there may be nothing to wait for."""
        if self._left == 0:
            self.settled.set()

    def marked(self, order: MarkerOrder, tp: TopicPartition, result: MarkerResult) -> None:
        partition = self._partitions.get(tp.topic, tp.partition)
        end = -1 if partition is None else partition.high_watermark  # INV-AMT2
        self.results[order, tp] = result.name, end
        self._left -= 1
        if self._left == 0:
            self.settled.set()


class MarkerTaking:
    """`serve_on` before the port is bound."""

    def __init__(self, parts: TakingParts) -> None:
        """Take nothing yet."""
        self._parts = parts

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Take markers of the leader of the main group."""
        handlers.register(WriteMarkers, self._on_write)

    async def _on_write(
        self, session: NodeSession, message: WriteMarkers, _attachment: memoryview
    ) -> WrittenMarkers:
        self._check(session.member, message.main_epoch)
        places = [self._place_of(log) for log in message.logs]
        collected = _Collected(self._parts.partitions)
        orders: list[MarkerOrder] = []
        for marker in message.markers:
            found = [places[log] for log in marker.logs if 0 <= log < len(places)]
            led = tuple(tp for tp in found if tp is not None)
            orders.append(
                MarkerOrder(
                    transactional_id=marker.transactional_id, partitions=led, producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch, commit=marker.commit, coordinator_epoch=marker.coordinator_epoch,
                    decision=marker.decision, tv2=marker.tv2, listener=collected,
                )
            )  # fmt: skip
            collected.expect(len(led))
        self._parts.write(orders)
        collected.begun()
        await _within(collected.settled, SETTLED_WITHIN_S)
        retry = MarkerResult.RETRY.name, -1
        return WrittenMarkers(
            results=tuple(
                tuple(
                    retry if (tp := _at(places, log)) is None else collected.results.get((order, tp), retry)
                    for log in marker.logs
                )
                for marker, order in zip(message.markers, orders, strict=True)
            )
        )  # fmt: skip

    def _check(self, sender: Member, main_epoch: LeaderEpoch) -> None:
        present = main_epoch_of(self._parts.image(), sender)
        if present != main_epoch:
            raise PeerRefused(
                NOT_LEADING,
                f"node {sender} sent markers as the leader of the main group under leader epoch {main_epoch}: here it is {present}",
            )

    def _place_of(self, log: LedLog) -> TopicPartition | None:
        """Return the partition of a log that this node leads under that leader epoch, None where it does not (INV-AMT1)."""
        topic = self._parts.image().topic_by_id(log.topic_id)
        if topic is None or self._parts.leads_under(log.key) != log.leader_epoch:
            return None
        return TopicPartition(TopicName(topic.name), log.partition)


def _at(places: Sequence[TopicPartition | None], log: int) -> TopicPartition | None:
    return places[log] if 0 <= log < len(places) else None


async def _within(event: asyncio.Event, seconds: float) -> None:
    """Return when it is set, or when the time is over."""
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(event.wait())
        await asyncio.wait((waiting,), timeout=seconds)
        waiting.cancel()
