"""What the main leader tells the leaders of data groups that their retention may delete, while leaders are spread (ADR 53, T14).

INV-THD1  who leads a data group deletes nothing of its logs but what the main leader has told under the present leader epochs of both: that
          one alone knows which mirrors there are, and what they have (INV-RH1). What was told under others is void
INV-THD2  it is told after each look of `RetentionHold`, what has changed alone; what a data leader has not confirmed is told again
INV-THD4  what was told before something else, and comes later, counts for nothing
          1. No mirror is known, and everything may go; the word of it is lost on the way. 2. A mirror begins to copy: this is told, over
          another connection, and confirmed. 3. The first word arrives. 4. A data leader would delete what the mirror has not copied.
INV-THD3  a mirror that is new, or comes back, is answered once every data leader has been told what is held for it from now on
          1. No mirror is known, and retention may delete all. 2. A mirror begins to copy. 3. A data leader has not heard of it, and deletes.
          Whether it was known before it asked does not count, but whether something was told that holds nothing for it: a region that was
          gone for too long (INV-RH3) is known again by the next look after it was heard, and not by what data leaders were told before

A hold that is told permits: none is taken back, but by telling another one, and INV-THD3 is the only reason to hold more.
Where rounds begin in its logs (T7) a data leader forgets by itself: no cut is made there, and whoever leads the region next drives
those of a newer leader epoch (T1).

Not here: what is held (`retention_hold`), deleting (`partitions.trimming`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Final, Protocol
from uuid import UUID

import msgspec

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster_image import MAIN_GROUP, Leadership
from region_broker.controller.metadata_image import MetadataImage
from region_broker.partitions.partition import Partition
from region_broker.partitions.trimming import Hold
from region_broker.region.peers.protocol import (
    AnyMessage,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.sessions import Handlers, NodeSession

LOGS_MAX: Final = 1_000
"""Told at once."""
NOT_THE_LEADER: Final = "not-the-leader"
OVERTAKEN: Final = "overtaken"
NOTHING_GOES: Final = Hold(0, 0)
_log: Final = logging.getLogger("tidemark.mirror")

Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class ToldHold(msgspec.Struct, frozen=True, array_like=True):
    """Of one log, a `Hold`; None where nothing is held for anybody."""

    topic_id: UUID
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: Offset | None
    ordered_offset: Offset

    @property
    def key(self) -> LogKey:
        """Return which log it is."""
        return LogKey(self.topic_id, self.partition)

    @property
    def hold(self) -> Hold | None:
        """Return what is to be kept."""
        return None if self.offset is None else Hold(self.offset, self.ordered_offset)


class TellHolds(PeerMessage, frozen=True, kw_only=True):
    """What may go of logs that the other node leads under `group_epoch`, by the word of who leads the region under `leader_epoch`.

    `number`: grows with each message under that leader epoch, to whomever (INV-THD4).
    """

    leader_epoch: LeaderEpoch
    group_epoch: LeaderEpoch
    number: Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
    holds: Annotated[tuple[ToldHold, ...], msgspec.Meta(max_length=LOGS_MAX)]


class HoldsTold(PeerMessage, frozen=True, kw_only=True):
    """It is kept to from now on."""


def _groups_led_by(image: MetadataImage, member: Member) -> Iterator[Leadership]:
    if image.spread is not None:
        yield from (row for row in image.spread.groups.values() if row.leader == member)


class ToldHolds:
    """At a data leader: `of` is what its retention goes by."""

    def __init__(self, me: Member, image: Callable[[], MetadataImage]) -> None:
        """Nothing was told."""
        self._me = me
        self._image = image
        self._told: dict[LogKey, tuple[LeaderEpoch, LeaderEpoch, Hold | None]] = {}
        self._last: dict[tuple[LeaderEpoch, LeaderEpoch], int] = {}
        """The number of what was told last of each data group, by the leader epochs of the region and of the group."""

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Be told; once, before the peer port is bound."""
        handlers.register(TellHolds, self._take)

    async def _take(
        self, session: NodeSession, message: TellHolds, _attachment: memoryview
    ) -> HoldsTold:
        image = self._image()
        main = image.leadership
        is_main = main is not None and (main.leader, main.leader_epoch) == (
            session.member,
            message.leader_epoch,
        )
        led = {row.leader_epoch for row in _groups_led_by(image, self._me)}
        if not is_main or message.group_epoch not in led:
            raise PeerRefused(
                NOT_THE_LEADER,
                f"{session.member} does not lead the region under leader epoch {message.leader_epoch}, or {self._me} no data group"
                f" under {message.group_epoch}, as far as is known here: look again",
            )
        epochs = message.leader_epoch, message.group_epoch
        last = self._last.get(epochs, 0)
        if message.number <= last:
            raise PeerRefused(
                OVERTAKEN,
                f"what {session.member} has told as number {message.number} was overtaken by number {last}: it counts for nothing",
            )
        self._forget(message.leader_epoch, led)
        self._last[epochs] = message.number
        for told in message.holds:
            self._told[told.key] = message.leader_epoch, message.group_epoch, told.hold
        return HoldsTold()

    def _forget(self, leader_epoch: LeaderEpoch, led: Container[LeaderEpoch]) -> None:
        """Keep what is of this leadership of the main group, of groups that are led here, and of topics that there are."""
        image = self._image()
        self._told = {
            key: told
            for key, told in self._told.items()
            if told[0] == leader_epoch and told[1] in led and image.topic_by_id(key.topic_id) is not None
        }  # fmt: skip
        self._last = {
            under: number
            for under, number in self._last.items()
            if under[0] == leader_epoch and under[1] in led
        }

    def of(self, partition: Partition) -> Hold | None:
        """Return what of a log that this node leads in a data group must be kept; everything of any other (INV-THD1)."""
        image, key = self._image(), partition.key
        main, row = image.leadership, image.leadership_of(key)
        told = self._told.get(key)
        if told is None or main is None or row is None or image.group_of(key) == MAIN_GROUP:
            return NOTHING_GOES
        leader_epoch, group_epoch, hold = told
        is_present = (leader_epoch, group_epoch) == (main.leader_epoch, row.leader_epoch)
        return hold if is_present and row.leader == self._me else NOTHING_GOES


