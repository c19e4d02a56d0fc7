"""What a node of a region with several does as it begins to lead, and when it speaks for its region (ADR 48)."""

from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from geo_replicator.failover import born
from geo_replicator.failover_events import Born
from idempotency.identity import RegionEpoch
from region_broker.node.leading_region import LeadingRegion, LedWith
from region_broker.region.peers.protocol import NOT_ACTING, NOT_LEADING

BORN = Born("us", True, RegionEpoch(8), "f" * 32)


class Leads:
    """A node whose parts are played; `led_under` as its metadata say."""

    def __init__(self) -> None:
        self.led_under: Any = 1
        self.config = Mock()
        self.parts = Mock(begin=AsyncMock())
        self.parts.failover = Mock(running=False, recover=AsyncMock(), run=AsyncMock())
        self.parts.tidemarks = Mock(take_over_reached=AsyncMock())
        self.parts.record.begin = AsyncMock()
        self.parts.storage.journal.recover.return_value = [BORN]
        parts = self.parts
        led_with = LedWith(parts.failover, parts.tidemarks, parts.source)
        self.region = LeadingRegion(
            self.config, parts.storage, parts.record, led_with, lambda: self.led_under
        )

    def code(self) -> str:
        refused = self.region.why_silent()
        return "" if refused is None else refused.code


def test_a_node_speaks_for_its_region_while_it_leads_and_has_begun_to() -> None:
    node = Leads()
    assert node.code() == NOT_ACTING
    node.parts.failover.running = True
    assert node.code() == ""
    node.led_under = None
    assert node.code() == NOT_LEADING, "its failover has not ended yet"


@pytest.mark.parametrize(
    ("leader", "told"), [(None, "no node does"), (5, "node 5 does"), (4, "hears no majority")]
)
def test_who_leads_instead_is_told_and_never_that_it_is_this_node(
    leader: int | None, told: str
) -> None:
    """One that was elected, and is cut off from the others, leads no more; the metadata name it until another one is elected."""
    node = Leads()
    node.led_under, node.config.own_node.node_id = None, 4
    image = node.parts.storage.metadata.image
    image.leadership.leader = None if leader is None else Mock(node_id=leader)
    refused = node.region.why_silent()
    assert refused is not None
    assert told in str(refused)
    assert "node 4 does" not in str(refused).removeprefix("node 4 does not lead")


async def test_INV_LSH6_what_the_folder_knew_as_the_regions_only_one_is_what_the_region_begins_with() -> (
    None
):
    node = Leads()
    node.region.recover()
    await node.region.begin()
    node.parts.record.begin.assert_awaited_once_with(born(BORN))


@pytest.mark.parametrize("time", ["first", "again"])
async def test_INV_FA3_nothing_of_an_earlier_time_is_gone_by_when_it_leads(time: str) -> None:
    """Others have led meanwhile: what was heard, held and reached is found anew before the failover goes on."""
    node = Leads()
    if time == "again":
        await node.region.lead()
        node.parts.reset_mock()
    await node.region.lead()
    said = [name for name, _, _ in node.parts.mock_calls]
    assert said[:5] == [
        "source.begin_anew", "storage.hold.begin_anew", "tidemarks.take_over_reached", "failover.recover", "failover.run",
    ]  # fmt: skip
    node.parts.storage.hold.begin_anew.assert_called_once_with(node.parts.record.identity.met)


async def test_a_node_shows_what_is_recorded_once_it_leads_no_more() -> None:
    node = Leads()
    await node.region.lead()
    node.parts.failover.show.assert_called_once_with(node.parts.record.recover().state)
