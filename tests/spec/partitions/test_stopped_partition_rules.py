"""T12, T14, T18: what one partition has to suffer, the others have not: takeovers, returns and links go on."""

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.fixtures.failover_regions import ORDERS, Pair, fail_over
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


async def tail_behind_the_last_tidemark(pair: Pair) -> None:
    """Let the mirror show one record of each partition, and hold two more that no tidemark covers."""
    await pair.eu.topics.change_configs(ORDERS, {"segment.bytes": "4096"}, {})
    for number in range(2):
        await pair.eu.write("shown", number=number)
    await pair.reached("shown")
    await until(
        lambda: all(pair.us.partition(number).sight.visible_end == 1 for number in range(2)),
        "shown",
    )
    leader = pair.eu.tidemarks.cut_leader
    assert leader is not None
    leader._publish = lambda *_: asyncio.Event().wait()  # type: ignore[method-assign,assignment]
    for number in range(2):
        await pair.eu.write("tail" * 1_000, number=number)  # a segment of its own
        await pair.eu.write("tail", number=number)
    await until(
        lambda: all(pair.us.partition(number).high_watermark == 3 for number in range(2)), "copied"
    )


async def test_T18_a_takeover_goes_on_without_a_stopped_partition_and_names_it(pair: Pair) -> None:
    await tail_behind_the_last_tidemark(pair)
    pair.us.partition(1).log.fail("EIO: bad sector")
    await pair.eu.kill()
    operation = pair.us.operations.begin_failover(confirmed=True)
    await pair.us.ended(operation)
    assert operation.status == "succeeded", operation
    statement = operation.statement
    assert statement is not None
    assert statement.plain_record_count == 2  # of the partition that can be read
    assert "orders-1 has stopped here: what it holds from 1 to 3 cannot be named" in (
        statement.open_bound
    )
    await pair.us.write("after", number=0)
    assert pair.us.partition(1).failed is not None


async def test_T20_what_a_stopped_partition_holds_beyond_the_cut_is_cut_off_before_it_serves_again(
    pair: Pair,
) -> None:
    await tail_behind_the_last_tidemark(pair)
    pair.us.partition(1).log.fail("EIO: bad sector")
    await pair.eu.kill()
    await fail_over(pair.us)
    await pair.us.kill()
    await pair.us.start()  # and the disk can be read again
    await pair.us.until(Phase.ACTING)
    assert pair.us.partition(1).log_end_offset == 1
    (losses,) = await pair.us.operations.losses()
    assert losses.plain_record_count == 4
    assert await pair.us.write("after", number=1) == 1


async def test_T14_a_returning_log_that_starts_above_the_base_is_copied_anew(pair: Pair) -> None:
    """Its first records are gone, all of it is void, and the primary region has what it lacks."""
    await tail_behind_the_last_tidemark(pair)
    await pair.eu.partition(0).retention.delete_records(2)
    assert pair.eu.partition(0).log.trimmer.delete_segments_below(2) > 0
    assert pair.eu.partition(0).kept_from == 2
    await pair.eu.kill()
    await fail_over(pair.us)
    await pair.us.write("after", number=0)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    await pair.eu.shows("after")
    assert pair.eu.raw(0) == pair.us.raw(0)
    assert pair.eu.partition(0).kept_from == 0


@pytest.mark.parametrize("where", ["primary", "mirror"])
async def test_T12_a_stopped_partition_does_not_keep_others_from_being_copied(
    pair: Pair, where: str
) -> None:
    await pair.eu.write("first", number=1)
    await pair.eu.write("first", number=0)
    await pair.reached("first")
    await until(lambda: pair.us.partition(1).high_watermark == 1, "copied")
    stopped = pair.us if where == "mirror" else pair.eu
    if where == "primary":
        await pair.eu.write("not copied", number=1)
    stopped.partition(1).log.fail("EIO: bad sector")
    if where == "mirror":
        await pair.eu.write("not copied", number=1)
    for _ in range(3):
        await pair.eu.write("copied", number=0)
    await until(lambda: pair.us.partition(0).high_watermark == 4, "the other goes on")
    link = pair.us.link
    assert link.core.session_count == 1
    if where == "mirror":
        (reason,) = link.core.waiting.values()
        assert "orders-1 has stopped here" in reason or "EIO: bad sector" in reason
        nobody_knows = {"records": None, "bytes": None, "ms": None}
        assert link.status()["lag"] == nobody_knows, "never 0 while a log is not copied"


async def test_T14_a_primary_whose_disk_cannot_note_a_mirror_refuses_it_and_goes_on(
    pair: Pair,
) -> None:
    """Retention would not wait for what it does not know; and no mirror ends its primary."""
    await pair.us.kill()
    full = True

    async def meet(_region: str) -> None:
        if full:
            raise OSError(errno.ENOSPC, "no room")

    pair.eu.tidemarks._parts.source.meet = meet
    await pair.us.start()
    await until(
        lambda: (
            (link := pair.us.tidemarks.link) is not None
            and "cannot be noted" in link.core.last_error
        ),
        "it is refused",
    )
    await pair.eu.write("first")
    assert b"first" not in pair.us.raw()
    full = False
    await pair.reached("first")