class Lines(Protocol):
    """`cluster.leader_lines.LeaderLines`."""

    async def call(
        self, member: Member, message: PeerMessage, answer_type: type[AnyMessage], /
    ) -> AnyMessage:
        """Return the answer; raises `PeerUnreachable`, `PeerRefused`."""
        ...


@dataclass(slots=True, kw_only=True)
class TellingParts:
    """What is told to whom. `mirrors`: the regions that `hold_of` holds for; `leads_under`: None while this node does not lead the region."""

    image: Callable[[], MetadataImage]
    partitions: Callable[[], Iterable[Partition]]
    hold_of: Callable[[Partition], Hold | None]
    mirrors: Callable[[], Iterable[str]]
    leads_under: Callable[[], LeaderEpoch | None]
    lines: Lines


@dataclass(slots=True)
class _Listener:
    """A data group's leader, and what it has confirmed."""

    leader: Member
    confirmed: dict[LogKey, Hold | None] = field(default_factory=dict)


class TellingHolds:
    """At the main leader: `tell` after each look of its `RetentionHold`."""

    def __init__(self, parts: TellingParts) -> None:
        """Nobody was told anything."""
        self._parts = parts
        self._main_epoch: LeaderEpoch | None = None
        self._listeners: dict[LeaderEpoch, _Listener] = {}
        self._telling = asyncio.Lock()
        self._number = 0
        self._held_for: frozenset[str] | None = None
        """The mirrors that all holds are for by which a data leader may go now (INV-THD3); None where none was told any."""

    async def tell(self) -> bool:
        """Tell each data leader what has changed (INV-THD2); return whether all know it."""
        async with self._telling:
            epoch = self._parts.leads_under()
            if epoch is None:
                return False
            rows, mirrors = self._listeners_now(epoch), frozenset(self._parts.mirrors())
            # In one step with `mirrors`: what is told is for these.
            changed = {each: self._changed(each, rows[each]) for each in rows}
            if rows:
                self._held_for = mirrors & (mirrors if self._held_for is None else self._held_for)
            told = await asyncio.gather(
                *(self._tell(epoch, each, rows[each], changed[each]) for each in rows)
            )
            if rows and all(told):
                self._held_for = mirrors
            return all(told)

    def _listeners_now(self, epoch: LeaderEpoch) -> dict[LeaderEpoch, _Listener]:
        spread = self._parts.image().spread
        before = self._listeners
        if epoch != self._main_epoch:
            before, self._held_for = {}, None
        self._main_epoch = epoch
        rows = () if spread is None else spread.groups.values()
        self._listeners = {
            row.leader_epoch: before.get(row.leader_epoch) or _Listener(row.leader)
            for row in rows
            if row.leader is not None
        }
        return self._listeners

    async def _tell(
        self, epoch: LeaderEpoch, group_epoch: LeaderEpoch, listener: _Listener, changed: Sequence[ToldHold]
    ) -> bool:  # fmt: skip
        for start in range(0, len(changed), LOGS_MAX):
            part = changed[start : start + LOGS_MAX]
            self._number += 1
            message = TellHolds(
                leader_epoch=epoch, group_epoch=group_epoch, number=self._number, holds=tuple(part)
            )
            try:
                await self._parts.lines.call(listener.leader, message, HoldsTold)
            except (PeerUnreachable, PeerRefused) as error:
                _log.info(
                    "node %s deletes nothing, as it is not told what may go: %s",
                    listener.leader,
                    error,
                )
                return False
            listener.confirmed.update((told.key, told.hold) for told in part)
        return True

    def _changed(self, group_epoch: LeaderEpoch, listener: _Listener) -> list[ToldHold]:
        image, changed = self._parts.image(), list[ToldHold]()
        for key in [
            each for each in listener.confirmed if image.topic_by_id(each.topic_id) is None
        ]:
            del listener.confirmed[key]
        for partition in self._parts.partitions():
            key = partition.key
            row = image.leadership_of(key)
            if image.group_of(key) == MAIN_GROUP or row is None or row.leader_epoch != group_epoch:
                continue
            hold = self._parts.hold_of(partition)
            if key not in listener.confirmed or listener.confirmed[key] != hold:
                offset, ordered = (None, 0) if hold is None else hold
                changed.append(ToldHold(key.topic_id, key.partition, offset, ordered))
        return changed

    async def meet(self, region: str, note: Callable[[str], Awaitable[None]]) -> None:
        """Let `note` know a mirror, durably, and have all data leaders hold what it needs, before it is answered (INV-THD3).

        Raises as `note`; `PeerRefused` where a data leader has not heard of it: the mirror asks again.
        """
        await note(region)
        if self._parts.image().spread is None or self._is_held_for(region):
            return
        if not await self.tell():
            raise PeerRefused(
                NOT_THE_LEADER,
                f"a node of this region has not heard yet that it is to keep what region {region} copies: ask again",
            )

    def _is_held_for(self, region: str) -> bool:
        """Return whether no data leader may go by a hold that holds nothing for a region."""
        told_now = self._main_epoch == self._parts.leads_under() and self._held_for is not None
        return not told_now or region in (self._held_for or ())
