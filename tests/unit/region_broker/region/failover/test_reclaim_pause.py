"""INV-FS9: what lies between two takeovers of a region from itself."""

from msgspec.structs import replace

from geo_replicator.failover import Phase, State
from idempotency.identity import RegionEpoch
from region_broker.region.failover.steps.reclaim_pause import (
    PAUSE_MS_MAX,
    PAUSE_MS_MIN,
    ReclaimPause,
)
from tests.fixtures.node_logs import ManualClock

FENCED = State(region="eu", phase=Phase.FENCED, region_epoch=RegionEpoch(8), acting_region="eu")


def pauses_ms(pause: ReclaimPause, clock: ManualClock, states: list[State]) -> list[int]:
    """Return how long each of these states waited."""
    found = []
    for state in states:
        begun_ms = clock.monotonic_ms()
        while not pause.is_over(state):
            clock.now_ms += PAUSE_MS_MIN
        found.append(clock.monotonic_ms() - begun_ms)
    return found


def test_INV_FS9_the_pause_doubles_until_the_region_has_acted() -> None:
    clock = ManualClock()
    pause = ReclaimPause(clock)
    given_up = [
        replace(FENCED, abandoned_epoch=RegionEpoch(number << 3)) for number in range(2, 15)
    ]
    assert pauses_ms(pause, clock, [FENCED]) == [0]
    found = pauses_ms(pause, clock, given_up)
    assert found[:4] == [1_000, 2_000, 4_000, 8_000]
    assert found[-2:] == [PAUSE_MS_MAX, PAUSE_MS_MAX]
    acted = replace(given_up[-1], region_epoch=RegionEpoch(15 << 3))
    assert pauses_ms(pause, clock, [acted]) == [0]
    again = replace(acted, abandoned_epoch=RegionEpoch(16 << 3))
    assert pauses_ms(pause, clock, [again]) == [PAUSE_MS_MIN]


def test_INV_FS9_an_old_takeover_that_was_given_up_before_the_region_acted_pauses_nothing() -> None:
    acted = replace(FENCED, region_epoch=RegionEpoch(24), abandoned_epoch=RegionEpoch(16))
    assert ReclaimPause(ManualClock()).is_over(acted)
