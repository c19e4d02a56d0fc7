"""A quota that is set at one node of a region is in force at all of them, for connections that are there already, and gone at all when it is removed."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import RawClient
from tests.process.test_cli import run

pytestmark = [pytest.mark.process, pytest.mark.slow]
METADATA = 3
TIMES_MAX = 400
PERCENT = "0.001"
"""Ten microseconds of a node's loop each second: less than one request takes."""


async def connected(cluster: LocalCluster) -> Sequence[RawClient]:
    """Return a client of each node; each calls itself `raw`."""
    return [
        RawClient(*await asyncio.open_connection(node.host, node.kafka_port))
        for node in cluster.plan.nodes
    ]


async def told_to_wait(client: RawClient) -> bool:
    """Ask once; return whether the answer tells of a throttle."""
    answer = await client.call(METADATA, 3, {"topics": []})
    return bool(answer.throttle_time)


async def until_all(clients: Sequence[RawClient], throttled: bool) -> None:
    """Ask each node until it answers so; those that throttle leave their sockets unread, so asking takes long enough."""
    for client in clients:
        for _ in range(TIMES_MAX):
            if await told_to_wait(client) is throttled:
                break
        else:
            raise AssertionError(f"a node is {'not ' * throttled}throttling after {TIMES_MAX} requests")  # fmt: skip


async def test_a_quota_counts_at_each_node(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path, region_count=1, node_count=3, port=0, new_cluster_id=UUID(int=1)
    ) as cluster:
        cluster.start()
        clients = await connected(cluster)
        assert [await told_to_wait(each) for each in clients] == [False] * 3
        at_one = ("--for-client-id", "raw", "--bootstrap", cluster.plan.nodes[1].bootstrap)
        await asyncio.to_thread(run, "quota", "set", f"request_percentage={PERCENT}", *at_one)
        await until_all(clients, throttled=True)
        await asyncio.to_thread(run, "quota", "remove", *at_one)
        await until_all(clients, throttled=False)
        for each in clients:
            each.writer.close()
