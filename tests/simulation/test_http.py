"""HTTP on the simulated network: a whole node's own server, and who judges its answers in each life."""

import asyncio
import errno
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from region_broker.http_api.problems import PROBLEM_TYPE
from region_broker.region.failover.steps import effects
from tests.simulation.folder_faults import empty_folder
from tests.simulation.http_client import Answer, get
from tests.simulation.http_server import bind
from tests.simulation.network import Fabric, SimulatedStream, SiteNetwork
from tests.simulation.region_pair import Pair, Region, region_pair
from tests.simulation.simulated_loop import PROCESS, SimulatedLoop
from tests.simulation.swarm.workloads.monitor import facts_of, judged
from tests.simulation.test_folders_without_history import waits

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
HEADERS = {"content-type": "application/json"}


@dataclass
class Asking:
    """Who asks a region."""

    network: SiteNetwork
    region: Region

    async def get(self, path: str) -> Answer:
        return await get(self.network, self.region.http_port, path)

    def judge(self, path: str, status: int, body: Any, headers: Mapping[str, str] = HEADERS) -> str:
        now = facts_of(self.region.node)
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        return "; ".join(judged(path, Answer(status, headers, data), now, now))


def asking(pair: Pair, region: Region) -> Asking:
    return Asking(pair.fabric.site("somebody"), region)


async def test_INV_SHT1_an_answer_holds_simulated_time_and_nothing_of_the_machine(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        answer = await asking(pair, pair.eu).get("/metrics")
    assert answer.headers["date"].startswith("Tue, 14 Nov 2023 22:13:2")  # 1,700,000,000 s
    text = answer.body.decode()
    assert "\ntidemark_region_acting" in text
    assert "\nprocess_" not in text
    assert "_created" not in text


class Broken(asyncio.Protocol):
    """Fails at the first bytes."""

    def data_received(self, data: bytes) -> None:
        raise AssertionError(data)


async def test_INV_SHT2_what_a_protocol_raises_is_told_and_ends_the_connection() -> None:
    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(repr(context["exception"])))
    fabric = Fabric(random.Random(1))
    await bind(fabric.site("eu"), Broken, "127.0.0.1", 1)
    stream = await fabric.site("somebody").connect("127.0.0.1", 1)
    stream.write(b"x")
    assert await stream.read(1) == b""
    assert told == ["AssertionError(b'x')"]


class Beginning(asyncio.Protocol):
    """Begins a task at the first bytes, as aiohttp does, which must run before the connection is lost."""

    def __init__(self, said: list[str]) -> None:
        self.said = said

    def data_received(self, data: bytes) -> None:
        self.task = asyncio.get_running_loop().create_task(self.run())

    async def run(self) -> None:
        self.said.append("begun")

    def connection_lost(self, exc: Exception | None) -> None:
        self.said.append(f"lost {type(exc).__name__}")


async def test_INV_SHT3_a_connection_that_breaks_behind_its_first_bytes_ends_a_step_later() -> None:
    said: list[str] = []
    fabric = Fabric(random.Random(1))
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    token = PROCESS.set("eu")
    await bind(fabric.site("eu"), lambda: Beginning(said), "127.0.0.1", 1)
    PROCESS.reset(token)
    stream = await fabric.site("somebody").connect("127.0.0.1", 1)
    assert isinstance(stream, SimulatedStream)
    loop.pause("eu")  # it hears of both at once
    stream.write(b"x")
    await asyncio.sleep(1)
    stream.sever()
    await asyncio.sleep(1)
    loop.resume("eu")
    await asyncio.sleep(1)
    assert said == ["begun", "lost ConnectionResetError"]


async def test_INV_SHT3_who_waits_for_an_answer_hears_that_the_process_was_killed(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 2) as pair:
        stream = await pair.fabric.site("somebody").connect("127.0.0.1", pair.eu.http_port)
        stream.write(b"GET /livez HTTP/1.1\r\n")
        await asyncio.sleep(0.1)
        await pair.eu.kill()
        with pytest.raises(ConnectionError):
            await stream.read(1)
        with pytest.raises(ConnectionError):
            await asking(pair, pair.eu).get("/livez")


