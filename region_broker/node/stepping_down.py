"""A node that leads and had better not has another one elected, as `tidemark cluster move` would.

INV-NRP2  a leader one of whose logs has stopped has another member in sync elected, where enough others are there to go on: what it
          lost, they have. It copies that log again as a follower (INV-CAN1)
INV-NRP4  a leader whose disk has damaged a full segment has another member in sync elected before it mends that, once for each find: it
          leads again only by the usual rules, and where all are damaged the leadership does not go round
INV-NRP6  a leader whose disk has no room for writes has another member in sync elected, where enough others are in sync to go on without it, as it
          copies nothing then; each of them in its turn. Where all disks are nearly full somebody leads, and refuses: between two such elections
          that a node asks for lies a pause, which doubles
          1. The leader's disk is below the watermark: nothing fails, so no log stops. 2. It would lead on, and refuse each write, while
          the others have room.
INV-RGR8  while leaders are spread nobody steps down, and what is damaged waits: they are gathered first, as this tells that it waits
Nobody is drained by this: who steps down may lead again. Not here: what an election changes (`controller.cluster_leadership`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from idempotency.fencing import EpochExhausted
from idempotency.identity import Member
from idempotency.ports import Clock
from region_broker.controller.cluster.elections import candidates, elect
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused
from region_broker.partitions.table import PartitionTable

TRIES_MAX: Final = 3
"""How often an election is asked for before a damaged segment is mended where it is."""
AGAIN_MS: Final = 1_000
ROOM_PAUSE_MS_MIN: Final = 30_000
ROOM_PAUSE_MS_MAX: Final = 120_000
"""How long a node leads, once it is elected again, though it has no room: it was elected as nobody else was better."""

_log: Final = logging.getLogger("tidemark.replication")


@dataclass(slots=True, kw_only=True)
class SteppingDown:
    """`least_others`: tells how many others must be there for the region to go on without this node's logs; `damaged`: who says that it is."""

    me: Member
    metadata: MetadataStore
    partitions: PartitionTable
    clock: Clock
    least_others: Callable[[], int]
    damaged: Callable[[], frozenset[Member]]
    waits: str | None = None
    """Why leaders are to be gathered before this goes on; None where it does not wait."""
    _room_pause_ms: int = ROOM_PAUSE_MS_MIN
    _room_again_at_ms: int = 0

    async def look(self) -> None:
        """Have another one elected where a log has stopped here, or no room is left (INV-NRP2, INV-NRP6); to be called now and then."""
        if self.metadata.image.spread is not None:
            return
        if any(partition.failed is not None for partition in self.partitions):
            await self._look_at_a_stopped_log()
        elif self.partitions.room.refusal is None:
            self._note_room()
        elif self.clock.monotonic_ms() >= self._room_again_at_ms:
            await self._look_for_one_with_room(self.partitions.room.refusal)

    async def _look_at_a_stopped_log(self) -> None:
        nodes = self.metadata.image.nodes.values()
        others = [each for each in nodes if each.is_eligible and each.member != self.me]
        other = self._next_leader()
        if other is not None and len(others) >= self.least_others():
            await self._have_elected(other, "a log of this node has stopped")

    def _note_room(self) -> None:
        """Begin anew with short pauses where there is room, and the last pause is long over: a segment that retention takes is soon full again."""
        if self.clock.monotonic_ms() >= self._room_again_at_ms + ROOM_PAUSE_MS_MAX:
            self._room_pause_ms = ROOM_PAUSE_MS_MIN

    async def _look_for_one_with_room(self, refusal: str) -> None:
        others = self._next_leaders()
        if not others or len(others) < self.least_others():
            return
        # Each in its turn: one that has no room either may be in sync for a while yet.
        others.sort(key=lambda one: (one in self.damaged(), one < self.me))
        if await self._have_elected(others[0], f"this node takes no writes ({refusal})"):
            self._room_again_at_ms = self.clock.monotonic_ms() + self._room_pause_ms
            self._room_pause_ms = min(2 * self._room_pause_ms, ROOM_PAUSE_MS_MAX)

    async def make_way(self) -> None:
        """Return once another node leads, or nobody else can: a full segment here is damaged (INV-NRP4, INV-RGR8)."""
        await self._until_gathered()
        for attempt in range(TRIES_MAX):
            other = self._next_leader()
            if other is None:
                return
            if attempt:
                await self.clock.sleep_ms(AGAIN_MS)
            await self._have_elected(other, "a full segment of this node is damaged")

    async def _until_gathered(self) -> None:
        self.waits = f"a full segment of node {self.me.node_id} is damaged"
        try:
            while self.metadata.image.spread is not None:
                await self.clock.sleep_ms(AGAIN_MS)
        finally:
            self.waits = None

    def _next_leader(self) -> Member | None:
        """Return who could lead in place of this node; None where nobody could, or this one does not lead."""
        return next(iter(self._next_leaders()), None)

    def _next_leaders(self) -> list[Member]:
        """Return all who could lead in place of this node, the best first; nobody where this one does not lead."""
        image = self.metadata.image
        if image.leadership is None or image.leadership.leader != self.me:
            return []
        return [other for other in candidates(image, None, self.damaged()) if other != self.me]

    async def _have_elected(self, other: Member, why: str) -> bool:
        """Ask for an election; return whether it is done."""
        _log.error("%s, and node %s has all that was committed: it is to lead", why, other)
        image = self.metadata.image
        try:
            await self.metadata.apply(elect(image, image.main_domain.region_epoch, other))
        except (CommandRefused, MetadataUnwritable, EpochExhausted) as error:
            _log.warning("that is asked for again: %s", error)
            return False
        return True
