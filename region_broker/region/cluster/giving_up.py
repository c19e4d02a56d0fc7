"""A leader that cannot prove that it leads gives up by itself: clients hear that, look again, and find who leads by now.

INV-GUP1 a node that leads a group gives it up when it has heard, for `GIVE_UP_MS`, neither a member in sync that follows it (INV-RTM5) nor the
         quorum; never where nobody else is in sync, as nobody else can be elected then
INV-GUP2 only time in which this node looked counts, a piece of it between two looks at most: whose process stood still, or whose clock
         jumped, has blamed nobody, and reads first what the others have sent meanwhile
INV-GUP3 what is given up is let go as if another node led it: the gate closes and no high watermark moves in that step, and what was
         appended, and is not committed, has an unknown outcome (P18), so it is sent again, and found in the log or not. Clients are told
         that nobody leads, under no leader epoch, until the metadata name a leader under another one
INV-GUP4 a leader epoch that was given up is not taken up again (INV-LSH2). Who is named under it still, when the quorum is heard again, asks
         that for another election: the quorum knows whether somebody else was elected (the row's version), and the next leader epoch
         tells apart what was answered before and behind it. Of a data group it has leaders gathered (INV-SPD2)

         1. A leader is cut off from the other nodes, not from its clients. 2. Another one is elected, and acknowledges. 3. Clients of the
         first one wait there until their time-outs, and readers for ever: nothing ever comes.

Kafka has no such rule: a broker that is cut off holds produce requests until their time-out (`REQUEST_TIMED_OUT`), and serves readers.

Not here: how it is let go (`leadership`, `data_group`), how the quorum is heard (`controller.raft`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from idempotency.fencing import EpochExhausted
from idempotency.identity import LeaderEpoch, Member
from idempotency.ports import Clock
from region_broker.controller.cluster.elections import candidates, elect
from region_broker.controller.cluster_commands import ElectLeader
from region_broker.controller.cluster_image import MAIN_GROUP, GroupNumber, Leadership
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.region.cluster.replica_term import SURE_MS

GIVE_UP_MS: Final = 2_000
"""Long enough for others to be fenced (750 ms), or to elect a leader of the quorum (1 s): what comes back sooner costs no election. Short
enough for a client to find the next leader before its own time-outs."""
LOOK_MS: Final = 100
LOOK_MAX_MS: Final = 2 * LOOK_MS
"""What the time between two looks counts at most (INV-GUP2)."""
AGAIN_MS: Final = 500
"""Between two elections that are asked for."""
assert SURE_MS < GIVE_UP_MS

_log: Final = logging.getLogger("tidemark.cluster")


class LedGroup(Protocol):
    """`replica_leading.ReplicaLeading`."""

    def is_sure(self) -> bool:
        """Return whether this node leads, as far as can be known (INV-RTM5)."""
        ...


class Silence:
    """How long nobody has been heard in one leader epoch, in time that was looked at (INV-GUP2). `look` now and then."""

    def __init__(self, leader_epoch: LeaderEpoch, now_ms: int) -> None:
        """Begin to look."""
        self.leader_epoch: Final = leader_epoch
        self._looked_ms = now_ms
        self._lasts_ms = 0

    def look(self, now_ms: int, *, is_heard: bool) -> bool:
        """Return whether to give up; `is_heard`: somebody was heard within `SURE_MS`."""
        passed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        self._lasts_ms = 0 if is_heard else self._lasts_ms + min(passed_ms, LOOK_MAX_MS)
        return self._lasts_ms >= GIVE_UP_MS - SURE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class GivingUpParts:
    """What it is joined with.

    `led`: which groups this node leads, or begins to, under which leader epoch. `leading_of`: what leads a group. `give_up`: lets a group go in
    that step. `hears_quorum`: whether this node leads the quorum with most of its voters, or hears who does. `apply`: of the metadata.
    """

    me: Member
    clock: Clock
    image: Callable[[], MetadataImage]
    led: Callable[[], Mapping[GroupNumber, LeaderEpoch]]
    leading_of: Callable[[GroupNumber], LedGroup]
    give_up: Callable[[GroupNumber, LeaderEpoch], None]
    hears_quorum: Callable[[], bool]
    apply: Callable[[ElectLeader], Awaitable[object]]


class ToldMetadata:
    """The metadata as clients are told of them; `giving_up` is set where there is one."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """Tell of `image()`."""
        self._image = image
        self.giving_up: GivingUp | None = None

    def image(self) -> MetadataImage:
        """Return an image in which nobody leads what this node gave up (INV-GUP3)."""
        image = self._image()
        return image if self.giving_up is None else self.giving_up.told(image)

    def gave_up(self) -> bool:
        """Return whether the metadata name this node for what it gave up."""
        return self.image() is not self._image()


class GivingUp:
    """`run` is its only task."""

    def __init__(self, parts: GivingUpParts) -> None:
        """Nothing is given up."""
        self._parts = parts
        self._silences: dict[GroupNumber, Silence] = {}
        self._given: dict[GroupNumber, LeaderEpoch] = {}
        """The last leader epoch of each group that was given up here."""
        self._told: tuple[MetadataImage, MetadataImage] | None = None

    async def run(self) -> None:
        """Look, and ask to lead again, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ask_again(), name="leads-again")
            while True:
                await self._parts.clock.sleep_ms(LOOK_MS)
                self.look()

    # -- giving up -------------------------------------------------------------------------------

    def look(self) -> None:
        """Give up what is due (INV-GUP1)."""
        now_ms, led = self._parts.clock.monotonic_ms(), self._parts.led()
        hears_quorum = self._parts.hears_quorum()
        for gone in self._silences.keys() - led.keys():
            del self._silences[gone]
        for group, leader_epoch in led.items():
            silence = self._silences.get(group)
            if silence is None or silence.leader_epoch != leader_epoch:
                silence = self._silences[group] = Silence(leader_epoch, now_ms)
            is_heard = hears_quorum or self._hears_followers(group)
            if silence.look(now_ms, is_heard=is_heard):
                self._give_up(group, leader_epoch)

    def _hears_followers(self, group: GroupNumber) -> bool:
        row = self._parts.image().leadership_in(group)
        is_alone = row is not None and set(row.in_sync) <= {self._parts.me}
        return is_alone or self._parts.leading_of(group).is_sure()

    def _give_up(self, group: GroupNumber, leader_epoch: LeaderEpoch) -> None:
        _log.error(
            "this node has heard neither the quorum nor a follower in sync for %d ms, and leads group %d no more under leader epoch %d: another"
            " node may lead by now. It goes on by itself when it hears the others: look at the network between the nodes",
            GIVE_UP_MS, group, leader_epoch,
        )  # fmt: skip
        self._given[group] = leader_epoch
        self._told = None
        self._parts.give_up(group, leader_epoch)

    # -- what clients are told -------------------------------------------------------------------

    def _is_given_up(self, group: GroupNumber, row: Leadership) -> bool:
        return row.leader == self._parts.me and self._given.get(group) == row.leader_epoch

    def told(self, image: MetadataImage) -> MetadataImage:
        """Return an image in which nobody leads what was given up here (INV-GUP3): the same object for the same image."""
        if not self._given:
            return image
        if self._told is None or self._told[0] is not image:
            self._told = image, self._with_nobody(image)
        return self._told[1]

    def _with_nobody(self, image: MetadataImage) -> MetadataImage:
        main, spread = image.leadership, image.spread
        if main is not None and self._is_given_up(MAIN_GROUP, main):
            image = replace(image, leadership=replace(main, leader=None))
        if spread is not None:
            groups = {
                number: replace(row, leader=None) if self._is_given_up(GroupNumber(number), row) else row
                for number, row in spread.groups.items()
            }  # fmt: skip
            if groups != spread.groups:
                image = replace(image, spread=replace(spread, groups=groups))
        return image

    # -- leading again ---------------------------------------------------------------------------

    async def _ask_again(self) -> None:
        while True:
            await self._parts.clock.sleep_ms(AGAIN_MS)
            await self.lead_again()

    async def lead_again(self) -> None:
        """Ask for an election where this node is named still, gave up, and hears the quorum again (INV-GUP4)."""
        image = self._parts.image()
        main = image.leadership
        if (
            main is None
            or not self._is_given_up(MAIN_GROUP, main)
            or not self._parts.hears_quorum()
        ):
            return
        able = candidates(image, None)
        if not able:
            return
        chosen = self._parts.me if self._parts.me in able else able[0]
        _log.warning("the quorum is heard again: node %s is to be elected anew", chosen)
        try:
            await self._parts.apply(elect(image, image.main_domain.region_epoch, chosen))
        except (CommandRefused, MetadataUnwritable, EpochExhausted) as error:
            _log.warning("that is judged anew: %s", error)
