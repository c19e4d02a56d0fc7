"""Which node of a region leads its logs: what the metadata say is carried out here, on each node.

INV-LSH1  a node that the metadata name no more closes its gate in the step that says so, and moves no high watermark after it
INV-LSH2  a process leads only under an election that came after it had registered: a leader epoch is led in once (`replication`, 3).
          A registration takes the leadership from the former life, so whoever is named while its life is the registered one was
          elected after it; that may have been before this was made
INV-LSH3  who leads serves once all that its logs hold is committed (R6, B3)
INV-LSH4  a node cuts its own logs by the lineage in its image before it follows or leads, and before it follows on where that has
          changed: it copies nothing to anybody, and from nobody, that a takeover has voided (T20, T25)
INV-LSH6  what the region knows of itself stands in the metadata before a second node may be in sync: the first one's folder knows it
         1. The only node of a region has promised another region that it may act. 2. It is given two nodes more. 3. One of them is
         in sync, and is elected before the first one has written down what was promised: it would know nothing of it (T24).
INV-LSH7  who is elected anew while it leads ends all that it did for the region before it leads again: coordinators are loaded, and logs are
         led, under the new leader epoch
INV-LSH8  who gives up (INV-GUP1) does in that step what one does that is named no more, and follows nobody until another leader epoch is there
INV-LSH5  who is deposed follows without waiting for the quorum: what it had begun to change is carried out as a follower's

Not here: who is elected (`controller.cluster`), what is copied (`replica_leading`, `replica_following`), what a region's role does
(`region.role`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, Member, RegionEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, LineageEntry, MetadataImage
from region_broker.log.failures import NotLeader

_GAVE_UP: Final = "this node has led, and hears no other node of its region: another one may lead by now (tidemark cluster status)"
_log: Final = logging.getLogger("tidemark.cluster")


class LeadingSide(Protocol):
    """`replica_leading.ReplicaLeading`."""

    def begin(self, leadership: Leadership) -> None:
        """Lead all logs under this leadership; they lead already (`Partition.become_leader`)."""
        ...

    def image_changed(self, image: MetadataImage) -> None:
        """Take another image."""
        ...

    def end(self) -> None:
        """Lead no more."""
        ...

    async def until_committed(self) -> None:
        """Return once each log that runs is committed up to where it was when it began to lead."""
        ...


class FollowingSide(Protocol):
    """`replica_following.ReplicaFollowing`."""

    def follow(self, leader: Member | None, leader_epoch: LeaderEpoch) -> None:
        """Copy from this leader, or wait for one."""
        ...

    def stop(self) -> None:
        """Copy nothing any more."""
        ...


class RoleSide(Protocol):
    """`region.role.RegionRole`."""

    def close_gate(self, reason: str) -> None:
        """Refuse writes from now on."""
        ...

    async def follow(self, reason: str) -> None:
        """Take only what the leading node brings."""
        ...


async def _nothing_to_cut() -> None:
    """The logs are as they are."""


async def _begun() -> None:
    """The region knows itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipParts:
    """What it is joined with. `lead`: runs what takes writes in this region, until it is cancelled.

    `life`: of this process, which has registered.
    """

    me: Member
    life: UUID
    image: Callable[[], MetadataImage]
    role: RoleSide
    leading: LeadingSide
    following: FollowingSide
    lead: Callable[[], Awaitable[None]]
    begin_region: Callable[[], Awaitable[None]] = _begun
    """Returns once the metadata have what the region knows of itself (INV-LSH6)."""
    cut_logs: Callable[[], Awaitable[None]] = _nothing_to_cut
    """Returns once nothing that the lineage voids is in a log here (INV-LSH4); cancelled anywhere."""


