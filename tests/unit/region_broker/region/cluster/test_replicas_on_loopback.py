"""Three nodes over real sockets and disks, shortly: what is produced is on all, a leader goes, another one leads."""

import asyncio
from pathlib import Path

import pytest

from region_broker.ports.network import Network
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from tests.fixtures.node_logs import batch
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, state_of

pytestmark = pytest.mark.slow


class LoopbackRegion(ReplicaRegion):
    """On this machine's network and disk."""

    def __init__(self, tasks: asyncio.TaskGroup, folder: Path) -> None:
        super().__init__(tasks)
        self.clock = SystemClock()
        self._folder = folder

    def network_of(self, _node: ReplicaNode) -> Network:
        return AsyncioNetwork()

    def disk_of(self, _node: ReplicaNode) -> RealDisk:
        return RealDisk()

    def data_dir(self, node: ReplicaNode) -> Path:
        return self._folder / node.site


async def test_three_nodes_over_loopback_copy_and_outlive_their_leader(tmp_path: Path) -> None:
    async with asyncio.TaskGroup() as tasks:
        region = LoopbackRegion(tasks, tmp_path)
        one, two, three = await region.start()
        for _ in range(20):
            await one.produce(batch(10, size_bytes=1_000))
        await one.stop()
        await region.until(
            lambda: region.in_sync() == {2, 3} or region.leader is one, "who leads knows"
        )
        region.fence(1)
        region.elect(2)
        await two.leading.until_committed()
        assert await two.produce(batch(5)) == 205
        await one.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "all are in sync")
        assert await two.produce(batch(5)) == 210
        assert bytes_of(one.partition()) == bytes_of(two.partition()) == bytes_of(three.partition())
        assert state_of(one.partition()) == state_of(two.partition()) == state_of(three.partition())
        for node in (one, two, three):
            await node.stop()
