"""Keys that change while whole nodes run: what follows of each that works by time, at the primary and at a mirror (KIP-226)."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from idempotency.pieces import Pieces
from region_broker.controller.metadata_commands import SetNodeConfigs
from region_broker.node import Node
from region_broker.partitions.upkeep import Upkeep
from region_broker.records.batches import Record, build_batch
from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.simulation, pytest.mark.usefixtures("silence")]
HOUR_MS = 3_600_000


async def set_configs(region: Region, **configs: int) -> None:
    node_id = region.names.index(region.name) + 1
    texts = {key: str(value) for key, value in configs.items()}
    await region.node.storage.metadata.apply(SetNodeConfigs(node_id, texts))


def published(region: Region) -> int:
    leader = region.node.tidemarks.cut_leader
    assert leader is not None
    return leader.published.number


async def written(pair: Pair, connection: Connection, values: Iterable[bytes]) -> None:
    for value in values:
        await connection.produce("stream", {0: build_batch([Record(None, value)])})


async def test_tidemarks_follow_a_changed_interval_at_once(tmp_path: Path) -> None:
    async with region_pair(tmp_path, seed=3) as pair:
        await pair.create_topic("stream", 1)
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        await written(pair, connection, [b"a"])
        theirs = pair.us.partition("stream", 0)
        await pair.until(lambda: theirs.sight.last_stable_offset == 1, "it is shown")
        await set_configs(pair.eu, tidemark_interval_ms=HOUR_MS, mirror_whole_wait_ms=-1)
        await written(pair, connection, [b"b"])
        await pair.until(lambda: theirs.high_watermark == 2, "it is there")
        before = published(pair.eu)
        await asyncio.sleep(5)
        assert published(pair.eu) == before
        assert theirs.sight.last_stable_offset == 1
        await set_configs(pair.eu)
        await pair.until(lambda: theirs.sight.last_stable_offset == 2, "an hour is not waited for")


async def test_upkeep_follows_a_changed_interval_within_a_second(tmp_path: Path) -> None:
    rounds: list[Node] = []

    def counted(node: Node) -> None:
        maintain = node.maintain

        async def counting() -> None:
            rounds.append(node)
            await maintain()

        node.maintain = counting  # type: ignore[method-assign]

    async with region_pair(tmp_path, seed=4) as pair:
        await pair.us.kill()
        pair.us.settings = {"retention_check_interval_ms": HOUR_MS}
        pair.us.on_open = counted
        await pair.us.start()
        await asyncio.sleep(60)
        assert rounds == []
        await set_configs(pair.us, retention_check_interval_ms=100)
        await asyncio.sleep(3)
        assert len(rounds) >= 10
        await set_configs(pair.us)
        await asyncio.sleep(1)
        count = len(rounds)
        await asyncio.sleep(60)
        assert len(rounds) == count


async def test_retention_that_deleted_as_much_as_it_may_goes_on_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_ms: list[int] = []

    async with region_pair(tmp_path, seed=6) as pair:

        def maintain(of: Upkeep, *_asked: object) -> Pieces[int]:
            if of is not pair.eu.node.storage.partitions.upkeep:
                return 0
            for _ in range(3):
                at_ms.append(of.clock.monotonic_ms())
                yield
            return 3

        monkeypatch.setattr(Upkeep, "maintain", maintain)
        await asyncio.sleep(1)
        first, second, third, fourth, *_ = at_ms
        assert max(second - first, third - second) < (fourth - third) / 2


async def test_a_mirror_keeps_its_own_over_a_kill(tmp_path: Path) -> None:
    """What was set at one region is no other's."""
    async with region_pair(tmp_path, seed=5) as pair:
        await set_configs(pair.us, metrics_names_max=5, mirror_whole_wait_ms=7_000)
        assert pair.eu.node.configs.present.metrics_names_max == 200
        assert pair.us.node.tidemarks.view is not None
        assert pair.us.node.tidemarks.view.whole_wait_ms == 7_000
        await pair.us.kill()
        await pair.us.start()
        present = pair.us.node.configs.present
        assert (present.metrics_names_max, present.mirror_whole_wait_ms) == (5, 7_000)
        assert pair.us.node.tidemarks.view is not None
        assert pair.us.node.tidemarks.view.whole_wait_ms == 7_000