class LeadershipDriver:
    """`run` is its only task; `take_image` hears of each image in the step in which it is there."""

    def __init__(self, parts: LeadershipParts) -> None:
        """Begin where this process has registered (INV-LSH2)."""
        self._parts = parts
        self._changed = asyncio.Event()
        self._led: LeaderEpoch = NO_LEADER_EPOCH
        """The last leader epoch that this process led in, or leads in."""
        self._given_up: LeaderEpoch | None = None
        """The last one that it gave up (INV-LSH8)."""
        self.leads: LeaderEpoch | None = None
        """Under which leader epoch this node leads, or is about to."""
        self.follows = False
        """Whether this node has begun to follow, or waits for somebody to lead."""

    def _is_named(self, image: MetadataImage) -> bool:
        row = image.leadership
        if row is not None and row.leader_epoch == self._given_up:  # INV-LSH8
            return False
        return is_named(image, row, self._parts.me, self._parts.life)

    def take_image(self, image: MetadataImage) -> None:
        """Hear of an image (INV-LSH1)."""
        leadership = image.leadership
        if self.leads is not None:
            if (
                not self._is_named(image)
                or leadership is None
                or leadership.leader_epoch != self.leads
            ):
                self._stop_leading()
                self._parts.role.close_gate("another node leads this region now")
            else:
                self._parts.leading.image_changed(image)
        self._changed.set()

    def give_up(self, leader_epoch: LeaderEpoch) -> None:
        """Lead no more under this leader epoch, though the metadata name this node as far as is known here (INV-LSH8)."""
        if self.leads == leader_epoch:
            self._given_up = leader_epoch
            self._stop_leading()
            self._parts.role.close_gate(_GAVE_UP)
            self._changed.set()

    def _is_leading(self) -> bool:
        return self.leads is not None

    def _stop_leading(self) -> None:
        if self.leads is not None:
            self.leads = None
            self._parts.leading.end()

    async def settle_commits(self, leader_epoch: LeaderEpoch | None) -> None:
        """Return once all is committed that the logs hold (INV-LSH3); `leader_epoch`: that it is written under, None for a mirror."""
        if self.leads is not None and leader_epoch in {self.leads, None}:
            with suppress(NotLeader):
                await self._parts.leading.until_committed()
                return
        # The term is over: whoever began it is about to be cancelled.
        await asyncio.Event().wait()

    async def run(self) -> None:
        """Lead and follow until cancelled."""
        while True:
            image = self._parts.image()
            leadership = image.leadership
            if leadership is not None and self._is_named(image):
                if self._led != NO_LEADER_EPOCH and not self.follows:  # INV-LSH7
                    await self._parts.role.follow(
                        "this node is elected anew, and begins to lead again"
                    )
                await self._lead(leadership.leader_epoch)
            else:
                await self._follow(leadership)

    async def _lead(self, leader_epoch: LeaderEpoch) -> None:
        self.follows = False
        assert leader_epoch > self._led, "INV-LSH2"
        self.leads = self._led = leader_epoch
        _log.warning("this node leads the region under leader epoch %d", leader_epoch)
        try:
            async with asyncio.TaskGroup() as tasks:
                leading = tasks.create_task(_endless(self._lead_logs(leader_epoch)), name="leads")
                while self._is_leading():
                    self._changed.clear()
                    await self._changed.wait()
                leading.cancel()
        finally:
            self._stop_leading()

    async def _lead_logs(self, leader_epoch: LeaderEpoch) -> None:
        """Replicate what is here, once it is cut (INV-LSH4), whatever the region's role, and then have it."""
        await self._parts.begin_region()
        await self._parts.cut_logs()
        leadership = self._parts.image().leadership
        if leadership is not None and self.leads == leader_epoch:
            self._parts.leading.begin(leadership)
        await self.settle_commits(leader_epoch)
        await self._parts.lead()

    async def _follow(self, leadership: Leadership | None) -> None:
        leader = None if leadership is None else leadership.leader
        epoch = NO_LEADER_EPOCH if leadership is None else leadership.leader_epoch
        if leader == self._parts.me:
            leader = None  # of a former life, or given up: an election follows (INV-LSH2, INV-GUP4)
        told = "nobody leads this region" if leader is None else f"node {leader} leads this region"
        if epoch == self._given_up:
            told = _GAVE_UP
        await self._parts.role.follow(told)
        _log.warning("%s under leader epoch %d", told, epoch)
        self.follows = True
        lineage = lineage_of(self._parts.image())
        try:
            async with asyncio.TaskGroup() as tasks:
                copying = tasks.create_task(self._cut_and_copy(leader, epoch), name="follows")
                while self._goes_on(leadership, lineage):
                    self._changed.clear()
                    await self._changed.wait()
                copying.cancel()
        finally:
            self._parts.following.stop()

    def _goes_on(self, leadership: Leadership | None, lineage: tuple[LineageEntry, ...]) -> bool:
        image = self._parts.image()
        return _who(image.leadership) == _who(leadership) and lineage_of(image) == lineage

    async def _cut_and_copy(self, leader: Member | None, leader_epoch: LeaderEpoch) -> None:
        await self._parts.cut_logs()
        self._parts.following.follow(leader, leader_epoch)


def is_named(image: MetadataImage, row: Leadership | None, me: Member, life: UUID) -> bool:
    """Return whether the process `life` of a member is to lead what `row` is of (INV-LSH2)."""
    node = image.node_of(me)
    return row is not None and row.leader == me and node is not None and node.life == life


def base_of(image: MetadataImage, region_epoch: RegionEpoch) -> Mapping[str, int]:
    """Return where the cut ends in each log, by `LogKey.encode`, that `region_epoch` began at; nothing where no takeover began it."""
    for entry in lineage_of(image):
        if entry.region_epoch == region_epoch:
            return entry.positions
    return {}


def lineage_of(image: MetadataImage) -> tuple[LineageEntry, ...]:
    """Return the lineage that logs are to be cut by (INV-LSH4)."""
    domain = image.domains.get(DEFAULT_DOMAIN)
    return () if domain is None else domain.lineage


def _who(leadership: Leadership | None) -> tuple[Member | None, LeaderEpoch]:
    return (
        (None, NO_LEADER_EPOCH)
        if leadership is None
        else (leadership.leader, leadership.leader_epoch)
    )


async def _endless(work: Awaitable[None]) -> None:
    await work
    raise AssertionError("what leads a region ends only when it is cancelled")
