"""A lineage entry is recorded, or it is said what is in the way (INV-M24)."""

from unittest.mock import AsyncMock, Mock

import pytest
from msgspec.structs import replace

from geo_replicator.failover_events import EntryRecord
from geo_replicator.lineage import LineageEntry, TidemarkPoint
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_commands import Command, apply
from region_broker.controller.metadata_image import DomainImage, MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.failover.steps.recording import as_image_entry, record_lineage

EPOCH = RegionEpoch(8)
LED = Leadership(leader=None, leader_epoch=LeaderEpoch(1), in_sync=(), version=1)


def taken_over(number: int) -> EntryRecord:
    return EntryRecord.of(
        LineageEntry(RegionEpoch(17), "us", TidemarkPoint(EPOCH, number), {}, decided_wall_ms=1)
    )


class Region:
    """One of several nodes at a level that does not know INV-M24; it is raised at the `raised_after`th wait."""

    def __init__(self, *, raised_after: int) -> None:
        begun = as_image_entry(taken_over(5))
        domain = DomainImage(
            name="main", acting_region="us", region_epoch=RegionEpoch(17), shard_count=1, lineage=(begun,)
        )  # fmt: skip
        self.image = MetadataImage(
            version=0, cluster_id="c", domains={"main": domain}, leadership=LED, feature_level=3
        )
        self._left = raised_after
        self.role = Mock(fence=AsyncMock())
        clock = Mock(sleep_ms=AsyncMock(side_effect=self._wait))
        self.outlook = Mock(
            spec=Outlook, region="us", parts=Mock(role=self.role, clock=clock, metadata=self)
        )
        type(self.outlook).domain = property(lambda _: self.image.main_domain)

    async def _wait(self, _ms: int) -> None:
        self._left -= 1
        if not self._left:
            self.image = replace(self.image, feature_level=4)

    async def apply(self, command: Command) -> None:
        self.image = apply(self.image, command)


async def test_INV_M24_where_older_nodes_may_be_it_says_what_to_do_and_goes_on_once_that_is_done() -> (
    None
):
    region = Region(raised_after=2)
    first = taken_over(4)
    await record_lineage(region.outlook, first, learnt=True)
    assert region.image.main_domain.lineage == (as_image_entry(first),)
    assert region.role.fence.await_count == 2
    (reason,) = region.role.fence.await_args.args
    assert "region us began region epoch 17 twice" in reason
    assert "tidemark cluster upgrade --finalize" in reason


async def test_an_own_entry_that_comes_too_late_is_refused() -> None:
    region = Region(raised_after=1)
    with pytest.raises(CommandRefused, match="comes too late"):
        await record_lineage(region.outlook, taken_over(4), learnt=False)
    region.role.fence.assert_not_awaited()
