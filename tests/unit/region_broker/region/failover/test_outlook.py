"""What a node that begins to lead its region knows of the others: nothing that it heard when it led before (ADR 48)."""

from collections.abc import Coroutine
from unittest.mock import Mock

from msgspec.structs import replace

from geo_replicator.folder_life import Shown
from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import LineageEntry
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings, Outlook
from region_broker.region.peers.protocol import RUNS_ELSEWHERE
from tests.fixtures.linked_regions import PlayedIdentity

EPOCH = RegionEpoch(8)
ENTRY = LineageEntry(
    region_epoch=RegionEpoch(17), acting_region="us", base_region_epoch=EPOCH, base_number=1
)


def spawn(work: Coroutine[object, None, None], _name: str) -> bool:
    work.close()
    return True


def test_a_node_that_leads_again_goes_by_nothing_that_it_heard_before() -> None:
    """1. It leads, and is refused by another region. 2. Another node leads, and all of that is settled. 3. It leads again."""
    remembered = Shown(folder_id="f", incarnations=("a", "b"), incarnation_count=2, elected=True)
    folder = Mock()
    folder.identity.met = {}
    parts = FailoverParts(
        domain="main", clock=Mock(), metadata=Mock(), role=Mock(), tidemarks=Mock(), quarantine=Mock(), peers=Mock(),
        folder=folder, manifest=Mock(),
    )  # fmt: skip
    outlook = Outlook(parts, FailoverSettings())
    told = Mock()
    outlook.lives.spawn, outlook.lives.on_elected = spawn, told
    hello = replace(PlayedIdentity("us").hello(), lineage=(ENTRY,), abandoned_epoch=EPOCH)
    outlook.heed(hello)
    outlook.heard_ms["us"] = 1
    outlook.refuted = Mock(region_epoch=EPOCH)
    outlook.nobody_acts = True
    outlook.lives.heed(replace(hello, answers=True, refused="why", refused_code=RUNS_ELSEWHERE))
    assert outlook.lives.aside()

    folder.identity.met = {"us": remembered}
    outlook.begin_anew()
    assert (outlook.hellos, outlook.heard_ms) == ({}, {})
    assert outlook.abandoned_epoch("us") == 0
    assert not outlook.is_refuted(EPOCH)
    assert not outlook.nobody_acts
    assert not outlook.lives.aside()
    assert outlook.lives._known.known("us") == remembered, "what others have met meanwhile"
    assert (outlook.lives.spawn, outlook.lives.on_elected) == (spawn, told)