async def test_INV_SWH1_an_error_needs_a_code_and_a_detail_and_a_5xx_but_503_is_none(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 3) as pair:
        eu = asking(pair, pair.eu)
        problem = {"content-type": PROBLEM_TYPE}
        said = {"code": "refused", "detail": "it is a mirror"}
        assert not eu.judge("/v1/region/losses", 409, said, problem)
        assert not eu.judge("/v1/region/losses", 503, said, problem)
        assert eu.judge("/v1/region/losses", 409, {"code": "refused"}, problem)
        assert eu.judge("/v1/region/losses", 409, said)
        assert eu.judge("/v1/region/losses", 500, said, problem)
        assert eu.judge("/livez", 200, {"status": "dead"})


async def test_INV_SWH1_a_region_without_history_says_that_it_does_not_know_who_acts(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 6) as pair:
        await pair.eu.kill()
        await pair.us.kill()
        empty_folder(pair.eu)
        await pair.eu.begin()
        await waits(pair.eu)
        for path in (
            "/v1/transactions",
            "/v1/transactions/open",
            "/v1/verdict?topic=t&partition=0&offset=0",
        ):
            answer = await asking(pair, pair.eu).get(path)
            told = answer.json()
            assert (answer.status, told["code"]) == (409, "not-acting")
            assert "does not know which one does: it has no history" in told["detail"]
            assert "url" not in told


async def test_INV_SWH2_ready_is_what_every_check_says_and_what_the_region_is(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 4) as pair:
        eu = asking(pair, pair.eu)
        answer = await eu.get("/readyz")
        body = answer.json()
        assert (answer.status, body["checks"]["region"]) == (200, "ok")
        assert not eu.judge("/readyz", 200, body)
        assert eu.judge("/readyz", 503, body)
        failing = {**body, "status": "not ready", "checks": {**body["checks"], "region": "why"}}
        assert "it serves" in eu.judge("/readyz", 503, failing)
        assert eu.judge("/readyz", 200, failing)
        pair.eu.node.role.close_gate("the test")
        answer = await eu.get("/readyz")
        assert (answer.status, answer.json()["checks"]["region"]) == (503, "the test")
        assert not eu.judge("/readyz", 503, answer.json())
        assert eu.judge("/readyz", 200, body)


async def test_INV_SWH3_SWH4_metrics_and_the_description_agree_with_the_node(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 5) as pair:
        us = asking(pair, pair.us)
        scraped = (await us.get("/metrics")).body
        assert not us.judge("/metrics", 200, scraped)
        series = b'tidemark_region_acting{domain="main",region="us"} '
        assert us.judge("/metrics", 200, scraped.replace(series + b"0", series + b"1"))
        assert "twice" in us.judge("/metrics", 200, scraped + series + b"0.0\n")
        view = (await us.get("/v1/region")).json()
        assert (view["acting"], view["phase"]) == (False, "mirroring")
        for changed in ({"acting": True}, {"region_epoch": 77}, {"reason_not_acting": ""}):
            assert us.judge("/v1/region", 200, {**view, **changed})
        later = {**view["tidemark"], "number": 1 << 40}
        assert "tidemark" in us.judge("/v1/region", 200, {**view, "tidemark": later})


async def test_INV_SWH1_a_loss_that_cannot_be_stated_is_refused_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_stated: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "orders-0")

    async with region_pair(tmp_path, 1) as pair:
        with monkeypatch.context() as patched:
            patched.setattr(effects, "stated_tail", fails)
            answer = await asking(pair, pair.us).get("/v1/region/loss-statement")
        assert answer.status == 409, answer.body
        problem = orjson.loads(answer.body)
        assert problem["code"] == "unreadable"
        assert "orders-0" in problem["detail"]


async def test_INV_QS4_what_an_earlier_takeover_cut_off_and_nobody_can_read_is_told_in_the_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails where the tails are looked for; the loss may be larger by them."""

    def fails(path: Path) -> list[str]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    async with region_pair(tmp_path, 1) as pair:
        pair.us.disk.make_dirs(pair.us.folder / "quarantine" / "main" / "log")
        with monkeypatch.context() as patched:
            patched.setattr(pair.us.disk, "list_dir", fails)
            answer = await asking(pair, pair.us).get("/v1/region/loss-statement")
        assert answer.status == 200, answer.body
        assert "quarantine: [Errno 5]" in answer.json()["open_bound"]
