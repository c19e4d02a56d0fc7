"""What the primary knows of its mirrors' lag (INV-MG1 to INV-MG5)."""

from uuid import UUID

from geo_replicator.lineage import LogKey, TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.region.mirror.mirror_lag import TIDEMARKS_REMEMBERED, MirrorLags, Taken

LOG = LogKey(UUID(int=1), 0)


def point(number: int) -> TidemarkPoint:
    return TidemarkPoint(RegionEpoch(8), number)


def lag_ms(lags: MirrorLags, now_ms: int) -> object:
    return lags.status("us", [], now_ms)["lag"]["ms"]


def test_INV_MG1_what_was_sent_and_not_taken_when_a_session_ends_counts_as_missing() -> None:
    """Two fetches are under way: the third request says that the first answer was taken."""
    taken, positions = Taken(), {LOG: 0}
    for at in (0, 10, 20):
        taken.asked()
        taken.answered({LOG: at})
        positions[LOG] = at + 10
    taken.give_up(positions)
    assert positions == {LOG: 10}


def test_INV_MG2_ms_counts_from_the_first_tidemark_that_the_mirror_has_not_reached() -> None:
    lags = MirrorLags(started_ms=0)
    lags.published(point(1), 1_000)
    lags.reached("us", point(1))
    assert lag_ms(lags, 5_000) == 0
    lags.published(point(2), 6_000)
    lags.published(point(3), 7_000)
    assert lag_ms(lags, 9_000) == 3_000
    lags.reached("us", point(2))
    assert lag_ms(lags, 9_000) == 2_000
    lags.reached("us", point(3))
    assert lag_ms(lags, 9_000) == 0


def test_INV_MG2_ms_goes_on_growing_when_more_tidemarks_came_than_are_remembered() -> None:
    lags = MirrorLags(started_ms=0)
    lags.published(point(1), 0)
    lags.reached("us", point(1))
    for number in range(2, TIDEMARKS_REMEMBERED + 10):
        lags.published(point(number), number)
    assert lag_ms(lags, 1_000_000) == 1_000_000 - 2
    lags.reached("us", point(2))  # which one comes next is forgotten
    assert lag_ms(lags, 1_000_000) == 1_000_000 - 2


def test_INV_MG2_ms_grows_while_something_waits_for_a_tidemark_that_is_not_published() -> None:
    lags = MirrorLags(started_ms=0)
    lags.published(point(1), 1_000)
    lags.reached("us", point(1))

    def ms(now_ms: int) -> object:
        return lags.status("us", [], now_ms, waiting_since_ms=4_000)["lag"]["ms"]

    assert (ms(5_000), ms(65_000)) == (1_000, 61_000)
    lags.published(point(2), 3_000)
    assert ms(5_000) == 2_000, "the older of both counts"


def test_a_link_is_as_old_as_its_session_and_has_no_age_without_one() -> None:
    lags = MirrorLags(started_ms=0)
    lags.began("us", {}, 2_000)
    assert lags.status("us", [], 7_000)["link_age_ms"] == 5_000
    lags.ended("us")
    assert lags.status("us", [], 8_000)["link_age_ms"] is None


def test_INV_MG5_silence_is_counted_from_the_begin_of_the_term_at_most() -> None:
    lags = MirrorLags(started_ms=0)
    lags.heard("ap", 5_000)  # in an earlier term of this region

    def silent_ms(region: str, now_ms: int) -> object:
        return lags.status(region, [], now_ms)["silent_ms"]

    assert (silent_ms("us", 60_000), silent_ms("ap", 60_000)) == (60_000, 55_000)
    lags.term_began(60_000)
    assert (silent_ms("us", 60_100), silent_ms("ap", 60_100)) == (100, 100)
    lags.heard("ap", 60_200)
    assert (silent_ms("us", 61_200), silent_ms("ap", 61_200)) == (1_200, 1_000)
    assert lags.heard_ms_ago("us", 61_200) is None


def test_INV_MG3_nothing_is_known_of_a_mirror_that_has_not_come() -> None:
    known = MirrorLags(started_ms=1_000).status("us", [], 31_000)
    assert known["lag"] == {"records": None, "bytes": None, "ms": None}
    assert (known["heard_ms_ago"], known["silent_ms"]) == (None, 30_000)
    assert (known["connected"], known["reached"]) == (False, None)
