"""Rules T15 and T16: a topic that only the lost region had deleted is there again, also in that region."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from geo_replicator.failover import Phase, State
from region_broker.node import Node
from region_broker.partitions.noted_starts import NotedStarts
from tests.simulation.kafka_client import Connection, Reader
from tests.simulation.region_pair import Pair, region_pair
from tests.simulation.swarm.workloads.setting import earliest
from tests.simulation.test_first_answers import first_answers
from tests.simulation.test_folders_without_history import TOPIC, shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
NOT_AVAILABLE = ErrorCode.offset_not_available


async def told_start(connection: Connection) -> int:
    """Return what ListOffsets says of the beginning."""
    return (await earliest(connection, TOPIC, 1))[0]


async def read_end(connection: Connection) -> int:
    """Return how far one Fetch from the beginning leads."""
    return await Reader(TOPIC, 1, committed=True).read(connection)


async def lost_behind(pair: Pair, order: Callable[[Pair], Awaitable[object]]) -> None:
    """Let the primary carry out an order that nobody hears of, and be lost; the mirror takes over and shows all."""
    await three_records(pair)
    pair.fabric.cut("eu", "us", silent=False)
    await order(pair)
    await pair.eu.kill()
    await pair.fail_over()
    assert shown(pair.us) == 3
    pair.fabric.heal("eu", "us")


async def delete_topic(pair: Pair) -> None:
    """Let the primary delete the topic."""
    await pair.eu.node.topics.delete_topic(TOPIC)


async def delete_two(pair: Pair) -> None:
    """Let the primary delete the first two records, by order."""
    assert await pair.eu.partition(TOPIC, 0).retention.delete_records(2) == 2


async def test_T16_a_region_that_had_deleted_a_topic_shows_it_again_when_it_returns(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await lost_behind(pair, delete_topic)
        await pair.eu.start()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.until(
            lambda: shown(pair.eu) == 3, "it shows the topic, though nobody writes to it"
        )


async def test_T16_a_region_that_has_not_copied_again_what_only_it_had_deleted_claims_no_later_tidemark(
    tmp_path: Path,
) -> None:
    """The topic cannot be read where it is held: all else is copied, and later tidemarks come."""
    async with region_pair(tmp_path, 2) as pair:
        await lost_behind(pair, delete_topic)
        base = pair.us.node.tidemarks.claim().point
        pair.us.partition(TOPIC, 0).stop("its disk is gone")
        await pair.eu.start()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.us.node.topics.create_topic("second", 1, {})

        def later_ones_came() -> bool:
            link = pair.eu.node.tidemarks.link
            return link is not None and len(link.reaching.frontier._pending) > 1

        def claims_later() -> bool:
            return pair.eu.node.tidemarks.claim().point > base

        await pair.until(lambda: later_ones_came() or claims_later(), "it hears of later tidemarks")
        assert not claims_later()


async def test_T14_records_that_only_the_lost_had_deleted_are_there_again_when_it_returns(
    tmp_path: Path,
) -> None:
    """DeleteRecords after the last tidemark that arrived, below where the logs are cut: no part of the history."""
    async with region_pair(tmp_path, 1) as pair:
        await lost_behind(pair, delete_two)
        await pair.eu.start()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.until(
            lambda: pair.eu.partition(TOPIC, 0).log_start_offset == 0, "it starts as the primary"
        )
        await pair.eu.kill()
        await pair.eu.start()
        assert pair.eu.partition(TOPIC, 0).log_start_offset == 0, "durably"


async def test_INV_NMS1_INV_NST2_who_takes_over_starts_where_its_tidemark_says_and_durably(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a mirror has noted at a tidemark is not on its disk yet as the primary is lost: an acknowledged order would be void."""

    async def never(_self: NotedStarts) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(NotedStarts, "run", never)
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await delete_two(pair)
        await pair.until(lambda: pair.us.partition(TOPIC, 0).log_start_offset == 2, "it is noted")
        assert not pair.us.partition(TOPIC, 0).trimming.start_is_kept
        await pair.eu.kill()
        await pair.fail_over()
        await pair.us.kill()
        await pair.us.start()
        assert pair.us.partition(TOPIC, 0).log_start_offset == 2


