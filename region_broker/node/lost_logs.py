"""Logs that are gone from the disk of one of several nodes: who leads meanwhile, and when they count as copied again.

INV-NRP3  a node whose disk has lost a log does not lead while the region has another one in sync: nobody is to copy that it is empty, and the
          region has lost nothing. Once it is taken in again by a leader it holds all that is committed, and has lost nothing, either
Not here: which logs are gone (`partitions.table`), a region of one node (`region.folder`), logs that stop (`stepping_down`).
"""

import logging
from typing import Final
from uuid import UUID

from geo_replicator.history import NAMED_MAX
from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller.cluster_commands import DrainNode
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused
from region_broker.partitions.table import PartitionTable

AGAIN_MS: Final = 1_000

_log: Final = logging.getLogger("tidemark.replication")


class LostLogs:
    """`take_image` hears of each image; `let_another_lead` before this node leads."""

    def __init__(
        self, me: Member, life: UUID, metadata: MetadataStore, partitions: PartitionTable, clock: Clock
    ) -> None:  # fmt: skip
        """Look at the image as it is."""
        self._me = me
        self._life = life
        self._metadata = metadata
        self._partitions = partitions
        self._clock = clock
        self._was_out_of_sync = False
        self.take_image(metadata.image)

    def take_image(self, image: MetadataImage) -> None:
        """Take note where all that this disk had lost was copied again: a leader has taken this node in (INV-NRP3, INV-RPL4)."""
        leadership = image.leadership
        if leadership is None:
            return
        groups = {} if image.spread is None else image.spread.groups
        rows = [leadership, *groups.values()]
        if not any(self._me in row.in_sync for row in rows):
            self._was_out_of_sync = True
        elif any(self._me not in row.in_sync or row.leader == self._me for row in rows):
            return  # each group has to have taken it in, and none of them is copied from here
        elif self._was_out_of_sync:
            self._was_out_of_sync = False
            if lost := self._partitions.lost():
                self._partitions.take_note_of_lost()
                _log.warning(
                    "%d logs that were lost here were copied again: %s", len(lost), lost[:NAMED_MAX]
                )

    async def let_another_lead(self) -> None:
        """Return if this node may lead; where its disk has lost a log, another one in sync is to, and is waited for (INV-NRP3)."""
        told = False
        while self._partitions.lost() and (others := self._others_in_sync()):
            if any(node.is_eligible for node in others):
                await self._hand_over()
            elif not told:
                told = True
                names = ", ".join(str(node.node_id) for node in others)
                _log.error(
                    "logs are not on this disk any more, and node %s was in sync: it is waited for. If it is gone for good,"
                    " remove it from the region: what is left here is told then", names,
                )  # fmt: skip
            await self._clock.sleep_ms(AGAIN_MS)

    def _others_in_sync(self) -> list[NodeImage]:
        image = self._metadata.image
        in_sync = () if image.leadership is None else image.leadership.in_sync
        return [
            node
            for node in image.nodes.values()
            if node.member in in_sync and node.member != self._me
        ]

    async def _hand_over(self) -> None:
        """Take nothing on any more, in this life: the controller has another one lead."""
        _log.error(
            "a log of this node was lost, and others have it: another node is to lead, until this one is started anew"
        )
        try:
            await self._metadata.apply(DrainNode(self._me.node_id, self._life))
        except (CommandRefused, MetadataUnwritable) as error:
            _log.warning("that is asked for again: %s", error)
