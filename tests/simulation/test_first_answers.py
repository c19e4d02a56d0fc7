"""What a region answers first after a start: what it had shown, and to nobody less (T16)."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from geo_replicator.directory import next_region_epoch
from geo_replicator.failover import State
from geo_replicator.failover_events import PromiseGiven
from geo_replicator.link.reaching import Reaching
from region_broker.node import Node
from region_broker.records.batches import Record, build_batch
from tests.simulation.kafka_client import Connection, Reader, Refused
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def slow_to_mirror(node: Node) -> None:
    """Let a second pass before the node follows the primary: clients are at its door by then."""
    steps = node.failover.steps
    mirror = steps.mirror

    async def later(state: State) -> None:
        await asyncio.sleep(1)
        await mirror(state)

    steps.mirror = later  # type: ignore[method-assign]


async def test_T16_a_mirror_that_starts_answers_nobody_before_it_shows_what_it_had_shown(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic("stream", 1)
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        await connection.produce("stream", {0: build_batch([Record(None, b"x")])})
        theirs = pair.us.partition("stream", 0)
        await pair.until(lambda: theirs.sight.last_stable_offset == 1, "it is shown")
        await pair.us.kill()
        pair.us.on_open = slow_to_mirror
        network = pair.fabric.site("reader")
        seen: list[dict[int, int]] = []
        await pair.us.begin()
        while not seen:
            try:
                reader = await Connection.open(network, pair.us.kafka_port)
                seen.append(await reader.ends("stream", 1))
            except OSError:
                await asyncio.sleep(0)
        assert seen == [{0: 1}]


async def one_record(pair: Pair) -> None:
    await pair.create_topic("stream", 1)
    connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
    await connection.produce("stream", {0: build_batch([Record(None, b"x")])})
    theirs = pair.us.partition("stream", 0)
    await pair.until(lambda: theirs.sight.last_stable_offset == 1, "it is shown")


async def told_end(connection: Connection) -> int:
    """Return what ListOffsets says."""
    return (await connection.ends("stream", 1))[0]


async def read_end(connection: Connection) -> int:
    """Return how far one Fetch from the beginning leads."""
    return await Reader("stream", 1, committed=True).read(connection)


async def first_answers(
    pair: Pair, region: Region, ask: Callable[[Connection], Awaitable[int]] = told_end
) -> tuple[list[int], list[ErrorCode]]:
    """Return the first end that a region tells, and the errors before it; without one, for three seconds."""
    network, refused = pair.fabric.site("reader"), set[ErrorCode]()
    loop = asyncio.get_running_loop()
    until_s = loop.time() + 3
    while loop.time() < until_s:
        try:
            reader = await Connection.open(network, region.kafka_port)
            return [await ask(reader)], list(refused)
        except OSError:
            await asyncio.sleep(0.1)
        except Refused as error:
            refused.add(error.code)
            await asyncio.sleep(0.1)
    return [], list(refused)


async def test_T16_a_primary_that_starts_tells_no_end_before_it_acts(tmp_path: Path) -> None:
    """INV-PT9. It asks the others first whether it still may: meanwhile it shows nothing, and its logs do not end at their beginning."""
    async with region_pair(tmp_path, seed=1) as pair:
        await one_record(pair)
        await pair.us.kill()
        await pair.eu.kill()
        await pair.eu.begin()
        assert await first_answers(pair, pair.eu) == ([1], [ErrorCode.offset_not_available])


async def test_T16_a_primary_that_starts_lets_no_reader_believe_that_it_is_at_the_end(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await one_record(pair)
        await pair.us.kill()
        await pair.eu.kill()
        await pair.eu.begin()
        found = await first_answers(pair, pair.eu, read_end)
        assert found == ([1], [ErrorCode.not_leader_or_follower])


async def test_T16_a_region_that_starts_while_it_stands_still_tells_no_end(tmp_path: Path) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await one_record(pair)
        driver = pair.us.node.failover
        promised = next_region_epoch([driver.state.region_epoch], 1)
        await driver.record(PromiseGiven(promised, "eu"), expected=driver.state)
        await pair.us.kill()
        await pair.eu.kill()
        await pair.us.begin()
        assert await first_answers(pair, pair.us) == ([], [ErrorCode.offset_not_available])


async def test_T16_a_region_that_returned_tells_no_last_stable_offset_that_is_only_the_least(
    tmp_path: Path,
) -> None:
    """INV-PT9. As after its return: of transactions that it has forgotten it does not know yet which are whole."""
    async with region_pair(tmp_path, seed=1) as pair:
        await one_record(pair)
        theirs = pair.us.partition("stream", 0)
        theirs.state.forget_completed_below(1)
        theirs.sight.whole_end = 0
        assert await first_answers(pair, pair.us) == ([], [ErrorCode.offset_not_available])
        theirs.show_up_to(1, 1)
        assert await first_answers(pair, pair.us) == ([1], [])


async def test_T16_a_log_that_had_stopped_tells_no_end_before_the_whole_cut_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-MV6. 1. A bit flips in a mirror's log: it stops, while others are shown further. 2. The bit is given back."""
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic("other", 1)
        await one_record(pair)
        path = pair.us.partition("stream", 0).log.segments.segments[-1].path
        await pair.us.kill()
        await pair.us.start()  # what was in the journal only lies in the log then
        await pair.us.kill()
        pair.us.disk.damage(path, 40)
        await pair.us.start()
        assert pair.us.partition("stream", 0).failed is not None
        reached = pair.us.node.storage.reached
        assert 0 not in reached.whole.listed.values(), "INV-MV7: nobody was shown more"
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        await connection.produce("other", {0: build_batch([Record(None, b"y")])})
        await pair.until(lambda: 0 in reached.whole.listed.values(), "it was looked at")
        await pair.us.kill()
        pair.us.disk.damage(path, 40)
        look = Reaching._reach_complete

        async def late(self: Reaching) -> None:
            await asyncio.sleep(1)
            await look(self)

        monkeypatch.setattr(Reaching, "_reach_complete", late)
        await pair.us.start()
        assert await first_answers(pair, pair.us) == ([1], [ErrorCode.offset_not_available])
