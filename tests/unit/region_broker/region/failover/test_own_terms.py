"""INV-OTM1: where nodes are elected, a region that acts again elects anew, under no leader epoch that was acted in."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.cluster_commands import ElectLeader, FenceNode, UnfenceNode
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_commands import Command, apply
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.failover.steps.own_terms import OwnTerms
from region_broker.region.ports import Term
from tests.fixtures.cluster_images import (
    REGION_EPOCH,
    after,
    in_sync,
    leader_epoch,
    life,
    member,
)
from tests.fixtures.node_logs import InstantClock

FENCED = after(in_sync(), FenceNode(1, life(1)))
BY_ONE = after(FENCED, UnfenceNode(1, life(1)), ElectLeader(member(1), leader_epoch(2), 3))
BY_TWO = after(BY_ONE, ElectLeader(member(2), leader_epoch(3), 4))


class Region:
    """Metadata that node 1 acts by; `lost`: how many commands do not arrive."""

    def __init__(self) -> None:
        self.image: MetadataImage = BY_ONE
        self.asked: list[Command] = []
        self.lost = 0
        self.image_then: MetadataImage | None = None
        parts = SimpleNamespace(metadata=self, clock=InstantClock())
        outlook: Any = SimpleNamespace(parts=parts, region="eu")
        self.terms = OwnTerms(outlook)

    async def apply(self, command: Command) -> MetadataImage:
        self.asked.append(command)
        if self.lost:
            self.lost -= 1
            self.image = self.image_then or self.image
            raise MetadataInDoubt("no quorum")
        self.image = apply(self.image, command)
        return self.image

    async def takes(self, region_epoch: RegionEpoch = REGION_EPOCH) -> Term | None:
        """Return what is taken now, None where that is waited for."""
        taking = asyncio.get_running_loop().create_task(self.terms.take(region_epoch))
        for _ in range(20):
            await asyncio.sleep(0)
        if taking.done():
            return taking.result()
        taking.cancel()
        await asyncio.wait([taking])
        return None

    @property
    def led_under(self) -> object:
        leadership = self.image.leadership
        return None if leadership is None else (leadership.leader, leadership.leader_epoch)


@pytest.mark.parametrize("lost", [0, 2])
async def test_INV_OTM1_a_leader_epoch_is_acted_in_once(lost: int) -> None:
    region = Region()
    assert await region.takes() == Term(REGION_EPOCH, leader_epoch(2), "eu")
    assert region.asked == []
    region.lost = lost
    assert await region.takes() is None, "what it leads ends with the election"
    assert region.led_under == (member(1), leader_epoch(3))
    assert len(region.asked) == lost + 1
    assert await region.takes() == Term(REGION_EPOCH, leader_epoch(3), "eu")


async def test_INV_OTM1_who_is_deposed_meanwhile_elects_nobody() -> None:
    region = Region()
    await region.takes()
    region.lost, region.image_then = 1, BY_TWO
    assert await region.takes() is None
    assert region.led_under == (member(2), leader_epoch(3))
    assert len(region.asked) == 1


async def test_T19_the_election_under_the_new_region_epoch_is_waited_for() -> None:
    region = Region()
    assert await region.takes(RegionEpoch(REGION_EPOCH + 8)) is None
    assert region.asked == []
