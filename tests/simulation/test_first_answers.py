"""What a mirror answers first after a start: what it had shown, and to nobody less (T16)."""

import asyncio
from pathlib import Path

import pytest

from geo_replicator.failover import State
from region_broker.node import Node
from region_broker.wire.batches import Record, build_batch
from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import region_pair

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
