"""Known gaps of T14 and T21, a row of docs/ROADMAP.md each: tests that fail, and that say so when they no longer do."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from idempotency.identity import ProducerEpoch, ProducerId
from tests.simulation.kafka_client import batch_of
from tests.simulation.region_pair import region_pair, until
from tests.simulation.test_deleted_by_the_lost import records_in_segments
from tests.simulation.test_folders_without_history import TOPIC, shown, three_records, write
from tests.simulation.test_stopped_logs import stop_without_the_log

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

OF_NOBODY = ProducerId(7 << 48 | 5), ProducerEpoch(0)
"""A producer id that no ledger knows."""


@pytest.mark.xfail(
    reason="ROADMAP: a mirror removes what the primary keeps for another one", raises=AssertionError
)
async def test_a_mirror_that_was_behind_follows_who_took_over_after_records_were_deleted(
    tmp_path: Path,
) -> None:
    """1. us is cut off for a moment. 2. Records are deleted by order: eu keeps them for us, ap does not. 3. eu is lost, and ap
    takes over. 4. us is there again: nobody is missing who could not be missed.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.eu.node.topics.create_topic(
            TOPIC, 1, {"segment.bytes": "4096", "retention.ms": "-1"}
        )
        await write(pair.eu, b"x" * 1000)
        await pair.until(lambda: shown(pair.us) == shown(ap) == 1, "both show it")
        for other in ("eu", "ap"):
            pair.fabric.cut("us", other, silent=False)
        for _ in range(40):
            await write(pair.eu, b"x" * 1000)
        await pair.until(lambda: shown(ap) == 41, "ap shows all")
        assert await pair.eu.partition(TOPIC, 0).retention.delete_records(30) == 30
        await pair.until(lambda: ap.partition(TOPIC, 0).log_start_offset == 30, "ap follows")
        await pair.until(lambda: ap.partition(TOPIC, 0).kept_from > 1, "its segments are gone")
        assert pair.eu.partition(TOPIC, 0).kept_from <= 1, "they are kept for us"
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.take_over(planned=False, by=ap)
        for other in ("eu", "ap"):
            pair.fabric.heal("us", other)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows ap")
        await write(ap, b"more")
        await pair.until(lambda: shown(pair.us) == 42, "us shows all")


@pytest.mark.xfail(
    reason="ROADMAP: a mirror that has removed records by an order that is void is switched to",
    raises=AssertionError,
)
async def test_records_of_a_void_order_survive_a_switch_to_a_mirror_that_has_removed_them(
    tmp_path: Path,
) -> None:
    """1. eu deletes by order: ap reaches that, and us does not. 2. eu and ap are lost, and us takes over: the order is void. 3. ap
    returns, follows, and is switched to.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await records_in_segments(pair)
        await pair.until(lambda: shown(ap) == 40, "ap shows all")
        for other in ("eu", "ap"):
            pair.fabric.cut("us", other, silent=False)
        assert await pair.eu.partition(TOPIC, 0).retention.delete_records(30) == 30
        await pair.until(lambda: ap.partition(TOPIC, 0).log_start_offset == 30, "ap follows")
        await ap.node.maintain()
        for name in ("eu", "ap"):
            await pair.regions.pop(name).kill()
        await pair.fail_over()
        pair.fabric.heal("ap", "us")
        await ap.begin()
        pair.regions["ap"] = ap
        await write(pair.us, b"more")
        await pair.until(lambda: shown(ap) == 41, "ap follows us")
        assert pair.us.partition(TOPIC, 0).log_start_offset == 0
        await pair.take_over(planned=True, by=ap)
        assert ap.partition(TOPIC, 0).log_start_offset == 0


@pytest.mark.xfail(
    reason="ROADMAP: an orphan in a log that had stopped at the takeover is aborted by hand",
    raises=AssertionError,
)
async def test_an_orphan_in_a_log_that_had_stopped_is_aborted_once_it_is_whole(
    tmp_path: Path,
) -> None:
    """Its data lies below D, and its first ledger record at or above L: it began between ROUND and the collecting of D."""
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        log = pair.eu.partition(TOPIC, 0)
        outcome = log.writer.append(batch_of(b"open", OF_NOBODY, 0, transactional=True))
        await log.wait_committed(outcome.next_offset)
        await pair.until(lambda: shown(pair.us) == 4, "us has it below D")
        whole = await stop_without_the_log(pair.us)
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.us.start()
        await pair.take_over(planned=False)
        await pair.us.kill()
        whole()
        await pair.us.start()
        await until(lambda: pair.us.node.role.acting, "us acts")
        await pair.us.node.failover.parts.clock.sleep_ms(200_000)
        assert pair.us.partition(TOPIC, 0).failed is None
        assert pair.us.partition(TOPIC, 0).sight.last_stable_offset == 4