async def test_T14_a_region_that_returns_tells_no_start_that_a_lost_order_has_moved(
    tmp_path: Path,
) -> None:
    """INV-PT10. Who resets to "earliest" there would leave out what the others show."""
    async with region_pair(tmp_path, seed=1) as pair:
        await lost_behind(pair, delete_two)
        await pair.eu.begin()
        assert await first_answers(pair, pair.eu, told_start) == ([0], [NOT_AVAILABLE])
        assert await first_answers(pair, pair.eu, read_end) == ([3], [])


async def test_T14_a_mirror_that_has_not_compared_its_log_yet_lets_readers_wait(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await three_records(pair)
        theirs = pair.us.partition(TOPIC, 0)
        theirs.doubt_start()
        assert await first_answers(pair, pair.us, told_start) == ([0], []), "no order has moved it"
        await delete_two(pair)
        await pair.until(lambda: theirs.log_start_offset == 2, "the mirror follows")
        theirs.doubt_start()
        assert await first_answers(pair, pair.us, told_start) == ([], [NOT_AVAILABLE])
        assert await first_answers(pair, pair.us, read_end) == (
            [],
            [ErrorCode.not_leader_or_follower],
        )
        theirs.retention.confirm_start()
        assert await first_answers(pair, pair.us, told_start) == ([2], [])


async def test_T14_what_the_primary_deleted_stays_deleted_over_restarts_of_its_mirror(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await delete_two(pair)
        await pair.until(
            lambda: pair.us.partition(TOPIC, 0).log_start_offset == 2, "the mirror follows"
        )
        await pair.us.kill()
        await pair.us.start()
        starts = set()

        def has_copied_more() -> bool:
            mirrored = pair.us.partition(TOPIC, 0)
            starts.add(mirrored.log_start_offset)
            return mirrored.log_end_offset > 3

        await write(pair.eu, b"four")
        await pair.until(has_copied_more, "it copies on")
        assert starts == {2}


def cut_off_before_it_compares(pair: Pair) -> Callable[[Node], None]:
    """Return what cuts eu's node off from the others as soon as it begins to mirror."""

    def hooked(node: Node) -> None:
        steps = node.failover.steps
        mirror = steps.mirror

        async def cut_off(state: State) -> None:
            for other in pair.regions:
                if other != "eu":
                    pair.fabric.cut("eu", other, silent=False)
            await mirror(state)

        steps.mirror = cut_off  # type: ignore[method-assign]

    return hooked


async def test_T14_a_start_that_the_tidemark_reached_names_is_told_while_the_primary_is_gone(
    tmp_path: Path,
) -> None:
    """INV-PT10. The order lies below the cut that this region returned to: it cannot be lost, and a mirror serves its readers."""
    async with region_pair(tmp_path, seed=1) as pair:
        await three_records(pair)
        await delete_two(pair)
        theirs = pair.us.partition(TOPIC, 0)
        await pair.until(lambda: theirs.log_start_offset == 2, "the mirror follows")
        await pair.eu.kill()
        await pair.fail_over()
        pair.eu.on_open = cut_off_before_it_compares(pair)
        await pair.eu.begin()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.us.kill()
        del pair.regions["us"]
        assert (await first_answers(pair, pair.eu, told_start))[0] == [2]
        await pair.eu.kill()
        await pair.eu.begin()
        assert (await first_answers(pair, pair.eu, told_start))[0] == [2]
        assert pair.eu.partition(TOPIC, 0).sight.is_known


async def test_T24_a_lost_order_hides_nothing_that_the_donor_shows(tmp_path: Path) -> None:
    """1. eu deletes records, and is lost. 2. us acts without that order, ap follows. 3. eu returns, and us is lost before
    they compared their logs. 4. eu takes over, and copies from ap first.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await pair.until(lambda: shown(ap) == 3, "ap shows all")
        for other in ("us", "ap"):
            pair.fabric.cut("eu", other, silent=False)
        await delete_two(pair)
        await pair.eu.kill()
        await pair.fail_over()
        await write(pair.us, b"four")
        await pair.until(lambda: shown(ap) == 4, "ap follows us")
        for other in ("us", "ap"):
            pair.fabric.heal("eu", other)
        pair.eu.on_open = cut_off_before_it_compares(pair)
        await pair.eu.begin()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.us.kill()
        del pair.regions["us"]
        pair.fabric.heal("eu", "ap")
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        assert shown(pair.eu) == 4, "it has copied from ap"
        assert (await first_answers(pair, pair.eu, told_start))[0] == [0]
        await pair.until(lambda: ap.phase is Phase.MIRRORING, "ap follows")
        assert (await first_answers(pair, ap, told_start))[0] == [0]


async def test_T14_a_lost_order_hides_nothing_where_its_region_takes_over_before_it_compared(
    tmp_path: Path,
) -> None:
    """Nobody is there to copy from, and its base holds the records: so does the history that it acts from."""
    async with region_pair(tmp_path, seed=1) as pair:
        await lost_behind(pair, delete_two)
        pair.eu.on_open = cut_off_before_it_compares(pair)
        await pair.eu.begin()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.us.kill()
        del pair.regions["us"]
        await pair.take_over(planned=False, by=pair.eu)
        assert (await first_answers(pair, pair.eu, told_start))[0] == [0]


async def records_in_segments(pair: Pair) -> None:
    """Let the primary write 40 records into segments of a few, which the mirror shows."""
    await pair.eu.node.topics.create_topic(
        TOPIC, 1, {"segment.bytes": "4096", "retention.ms": "-1"}
    )
    for _ in range(40):
        await write(pair.eu, b"x" * 1000)
    await pair.until(lambda: shown(pair.us) == 40, "the mirror shows all")


async def test_T14_what_a_lost_order_had_deleted_is_there_again_in_both_regions(
    tmp_path: Path,
) -> None:
    """INV-RH1. Retention ran at the primary before any tidemark with that order was reached anywhere."""
    async with region_pair(tmp_path, 1) as pair:
        await records_in_segments(pair)
        pair.fabric.cut("eu", "us", silent=False)
        assert await pair.eu.partition(TOPIC, 0).retention.delete_records(30) == 30
        await pair.eu.node.maintain()
        await pair.eu.kill()
        await pair.fail_over()
        assert shown(pair.us) == 40
        pair.fabric.heal("eu", "us")
        assert (await first_answers(pair, pair.us, told_start))[0] == [0]
        await pair.eu.begin()
        told = await first_answers(pair, pair.eu, told_start)
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await write(pair.us, b"more")
        await pair.until(lambda: shown(pair.eu) == 41, "it follows")
        await pair.take_over(planned=True, by=pair.eu)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows")
        await write(pair.eu, b"even more")
        await pair.until(lambda: shown(pair.us) == 42, "us follows")
        starts = [pair.regions[name].partition(TOPIC, 0).log_start_offset for name in ("us", "eu")]
        assert (told[0], starts) == ([0], [0, 0]), "told first; and after a planned switch"


async def test_T14_what_an_order_deleted_goes_from_the_disk_once_the_mirror_has_reached_it(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await records_in_segments(pair)
        logs = [region.partition(TOPIC, 0) for region in (pair.eu, pair.us)]
        assert await logs[0].retention.delete_records(30) == 30
        await pair.until(lambda: logs[1].log_start_offset == 30, "the mirror follows")

        async def goes() -> None:
            while logs[0].kept_from <= 20:
                await pair.eu.node.maintain()
                await pair.eu.node.failover.parts.clock.sleep_ms(100)

        await asyncio.wait_for(goes(), 60)
        assert [log.kept_from <= 30 for log in logs] == [True, True]
