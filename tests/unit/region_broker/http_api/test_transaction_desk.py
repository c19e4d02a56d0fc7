"""Open transactions by partition, and ending one, over HTTP: a real coordinator and real partitions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from idempotency.identity import TopicName, TopicPartition
from idempotency.java_hash import ledger_shard
from region_broker.http_api.app import HttpServer
from region_broker.http_api.routes_transactions import add_abort_routes, add_transaction_routes
from region_broker.region.transaction_desk import TransactionDesk
from region_broker.region.verdict_service import VerdictRefused
from tests.fixtures.kafka_port import RawClient, WireFixture
from tests.fixtures.transaction_port import batch_of, begin, end, init, join, produce, txn_broker
from txn_coordinator.ports import LedgerFailed
from txn_coordinator.serving.administration import TransactionAdministration
from txn_coordinator.verdicts import TxnVerdict

FENCED = 90


class Acting:
    """Whether this region acts, as the verdict service says it."""

    def __init__(self) -> None:
        self.acting = True

    @property
    def refusal(self) -> type[VerdictRefused]:
        return VerdictRefused

    def check_acting(self) -> None:
        if not self.acting:
            raise VerdictRefused(409, "not-acting", "ask eu", region="eu", url="http://eu:1")

    async def verdict(self, *_asked: Any, pair: object = None, asker: str = "") -> Any:
        raise AssertionError("not asked here")


@asynccontextmanager
async def served(
    folder: Path,
) -> AsyncIterator[tuple[WireFixture, RawClient, ClientSession, Acting]]:
    async with txn_broker(folder) as (fixture, txn):
        app, acting = web.Application(), Acting()
        desk = TransactionDesk(fixture.services.partitions, txn.admin, acting)
        add_abort_routes(app, acting, desk)
        add_transaction_routes(app, acting, desk, lambda: 1)
        server = HttpServer(app)
        host, port = await server.start("127.0.0.1", 0)
        async with ClientSession(f"http://{host}:{port}") as http:
            yield fixture, await fixture.connect(), http, acting
        await server.stop()


async def opened(http: ClientSession) -> list[dict[str, Any]]:
    async with http.get("/v1/transactions/open") as response:
        assert response.status == 200
        rows: list[dict[str, Any]] = (await response.json())["open"]
        return rows


async def abort(http: ClientSession, **order: Any) -> tuple[int, str]:
    async with http.post("/v1/transactions/abort", json=order) as response:
        body = await response.json(content_type=None)
        return response.status, str(body.get("code", body.get("aborted")))


# Holds INV-OT2.
async def test_B13_abort_by_name_ends_all_partitions_and_fences(tmp_path: Path) -> None:
    async with served(tmp_path) as (_fixture, client, http, _acting):
        pair = await begin(client, 0, 1)
        assert await produce(client, batch_of(pair, b"a")) == 0
        assert await produce(client, batch_of(pair, b"b"), 1) == 0
        assert [(row["partition"], row["start_offset"]) for row in await opened(http)] == [
            (0, 0), (1, 0)
        ]  # fmt: skip
        assert {row["transactional_id"] for row in await opened(http)} == {"t"}
        assert await abort(http, transactional_id="t") == (200, "True")
        assert await opened(http) == []
        assert (await end(client, pair, commit=True)).error_code == FENCED
        assert await abort(http, transactional_id="t") == (404, "not-open")
        assert await abort(http, transactional_id="never") == (404, "unknown-transactional-id")


# Holds INV-OT2.
async def test_B13_abort_by_place_ends_what_nobody_knows_of(tmp_path: Path) -> None:
    async with served(tmp_path) as (fixture, _client, http, _acting):
        fixture.partition("orders", 2).writer.append(batch_of((4711, 0), b"lost"))
        (row,) = await opened(http)
        assert (row["transactional_id"], row["producer_id"]) == ("", 4711)
        place = {key: row[key] for key in ("topic", "partition", "start_offset")}
        assert await abort(http, **place | {"start_offset": 1}) == (404, "not-open")
        assert await abort(http, **place | {"topic": "none"}) == (404, "unknown-partition")
        assert await abort(http, **place) == (200, "True")
        assert await opened(http) == []


async def test_a_partition_that_is_not_in_its_transaction_counts_as_unknown(tmp_path: Path) -> None:
    async with served(tmp_path) as (fixture, client, http, _acting):
        pair = await begin(client, 0)
        fixture.partition("orders", 1).writer.append(batch_of(pair, b"hanging"))
        (row,) = await opened(http)
        assert (row["partition"], row["transactional_id"]) == (1, "")
        assert await join(client, pair, 1) == [0]
        (row,) = await opened(http)
        assert row["transactional_id"] == "t"
        tp = TopicPartition(TopicName("orders"), 1)
        assert (row["topic"], row["partition"]) == (tp.topic, tp.partition)


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"transactional_id": "t", "topic": "orders", "partition": 0, "start_offset": 0},
        {"topic": "orders", "partition": 0},
        {"topic": "orders", "partition": "0", "start_offset": 0},
        {"transactional_id": "t", "commit": True},
    ],
)
async def test_an_order_names_exactly_one_transaction(
    tmp_path: Path, order: dict[str, Any]
) -> None:
    async with served(tmp_path) as (_fixture, _client, http, _acting):
        assert await abort(http, **order) == (400, "bad-order")


# Holds INV-OT1.
async def test_HV1_HV2_only_the_primary_region_and_only_json(tmp_path: Path) -> None:
    async with served(tmp_path) as (_fixture, _client, http, acting):
        async with http.post("/v1/transactions/abort", data={"transactional_id": "t"}) as response:
            assert response.status == 415
        acting.acting = False
        assert await abort(http, transactional_id="t") == (409, "not-acting")
        async with http.get("/v1/transactions/open") as response:
            assert response.status == 409
            assert (await response.json(content_type=None))["url"] == "http://eu:1"


async def test_INV_TN3_with_a_shard_out_of_service_no_list_says_that_there_are_no_transactions(
    tmp_path: Path,
) -> None:
    """An id whose own shard is served is told; a client takes nothing for "nobody has this id"."""
    async with served(tmp_path) as (fixture, client, http, _acting), asyncio.timeout(30):
        admin = fixture.services.txn_admin
        assert isinstance(admin, TransactionAdministration)
        shards = list(admin._shards)
        names = {ledger_shard(name, len(shards)): name for name in ("a", "b", "c", "d", "e")}
        for name in names.values():
            assert (await init(client, name)).error_code == 0
        shards[1].fail(LedgerFailed("the disk"))

        async def ask(query: str) -> tuple[int, Any]:
            async with http.get(f"/v1/transactions{query}") as response:
                return response.status, await response.json(content_type=None)

        for query in ("", "/open", f"?transactional_id={names[1]}"):
            status, body = await ask(query)
            assert (status, body["code"]) == (503, "no-coordinator"), query
        status, body = await ask(f"?transactional_id={names[0]}")
        assert (status, [row["state"] for row in body["transactions"]]) == (200, ["empty"])
        assert await ask("?transactional_id=") == (200, {"now_ms": 1, "transactions": []})
        assert isinstance(admin.status_counts(), TxnVerdict)
