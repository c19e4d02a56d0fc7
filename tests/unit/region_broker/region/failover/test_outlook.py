"""What a node that begins to lead its region knows of the others: nothing that it heard when it led before (ADR 48)."""

from collections.abc import Coroutine
from unittest.mock import Mock
from uuid import UUID

from msgspec.structs import replace

from geo_replicator.folder_life import Shown
from geo_replicator.lineage import LogKey
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


def outlook_of(*lineage: LineageEntry) -> Outlook:
    metadata, folder = Mock(), Mock()
    metadata.image.domains = {"main": Mock(lineage=lineage)}
    folder.identity.met = {}
    return Outlook(
        FailoverParts(
            domain="main", clock=Mock(), metadata=metadata, role=Mock(), tidemarks=Mock(), quarantine=Mock(), peers=Mock(),
            folder=folder, manifest=Mock(),
        ),
        FailoverSettings(),
    )  # fmt: skip


def test_an_entry_of_the_lineage_is_read_once_also_where_each_handshake_tells_it_anew() -> None:
    """It names every log: of ten thousand, and after forty takeovers, reading all of it takes seconds."""
    key = LogKey(UUID(int=7), 1)
    entry = replace(ENTRY, positions={key.encode(): 5})
    outlook = outlook_of(entry)
    (read,) = outlook.lineage().entries
    assert read.positions == {key: 5}
    told = replace(PlayedIdentity("us").hello(), lineage=(replace(entry, positions={**entry.positions}),))  # fmt: skip
    outlook.heed(told)
    assert outlook.lineage().entries[0] is read
    outlook.heed(replace(told, lineage=(replace(entry, positions={key.encode(): 4}),)))
    assert outlook.lineage().entries[0].positions == {key: 4}, "another one under the same epoch"
    outlook.heed(replace(told, lineage=(replace(ENTRY, region_epoch=RegionEpoch(24)),)))
    assert [each.region_epoch for each in outlook.lineage().entries] == [17, 24]


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
