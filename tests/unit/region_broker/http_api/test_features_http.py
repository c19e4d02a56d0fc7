"""`/v1/features` and `tidemark cluster upgrade` over real sockets: nodes that run different releases."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import ClientSession, web
from click.testing import CliRunner, Result

from region_broker.cli.cluster import cluster
from region_broker.controller.cluster_commands import RegisterNode
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.refusals import CommandRefused
from region_broker.http_api.app import DEFAULT_LIMITS, HttpServer, bounded
from region_broker.http_api.routes_cluster import add_cluster_routes
from region_broker.http_api.routes_features import add_feature_routes
from region_broker.region.feature_raising import FeatureRaising
from tests.fixtures.cluster_images import node
from tests.fixtures.cluster_views import view
from tests.fixtures.metadata_stores import MEMBER, open_metadata
from tests.unit.region_broker.http_api.test_cluster_http import Told


class Upgraded:
    """Node 1 runs this release, node 2 an older one, that has no such route; the region is at level 1."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self.servers: list[HttpServer] = []
        self.urls: list[str] = []

    async def start(self) -> None:
        told = [Told(view(node_id)) for node_id in (1, 2)]
        for at, each in enumerate(told):
            app = bounded(DEFAULT_LIMITS)
            add_cluster_routes(app, each)
            if at == 0:
                add_feature_routes(app, FeatureRaising("eu", 1, self.store))
            server = HttpServer(app)
            host, port = await server.start("127.0.0.1", 0)
            self.servers.append(server)
            self.urls.append(f"http://{host}:{port}")
        for each in told:
            del each.describes["nodes"][2:]
            for row, url, level in zip(
                each.describes["nodes"], self.urls, (SUPPORTED[-1], 1), strict=True
            ):
                row |= {"http": url, "feature_level": level}

    async def run(self, *words: str) -> Result:
        words = ("upgrade", *words, "--url", self.urls[1])
        return await asyncio.to_thread(CliRunner().invoke, cluster, list(words))


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Upgraded]:
    store = await open_metadata(tmp_path / "metadata.db", levels=range(1, 2))
    own = msgspec.structs.replace(node(1), incarnation=MEMBER.incarnation)
    await store.apply(RegisterNode(own))
    await store.close()
    store = await open_metadata(tmp_path / "metadata.db")
    made = Upgraded(store)
    await made.start()
    yield made
    for server in made.servers:
        await server.stop()
    await store.close()


async def test_each_node_is_told_and_the_older_one_by_what_it_registered(region: Upgraded) -> None:
    shown = await region.run("-o", "json")
    found = json.loads(shown.stdout)
    assert (found["finalized"], found["may_be_raised_to"]) == (1, 1)
    rows = [(row["node_id"], row["lowest_level"], row["newest_level"]) for row in found["nodes"]]
    assert rows == [(1, 1, SUPPORTED[-1]), (2, None, 1)]
    told = (await region.run()).output
    assert "an older version" in told
    assert "Not all nodes run the newer version yet" in told


async def test_INV_FUP2_raising_is_judged_told_and_done_once(region: Upgraded) -> None:
    dry = await region.run("--finalize", "--dry-run")
    assert f"could be raised from level 1 to {SUPPORTED[-1]}: nothing was changed" in dry.output
    assert region.store.image.feature_level == 1
    done = await region.run("--finalize")
    assert f"was raised from level 1 to {SUPPORTED[-1]}" in done.output
    assert region.store.image.feature_level == SUPPORTED[-1]
    assert "nothing changes" in (await region.run("--finalize")).output
    for refused in ("1", str(SUPPORTED[-1] + 1)):
        assert (await region.run("--finalize", "--level", refused)).exit_code == 1
    for alone in (["--level", "2"], ["--dry-run"]):
        told = await region.run(*alone)
        assert (told.exit_code, "give --finalize, too" in told.output) == (2, True), told.output


async def test_INV_FUP1_a_node_that_has_not_registered_keeps_it_from_being_raised(
    tmp_path: Path,
) -> None:
    store = await open_metadata(tmp_path / "metadata.db", levels=range(1, 2))
    await store.apply(RegisterNode(node(7)))
    await store.close()
    store = await open_metadata(tmp_path / "metadata.db")
    app = web.Application()
    add_feature_routes(app, FeatureRaising("eu", 1, store))
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    try:
        status, told = await posted(f"http://{host}:{port}/v1/features", {})
        assert (status, told["code"]) == (409, "feature-level")
        assert "have not registered" in told["detail"]
    finally:
        await server.stop()
        await store.close()


async def test_INV_FL2_nobody_raises_it_to_what_the_own_code_does_not_know(tmp_path: Path) -> None:
    """The nodes may have registered as what they were before this one was put back to an older version."""
    store = await open_metadata(tmp_path / "metadata.db", levels=range(1, 2))
    own = msgspec.structs.replace(node(1), incarnation=MEMBER.incarnation, feature_level=2)
    await store.apply(RegisterNode(own))
    with pytest.raises(
        CommandRefused, match="the code of node 1 knows the feature levels 1, not 2"
    ):
        await FeatureRaising("eu", 1, store).raise_to(2, dry_run=False)
    assert store.image.feature_level == 1
    await store.close()


async def posted(url: str, body: Any) -> tuple[int, Any]:
    async with ClientSession() as http, http.post(url, json=body) as answer:
        return answer.status, json.loads(await answer.text())


@pytest.mark.parametrize("body", [{"level": "two"}, {"levels": 2}, []])
async def test_an_order_that_is_none_is_refused(region: Upgraded, body: Any) -> None:
    status, told = await posted(f"{region.urls[0]}/v1/features", body)
    assert (status, told["code"]) == (400, "bad-order")
