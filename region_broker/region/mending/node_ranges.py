"""Nodes of one region give each other a range that a disk has lost: the port `partitions.mending.RangeSource`, and its other side.

INV-NRG1 only committed, sound bytes leave, and none where a cleaning may have thinned them out: each node cleans its logs by itself, so
         below that their bytes differ (T13)
INV-NRG2 nothing is taken from a node whose batch behind the range is not the one here, or of which nothing committed lies behind it: a
         leader epoch is led in once (INV-MH1), so two logs that have a batch alike have all below it alike (KIP-101)
INV-NRG3 asked are who leads, and who is in sync: the metadata know of no other node that it has all that was committed

Not here: whether the bytes fit (`log.scrubbing.damage`), other regions (`range_source`), whole logs (`copying_anew`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from idempotency.identity import LeaderEpoch, Member
from region_broker.controller.metadata_image import MetadataImage
from region_broker.log.failures import NotMended
from region_broker.partitions.mending import RangeSource, Wanted
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.mending.node_asking import asked
from region_broker.region.mending.range_side import (
    NOT_SHARED,
    RANGE_BYTES_MAX,
    sound_range,
)
from region_broker.region.mending.told_ranges import judged
from region_broker.region.peers.protocol import PeerMessage, PeerRefused
from region_broker.region.peers.sessions import Handlers, NodeSession, Reply


class AskNodeRange(PeerMessage, frozen=True, kw_only=True):
    """Send me whole batches from `from_offset` on, up to `to_offset`, at which a committed batch begins here."""

    topic_id: UUID
    partition: int
    from_offset: int
    to_offset: int
    bytes_max: int


class NodeRangeSent(PeerMessage, frozen=True, kw_only=True):
    """The batches are attached. The other fields are those of the batch that begins at the asked `to_offset` there."""

    above_leader_epoch: LeaderEpoch
    above_base_offset: int
    above_crc: int


class NodeRangeSide:
    """Answers the other nodes; `serve_on` once, before the port is bound."""

    def __init__(self, partitions: PartitionTable) -> None:
        """Serve what `partitions` holds."""
        self._partitions = partitions

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer what comes on such connections."""
        handlers.register(AskNodeRange, self._on_ask)

    async def _on_ask(
        self, _session: NodeSession, message: AskNodeRange, _attachment: memoryview
    ) -> Reply:
        partition = self._admitted(message)
        wanted = message.from_offset, message.to_offset
        bytes_max = max(1, min(message.bytes_max, RANGE_BYTES_MAX))
        header, data = await sound_range(self._partitions.cold_reads, partition, wanted, bytes_max)
        self._admitted(message)  # the log may have been cut, or cleaned, meanwhile
        told = NodeRangeSent(
            above_leader_epoch=header.leader_epoch,
            above_base_offset=header.base_offset,
            above_crc=header.crc,
        )
        return Reply(told, [data])

    def _admitted(self, message: AskNodeRange) -> Partition:
        """Return the log; raises `PeerRefused` unless all of the range may leave (INV-NRG1)."""
        partition = self._partitions.by_id(message.topic_id, message.partition)
        if partition is None or partition.failed is not None:
            raise PeerRefused(NOT_SHARED, "there is no such log here that runs")
        start = max(partition.kept_from, partition.log.cleaning.holes_below)
        end = partition.high_watermark
        if not start <= message.from_offset < message.to_offset < end:
            raise PeerRefused(
                NOT_SHARED,
                f"[{message.from_offset}, {message.to_offset}) is not within [{start}, {end}), which is here as it was"
                " written, and committed",
            )
        return partition


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRanges:
    """Asks the other nodes."""

    me: Member
    image: Callable[[], MetadataImage]
    line: LineParts

    def _others(self) -> list[Member]:
        """Return whom to ask, who leads first (INV-NRG3)."""
        leadership = self.image().leadership
        if leadership is None:
            return []
        others = [member for member in leadership.in_sync if member != self.me]
        return sorted(others, key=lambda member: (member != leadership.leader, member))

    async def piece(self, partition: Partition, wanted: Wanted) -> bytes:
        """See `RangeSource`."""
        message = AskNodeRange(
            topic_id=partition.topic_id,
            partition=partition.tp.partition,
            from_offset=wanted.from_offset,
            to_offset=wanted.to_offset,
            bytes_max=RANGE_BYTES_MAX,
        )
        refusals = []
        for member in self._others():
            try:
                asking = asked(self.line, member, message, NodeRangeSent)
                return await judged(asking, wanted.above)
            except NotMended as error:
                refusals.append(f"node {member.node_id}: {error}")
        raise NotMended("; ".join(refusals) or "no other node of this region is in sync")


@dataclass(frozen=True, slots=True)
class NearestFirst:
    """Asks one source after the other; what each one says is told where none gives anything."""

    sources: tuple[RangeSource, ...]

    async def piece(self, partition: Partition, wanted: Wanted) -> bytes:
        """See `RangeSource`."""
        refusals = []
        for source in self.sources:
            try:
                return await source.piece(partition, wanted)
            except NotMended as error:
                refusals.append(str(error))
        raise NotMended("; ".join(refusals))
