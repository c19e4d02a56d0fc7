"""Rule T24, the candidate's side: below a claim that was answered and cannot be copied it takes nothing over."""

from unittest.mock import AsyncMock, Mock

import pytest

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import TakeoverBegun
from geo_replicator.lineage import Cut, Lineage, TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.region.failover.messages import PromiseAnswer
from region_broker.region.failover.steps.catching_up import reach_claims
from region_broker.region.failover.steps.outlook import FailoverSettings, Outlook
from tests.fixtures.node_logs import ManualClock

EPOCH = RegionEpoch(8)
OWN = 45
TAKEOVER = TakeoverBegun(RegionEpoch(17), "old", "operation", planned=False, forced=True)


def promised(number: int) -> PromiseAnswer:
    return PromiseAnswer(granted=True, reason="", claim_region_epoch=EPOCH, claim_number=number)


class WaitedClock(ManualClock):
    """On which who waits has waited."""

    async def sleep_ms(self, duration_ms: float) -> None:
        self.pass_ms(int(duration_ms))


class Candidate:
    """One that holds `OWN`, and what it copies: from a region of `gives`, all that this one claims."""

    def __init__(self, gives: dict[str, int]) -> None:
        self.asked: list[str] = []
        self.wanted: list[TidemarkPoint] = []
        self._gives = gives
        self._held = OWN
        role = Mock(logs=Mock(return_value=[]), mirror=AsyncMock(side_effect=self._follow))
        tidemarks = Mock(lag=Mock(return_value={}))
        parts = Mock(role=role, tidemarks=tidemarks, clock=WaitedClock())
        self.outlook = Mock(spec=Outlook, parts=parts, settings=FailoverSettings(), region="us")
        self.outlook.lineage.return_value = Lineage(())
        self.outlook.claim.side_effect = self.outlook.known_claim.side_effect = self._claim

    def _claim(self) -> Cut:
        return Cut(TidemarkPoint(EPOCH, self._held), {})

    async def _follow(self, term: Mock) -> None:
        self.asked.append(term.primary_region)
        self.wanted.append(term.wanted)
        self._held = max(self._held, self._gives.get(term.primary_region, 0))

    async def reach(self, **claims: int) -> str | None:
        answers = {name: promised(number) for name, number in claims.items()}
        state = State(region="us", phase=Phase.FENCING, region_epoch=EPOCH)
        return await reach_claims(self.outlook, state, TAKEOVER, answers)


@pytest.mark.parametrize("lesser", [{}, {"third": 48}, {"third": OWN}, {"third": 50}])
async def test_T24_INV_CUP1_a_claim_that_cannot_be_copied_gives_the_takeover_up_whatever_others_claim(
    lesser: dict[str, int],
) -> None:
    """1. The old region and a third one promise, and have both reached more. 2. From the one that has most, nothing arrives."""
    candidate = Candidate(gives={})
    refusal = await candidate.reach(old=50, **lesser)
    assert refusal is not None
    assert "has reached" in refusal
    assert "--accept-behind" in refusal
    assert candidate.asked == ["third", "old"] if lesser == {"third": 50} else ["old"]


async def test_T24_INV_CUP1_where_one_cannot_be_copied_another_with_as_much_can() -> None:
    candidate = Candidate(gives={"old": 50})
    assert await candidate.reach(old=50, third=50) is None
    assert candidate.asked == ["third", "old"]


async def test_INV_THN3_what_is_copied_up_to_is_passed_by_on_no_account() -> None:
    candidate = Candidate(gives={"old": 50})
    assert await candidate.reach(old=50) is None
    assert candidate.wanted == [TidemarkPoint(EPOCH, 50)]


async def test_T24_INV_CUP1_nothing_is_copied_where_nobody_has_more() -> None:
    candidate = Candidate(gives={})
    assert await candidate.reach(old=OWN, third=OWN - 1) is None
    assert candidate.asked == []
