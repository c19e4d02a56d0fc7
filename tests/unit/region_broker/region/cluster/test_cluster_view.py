"""What a node tells of its logs, of which there may be very many (INV-CVW3)."""

from types import SimpleNamespace
from typing import cast

from aiohttp import ClientSession, web

from idempotency.identity import TopicName, TopicPartition
from region_broker.http_api.app import HttpServer
from region_broker.http_api.routes_cluster import ClusterApi, add_cluster_routes
from region_broker.limits import YIELD_ROWS
from region_broker.region.cluster.cluster_view import ClusterView, ViewParts
from tests.unit.region_broker.http_api.test_many_transactions import with_turns

TOPICS, PARTITIONS = 40, 100


def view_of_many() -> ClusterView:
    """Return that of a node that leads very many logs, whose topics were opened in no order."""
    leads = SimpleNamespace(leader=SimpleNamespace(node_id=1), leader_epoch=5, version=3, in_sync=(), unclean=0)  # fmt: skip
    image = SimpleNamespace(
        nodes={1: SimpleNamespace(node_id=1)}, leadership=leads, leadership_of=lambda _key: leads
    )
    logs = [
        SimpleNamespace(
            tp=TopicPartition(TopicName(f"t-{topic:02}"), partition), key=None,
            log_start_offset=0, high_watermark=2, log_end_offset=3, failed=None,
        )
        for topic in reversed(range(TOPICS))
        for partition in reversed(range(PARTITIONS))
    ]  # fmt: skip
    parts = SimpleNamespace(
        metadata=SimpleNamespace(image=image),
        partitions=logs,
        clock=SimpleNamespace(monotonic_ms=int),
    )
    return ClusterView(cast("ViewParts", parts))


async def test_INV_CVW3_very_many_logs_are_told_of_while_others_are_served() -> None:
    view = view_of_many()
    rows, turns = await with_turns(view.partitions(None))
    assert turns >= TOPICS * PARTITIONS // YIELD_ROWS - 1
    told = [(row["topic"], row["partition"]) for row in rows]
    assert told == sorted(told)
    assert len(told) == TOPICS * PARTITIONS
    rows, turns = await with_turns(view.partitions("t-07"))
    assert [row["partition"] for row in rows] == list(range(PARTITIONS))
    assert turns >= TOPICS * PARTITIONS // YIELD_ROWS - 1, "also where most of them are passed by"


async def test_what_is_told_of_a_log_over_http() -> None:
    view, app = view_of_many(), web.Application()
    service = SimpleNamespace(describe=None, refusal=Exception, partitions=view.partitions)
    add_cluster_routes(app, cast("ClusterApi", service))
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    try:
        async with (
            ClientSession() as http,
            http.get(f"http://{host}:{port}/v1/cluster/partitions?topic=t-07") as response,
        ):
            rows = (await response.json())["partitions"]
    finally:
        await server.stop()
    assert len(rows) == PARTITIONS
    assert rows[3] == {
        "topic": "t-07", "partition": 3, "leader": 1, "replicas": [1], "in_sync": [], "log_start_offset": 0,
        "high_watermark": 2, "log_end_offset": 3, "failed": None,
    }  # fmt: skip
