"""The wire form of what a mirror has shown."""

from uuid import UUID

import pytest

from geo_replicator.history import LastBatch, ShownLog
from geo_replicator.lineage import LogKey
from idempotency.identity import LeaderEpoch
from region_broker.region.peers.history_messages import LogEvidence


@pytest.mark.parametrize(
    "last", [None, LastBatch(LeaderEpoch(0), 0, 0), LastBatch(LeaderEpoch(524_289), 7, 9)]
)
def test_T33_what_a_mirror_has_shown_comes_back_from_the_wire(last: LastBatch | None) -> None:
    shown = ShownLog(LogKey(UUID(int=1), 2), cut_offset=8, end_offset=9, last=last, whole_from=3)
    assert LogEvidence.of(shown).shown() == shown
