"""One round of retention at a node, by its role: what is held is looked at once, then all logs are asked, in pieces.

INV-NRT1  a round ends where the role does under which it was asked what is held, and what was reached: the next one asks anew
         1. A node follows the leader of its region, and a round goes by what the region had reached when it began. 2. In between the pieces
         the node, or another region, takes over. 3. What goes by what was reached before could be needed to take that back.

Not here: any rule of what is held (`region.tidemarks.retention_hold`, `region.tidemarks.told_holds`), when a round is due.
"""

from collections.abc import Callable
from dataclasses import dataclass

from region_broker.controller.metadata_image import DEFAULT_DOMAIN
from region_broker.node.holding import Holding
from region_broker.node.replication import Replication
from region_broker.node.storage import Storage
from region_broker.partitions.upkeep import no_bound, no_copy
from region_broker.region.tidemarks.retention_hold import HoldParts
from region_broker.wire.cooperative_yield import give_way


@dataclass(frozen=True, slots=True, kw_only=True)
class Retaining:
    """`replication` and `holding` where the region has other nodes; `leads`: whether this one decides for its region."""

    storage: Storage
    hold_parts: HoldParts
    leads: Callable[[], bool]
    replication: Replication | None
    holding: Holding | None

    async def run(self) -> None:
        """Run one round; others are served in between."""
        replication, hold = self.replication, self.storage.hold
        leads = replication is None or self.leads()
        if leads:
            await hold.look(self.hold_parts)
            if self.holding is not None:
                await self.holding.telling.tell()
        # A log of a follower begins where its leader's does: that one's retention deletes. What is forgotten here is its own.
        # Who is about to lead does not know yet what is to be kept (INV-RH5).
        if not leads and not (replication is not None and replication.leadership.follows):
            return
        reached_of = no_bound if replication is None else await replication.reached_of()
        if reached_of is None:
            return  # the next round does it
        keeps_rounds = no_copy if replication is None else replication.keeps_rounds
        hold_of = hold.of
        # It has waited for others: who led then may lead a data group by now.
        if not (replication is None or self.leads()) and self.holding is not None:
            hold_of = self.holding.told.of  # INV-THD1
        role = self._role()
        for _ in self.storage.partitions.upkeep.maintain(hold_of, reached_of, keeps_rounds):
            await give_way()
            if self._role() != role:
                return  # INV-NRT1

    def _role(self) -> tuple[object, ...]:
        image, replication = self.storage.metadata.image, self.replication
        follows = replication is not None and replication.leadership.follows
        leadership = image.leadership
        leader_epoch = None if leadership is None else leadership.leader_epoch
        return self.leads(), follows, leader_epoch, image.domains.get(DEFAULT_DOMAIN)
