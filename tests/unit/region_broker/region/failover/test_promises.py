"""INV-FD8: what a promise waits for when it is durable, and what it claims."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from idempotency.identity import RegionEpoch
from region_broker.controller.metadata_image import TIDEMARK_LEDGER
from region_broker.region.failover import answers
from region_broker.region.failover.messages import AskPromise, PromiseAnswer
from region_broker.region.peers.sessions import PeerSession
from tests.fixtures.failover_regions import Pair, Site
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def promise_of(
    site: Site, monkeypatch: pytest.MonkeyPatch, *, within_ms: int
) -> asyncio.Task[PromiseAnswer]:
    """Ask `site` to promise us that it may act; its last tidemark comes not in time, and the end of its term is waited for so long."""
    settings = dataclasses.replace(site.settings, final_round_timeout_ms=20)
    monkeypatch.setattr(site.driver, "settings", settings)
    monkeypatch.setattr(answers, "STANDS_MS", within_ms)
    asked = AskPromise(domain="main", region_epoch=RegionEpoch(17), candidate="us", planned=False)
    session = PeerSession(1, "us:1", site.driver.hello())
    work = site.answers._on_promise(session, asked, memoryview(b""))
    return asyncio.get_running_loop().create_task(work)


async def test_INV_FD8_a_promise_claims_a_tidemark_whose_sync_ends_behind_the_fence(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a region of several nodes all that are in sync need it on disk."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    before, ledger = pair.eu.tidemarks.claim().point, pair.eu.partition(0, TIDEMARK_LEDGER)
    ledger.commit_up_to(ledger.high_watermark)
    pair.eu.ledger.answers.set()
    await pair.eu.write("second")
    await until(lambda: ledger.log_end_offset > ledger.high_watermark, "it is appended")
    promise = promise_of(pair.eu, monkeypatch, within_ms=600_000)
    await until(lambda: pair.eu.role.serving is None, "it stands still")
    for _ in range(20):
        await pair.eu.driver.parts.clock.sleep_ms(0)
    assert not promise.done()
    ledger.commit_up_to(None)
    answer = await promise
    assert answer.granted, answer
    assert before < answer.claim == pair.eu.tidemarks.claim().point


@pytest.mark.parametrize("hangs", ["a change of topics", "a sync"])
async def test_INV_FD8_a_promise_that_is_durable_is_answered_though_the_term_does_not_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, hangs: str
) -> None:
    """Else the candidate would go on without what is published here, by the operator's word."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    before, ledger = pair.eu.tidemarks.claim().point, pair.eu.partition(0, TIDEMARK_LEDGER)
    with pair.eu.role.change() if hangs == "a change of topics" else nullcontext():
        if hangs == "a sync":
            ledger.commit_up_to(ledger.high_watermark)
            pair.eu.ledger.answers.set()
            await pair.eu.write("second")
            await until(lambda: ledger.log_end_offset > ledger.high_watermark, "it is appended")
        async with asyncio.timeout(20):
            answer = await promise_of(pair.eu, monkeypatch, within_ms=20)
        assert answer.granted, answer
        assert answer.claim == before
        assert (pair.eu.role.serving is None) == (hangs == "a sync")
    ledger.commit_up_to(None)
