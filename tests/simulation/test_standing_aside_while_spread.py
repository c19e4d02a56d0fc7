"""A region whose leaders are spread stands aside, and its quorum does not answer: what clients are told by leaders of data groups."""

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from region_broker.controller.cluster_commands import PreferSpread
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.region.failover.gathering import Gathering
from region_broker.region.peers.protocol import RUNS_ELSEWHERE
from tests.simulation.cluster_region_steps import TOPIC, all_alike, create
from tests.simulation.cluster_regions import MIRROR_OF_ONE, AnyNode, Regions, cluster_regions
from tests.simulation.kafka_client import Connection, Refused, batch_of

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
PARTITIONS = 6
ANONYMOUS = ProducerId(-1), ProducerEpoch(-1)


class Client:
    """Writes to a partition of a data group, one batch after the other; notes what was acknowledged, and whether it was sent behind the word."""

    def __init__(self, regions: Regions, at: AnyNode, partition: int) -> None:
        self._regions, self._at, self._partition = regions, at, partition
        self.acknowledged: list[bool] = []
        self.refused = 0

    async def run(self) -> None:
        network, tp = self._regions.fabric.site("client"), (TOPIC, self._partition)
        while True:
            connection = await Connection.open(network, self._at.kafka_port)
            try:
                while True:
                    is_behind = not self._groups().takes_writes
                    batch = batch_of(b"v", ANONYMOUS, -1, transactional=False)
                    await connection.produce(tp[0], {tp[1]: batch})
                    self.acknowledged.append(is_behind)
            except (Refused, OSError):
                self.refused += 1
            finally:
                connection.close()
            await asyncio.sleep(0.05)

    def _groups(self) -> Any:
        replication = self._at.node._replication
        assert replication is not None
        return replication.groups


async def test_INV_RGR11_nothing_is_acknowledged_behind_the_word_that_the_gate_is_shut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster_regions(tmp_path, 31, MIRROR_OF_ONE) as regions:
        main = regions.eu.led
        assert main.node._replication is not None
        assert main.node.role.on_gate == main.node._replication.leading.gate_moved
        await create(regions, regions.eu, PARTITIONS)
        metadata = main.node.storage.metadata
        await metadata.apply(PreferSpread(wanted=True))
        await regions.until(lambda: metadata.image.spread is not None, "leaders are spread")
        other = regions.eu.follower
        replication = other.node._replication
        assert replication is not None
        groups = replication.groups
        await regions.until(lambda: groups.any_open and groups.takes_writes, "it takes writes")
        number = next(n for n in range(PARTITIONS) if groups.is_open(other.partition(TOPIC, n)))
        client = Client(regions, other, number)
        asked_once, is_mute = Gathering._asked_once, [True]

        async def without_quorum(self: Gathering) -> str | None:
            return str(MetadataInDoubt("no quorum")) if is_mute[0] else await asked_once(self)

        monkeypatch.setattr(Gathering, "_asked_once", without_quorum)
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(client.run())
            await regions.until(lambda: len(client.acknowledged) > 5, "it writes")
            told = msgspec.structs.replace(
                regions.us.led.node.failover.hello(), answers=True, refused_code=RUNS_ELSEWHERE,
                refused="another node runs as region eu",
            )  # fmt: skip
            main.within(lambda: main.node.failover.learn(told))
            assert not main.node.role.acting
            await regions.until(lambda: not groups.takes_writes, "the data leader hears it")
            before = client.refused
            await regions.until(lambda: client.refused > before + 5, "it is refused")
            assert metadata.image.spread is not None, "nobody has gathered them"
            assert groups.any_open, "readers are served"
            assert not any(client.acknowledged)
            is_mute[0] = False
            await regions.until(lambda: metadata.image.spread is None, "leaders are gathered")
            writing.cancel()
        await all_alike(regions, "eu")
        end = regions.us.led.partition(TOPIC, number).log_end_offset
        assert end >= len(client.acknowledged)
