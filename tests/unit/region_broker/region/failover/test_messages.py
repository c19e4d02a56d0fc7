"""What two regions say to each other about a takeover."""

from geo_replicator.lineage import TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.region.failover.messages import PromiseAnswer


def test_T24_a_promise_names_the_claim_by_region_epoch_and_number() -> None:
    answer = PromiseAnswer(
        granted=True, reason="", claim_region_epoch=RegionEpoch(8), claim_number=5
    )
    assert answer.claim == TidemarkPoint(RegionEpoch(8), 5)
