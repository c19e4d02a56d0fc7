"""Logs that are gone from the disk of one of several nodes: who leads meanwhile, and when they count as copied again.

INV-NRP3  a node whose disk has lost a log does not lead while the region has another one in sync: nobody is to copy that it is empty, and the
          region has lost nothing. Once it is in sync, and holds all that it has lost, it has lost nothing, either
INV-NRP5  that it holds all is no word of the metadata, but its own: in this life it has compared each such log with that of who leads, and has
          durably what that one said that it has. Else the word may be for a former life:
          1. A leader proposes to take this node in, which has all. 2. The node dies, and its disk loses a log. 3. It starts anew. 4. The
          proposal is carried out, late: it is in sync, with an empty log. 5. The leader is lost, and this node is elected.
Not here: which logs are gone (`partitions.table`), a region of one node (`region.folder`), logs that stop (`stepping_down`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from geo_replicator.history import NAMED_MAX
from idempotency.fencing import EpochExhausted
from idempotency.identity import LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster.elections import candidates, elect
from region_broker.controller.cluster_image import Leadership, NodeImage
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.mending.copying_anew import AskLogHeld, LogHeld
from region_broker.region.mending.node_asking import asked
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable

AGAIN_MS: Final = 1_000
LOOK_MS: Final = 200
"""Soon: who is in sync, and not sure yet that it has all, had better not lead."""

_log: Final = logging.getLogger("tidemark.replication")


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLogsParts:
    """What is looked at. `copies`: whether a log was compared with the leader's of a leader epoch, and is copied from there now.

    `damaged`: who says that it is.
    """

    me: Member
    metadata: MetadataStore
    partitions: PartitionTable
    clock: Clock
    line: LineParts
    copies: Callable[[LogKey, LeaderEpoch], bool]
    damaged: Callable[[], frozenset[Member]]


class LostLogs:
    """`take_image` hears of each image; `run` is its only task; `let_another_lead` is called before this node leads."""

    def __init__(self, parts: LostLogsParts) -> None:
        """Nobody was asked yet."""
        self._parts = parts
        self._told: tuple[LeaderEpoch, dict[LogKey, int]] | None = None
        """How far the leader's logs went at some time in this life, under which leader epoch."""

    # -- copied again ----------------------------------------------------------------------------

    def take_image(self, image: MetadataImage) -> None:
        """Take note where this node is in sync, and has copied again all that its disk had lost (INV-NRP3, INV-NRP5).

        While leaders are spread one node cannot say that of all logs: it is looked at when they are gathered.
        """
        leadership, parts = image.leadership, self._parts
        if leadership is None or image.spread is not None or parts.me not in leadership.in_sync:
            return
        lost = parts.partitions.lost()
        if lost and self._has_all(self._lost_logs(lost), leadership):
            parts.partitions.take_note_of_lost()
            _log.warning(
                "%d logs that were lost here were copied again: %s", len(lost), lost[:NAMED_MAX]
            )

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self._parts.clock.sleep_ms(LOOK_MS)
            await self.look()

    async def look(self) -> None:
        """Ask who leads how far its logs go that this disk has lost; once for each of them, and each leader epoch."""
        lost = self._parts.partitions.lost()
        if not lost:
            return
        leadership = self._parts.metadata.image.leadership
        if self._parts.metadata.image.spread is not None:
            return
        if leadership is not None and leadership.leader not in {None, self._parts.me}:
            for partition in self._lost_logs(lost):
                await self._ask(partition, leadership)
        self.take_image(self._parts.metadata.image)

    def _lost_logs(self, lost: list[str]) -> list[Partition]:
        names = set(lost)
        return [each for each in self._parts.partitions if str(each.tp) in names]

    async def _ask(self, partition: Partition, leadership: Leadership) -> None:
        leader, leader_epoch = leadership.leader, leadership.leader_epoch
        if self._told is None or self._told[0] != leader_epoch:
            self._told = leader_epoch, {}
        _, ends = self._told
        if leader is None or partition.key in ends:
            return
        ask = AskLogHeld(
            leader_epoch=leader_epoch, topic_id=partition.topic_id, partition=partition.tp.partition, is_running_here=True
        )  # fmt: skip
        try:
            held, _ = await asked(self._parts.line, leader, ask, LogHeld)
        except (PeerRefused, PeerUnreachable) as error:
            _log.info("%s, which was lost here: node %s says: %s", partition.tp, leader, error)
            return
        if held.log_end_offset >= 0:
            ends[partition.key] = held.log_end_offset

    def _has_all(self, logs: list[Partition], leadership: Leadership) -> bool:
        if self._told is None or self._told[0] != leadership.leader_epoch:
            return False
        ends = self._told[1]
        return all(
            each.failed is None
            and (end := ends.get(each.key)) is not None
            and self._parts.copies(each.key, leadership.leader_epoch)
            and each.log.durability.durable_offset >= end
            for each in logs
        )

    # -- leading ---------------------------------------------------------------------------------

    async def let_another_lead(self) -> None:
        """Return if this node may lead; where its disk has lost a log, another one in sync is to, and is waited for (INV-NRP3)."""
        told = False
        while self._parts.partitions.lost() and (others := self._others_in_sync()):
            other = next((each for each in self._candidates() if each != self._parts.me), None)
            if other is not None:
                await self._have_elected(other)
            elif not told:
                told = True
                names = ", ".join(str(node.node_id) for node in others)
                _log.error(
                    "logs are not on this disk any more, and node %s was in sync: it is waited for. If it is gone for good,"
                    " remove it from the region: what is left here is told then", names,
                )  # fmt: skip
            await self._parts.clock.sleep_ms(AGAIN_MS)

    def _others_in_sync(self) -> list[NodeImage]:
        image = self._parts.metadata.image
        in_sync = () if image.leadership is None else image.leadership.in_sync
        return [
            node
            for node in image.nodes.values()
            if node.member in in_sync and node.member != self._parts.me
        ]

    def _candidates(self) -> list[Member]:
        return candidates(self._parts.metadata.image, None, self._parts.damaged())

    async def _have_elected(self, other: Member) -> None:
        _log.error(
            "a log of this node was lost, and node %s has all that was committed: it is to lead, and this one copies that log again", other
        )  # fmt: skip
        metadata = self._parts.metadata
        region_epoch = metadata.image.main_domain.region_epoch
        try:
            await metadata.apply(elect(metadata.image, region_epoch, other))
        except (CommandRefused, MetadataUnwritable, EpochExhausted) as error:
            _log.warning("that is asked for again: %s", error)
