"""Where readers of this region are served that say their rack: what the metadata and the followers say of it, in one place.

INV-RPR1 a follower is named only while its own last fetch in this term says that it serves readers, and the metadata have it in sync,
         heard, and not about to stop: whoever is sent away is not sent back for long
INV-RPR3 while the leaders of partitions are spread no follower serves readers, and nobody is sent to one: leaders serve them (ADR 53)
INV-RPR4 a follower that has met damage serves again once it has read that place, and knows of no damage in that log: another one has it mended
         (`partitions.scrubber`), or the log was copied again, or is gone. It looks after a pause, which doubles with each look that is in vain
         and each time that it has to stop: a place that nobody mends (the open segment) has readers go back and forth less and less often
INV-RPR2 a follower serves by the image that it has, and by that of no other node (INV-RRD1)
Not here: what is told of nodes (`view`), what a follower shows (`replica_readers`).
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.handlers.dispatch.readers import ReaderCounts
from region_broker.log.failures import (
    CorruptRange,
    OffsetOutOfRange,
    PartitionFailed,
    SealedRecords,
)
from region_broker.partitions.table import PartitionTable

LOOK_MS: Final = 1_000
PAUSE_MS_MIN: Final = 5_000
PAUSE_MS_MAX: Final = 3_600_000

_log: Final = logging.getLogger("tidemark.replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderParts:
    """What is looked at. `life`: of this process. `serving`: the followers of which this node, as leader, knows that they serve readers.

    `is_open`: whether this node serves readers as a follower. `is_deleted_elsewhere`: whether a follower's log starts behind an offset.
    """

    region: str
    me: Member
    life: UUID
    image: Callable[[], MetadataImage]
    serving: Callable[[], frozenset[Member]]
    is_open: Callable[[], bool]
    is_deleted_elsewhere: Callable[[LogKey, int], bool]
    partitions: PartitionTable
    clock: Clock


class RegionReaders:
    """A `handlers.dispatch.readers.ReaderPlaces`."""

    def __init__(self, parts: ReaderParts) -> None:
        """Nobody was sent away yet."""
        self.counts = ReaderCounts()
        self._parts = parts
        self.is_damaged: Callable[[LogKey], bool] = _sound
        """Whether something of a log is known to be damaged here, and not mended."""
        self._met: dict[LogKey, int] = {}
        """Where readers have met damage that is not known to be mended: the offset, by log."""
        self._pause_ms = PAUSE_MS_MIN
        self._due_ms = 0
        self._of: tuple[MetadataImage, frozenset[Member]] | None = None
        self._by_rack: Mapping[str, Sequence[int]] = {}

    def nearer(self, rack: str) -> Sequence[int]:
        """See `ReaderPlaces`; looked up anew where the metadata or the followers have changed."""
        image, serving = self._parts.image(), self._parts.serving()
        if image.spread is not None or rack == self._own_rack(image):
            return ()
        if self._of is None or self._of[0] is not image or self._of[1] is not serving:
            self._by_rack = _by_rack(image, serving)
            self._of = image, serving
        return self._by_rack.get(rack, ())

    def have(self, key: LogKey, offset: int) -> bool:
        """See `ReaderPlaces`."""
        return not self._parts.is_deleted_elsewhere(key, offset)

    def serves(self, rack: str) -> bool:
        """See `ReaderPlaces`."""
        return self._parts.is_open() and rack == self._own_rack(self._parts.image())

    def stop_serving(self, key: LogKey, offset: int, name: str) -> None:
        """See `ReaderPlaces`."""
        if not self._met:
            _log.error(
                "this node serves no readers while it follows, until that is mended: %s is damaged, or sealed under a key that is not here, at %d or behind it", name, offset
            )  # fmt: skip
            self._put_off()
        self._met.setdefault(key, offset)

    def _put_off(self) -> None:
        self._due_ms = self._parts.clock.monotonic_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)

    async def run(self) -> None:
        """See again and again whether what readers have met is mended, until cancelled."""
        while True:
            await self._parts.clock.sleep_ms(LOOK_MS)
            if self._met and self._parts.clock.monotonic_ms() >= self._due_ms:
                await self.look()

    async def look(self) -> None:
        """Serve readers again where all that they have met is as it was written (INV-RPR4)."""
        for key, offset in [*self._met.items()]:
            if await self._is_sound(key, offset):
                del self._met[key]
        if self._met:
            self._put_off()
        else:
            _log.warning("what readers have met is mended: this node serves them again")

    async def _is_sound(self, key: LogKey, offset: int) -> bool:
        partition = self._parts.partitions.by_id(key.topic_id, key.partition)
        if partition is None:
            return True
        if partition.failed is not None or self.is_damaged(key):
            return False
        read = partial(partition.reader.read_raw, offset, 1)
        try:
            data = await self._parts.partitions.cold_reads.read(read)
            await asyncio.to_thread(partition.reader.opened, data)
        except (
            OffsetOutOfRange
        ):  # deleted, or copied again, and then not in sync before all is there
            return True
        except (CorruptRange, PartitionFailed, SealedRecords):
            return False
        return True

    def _own_rack(self, image: MetadataImage) -> str:
        node = image.node_of(self._parts.me)
        return "" if node is None else node.rack

    def may_serve(self, leader: Member, leader_epoch: LeaderEpoch) -> bool:
        """Return whether this node may serve readers as a follower of `leader` under its leader epoch (INV-RRD1)."""
        image, me = self._parts.image(), self._parts.me
        leadership, node = image.leadership, image.node_of(me)
        domain = image.domains.get(DEFAULT_DOMAIN)
        if self._met or leadership is None or node is None or domain is None:
            return False
        return (
            (leadership.leader, leadership.leader_epoch) == (leader, leader_epoch)
            and me in leadership.in_sync
            and node.is_eligible
            and node.life == self._parts.life
            and domain.acting_region == self._parts.region
            and image.spread is None
        )


def _sound(_key: LogKey) -> bool:
    return False


def _by_rack(image: MetadataImage, serving: frozenset[Member]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for _, node in sorted(image.nodes.items()):
        if node.rack and _is_sent_to(image, serving, node):
            found[node.rack] = (*found.get(node.rack, ()), node.node_id)
    return found


def _is_sent_to(image: MetadataImage, serving: frozenset[Member], node: NodeImage) -> bool:
    """Rule INV-RPR1."""
    leadership = image.leadership
    in_sync = () if leadership is None else leadership.in_sync
    return node.member in serving and node.member in in_sync and node.is_eligible
