"""No region epoch is left, or another region says one that there cannot be: refused in words, and the node goes on."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from geo_replicator.failover import Phase
from geo_replicator.failover_events import PromiseGiven
from idempotency.identity import RegionEpoch
from region_broker.region.failover.messages import (
    AskStatus,
    Drained,
    PromiseAnswer,
    SiteStatus,
)
from region_broker.region.failover.operations import OperationRefused
from region_broker.region.peers.protocol import (
    Frame,
    FrameKind,
    PeerMessage,
    PeerProtocolError,
    decode_message,
)
from region_broker.region.peers.sessions import PeerSession
from tests.fixtures.failover_regions import Pair, Site
from tests.fixtures.waiting import until

LAST = RegionEpoch((1 << 15) - 1)
"""Region epochs have 15 bits (T19)."""
ACTED = RegionEpoch(8)
TOLD = "no more takeovers are possible in this domain"


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        await regions.eu.write("first")
        await regions.reached("first")
        yield regions


STATUS = SiteStatus(
    region="us", phase="mirroring", acting=False, region_epoch=LAST, promised_epoch=LAST, promised_candidate="",
    highest_epoch_known=LAST, claim_region_epoch=LAST, claim_number=(1 << 63) - 1,
)  # fmt: skip


def says(site: Site, **said: Any) -> None:
    """Let a region say this of itself from now on, whoever asks."""

    async def tell(_session: PeerSession, _message: AskStatus, _rest: memoryview) -> SiteStatus:
        return msgspec.structs.replace(STATUS, region=site.region.name, **said)

    del site.server._handlers._requests[AskStatus.__name__]
    site.server.register(AskStatus, tell)


@pytest.mark.parametrize("asked", ["switch", "failover"])
async def test_INV_F3_a_takeover_without_an_epoch_fails_in_words_and_writes_go_on(
    pair: Pair, asked: str
) -> None:
    says(pair.eu, region_epoch=ACTED, promised_epoch=ACTED, acting=True)
    operations = pair.us.operations
    begun = operations.begin_switch() if asked == "switch" else operations.begin_failover(confirmed=True)  # fmt: skip
    operation = await pair.us.ended(begun)
    assert operation.status == "failed"
    assert TOLD in operation.error
    assert "It takes writes again" in " ".join((*operation.steps, operation.error))
    assert pair.us.driver.running
    await pair.eu.until(Phase.ACTING)
    await pair.eu.write("and on")


async def test_INV_F3_what_acting_would_lose_is_not_stated_without_an_epoch(pair: Pair) -> None:
    await pair.us.driver.record(PromiseGiven(region_epoch=LAST, candidate="eu"))
    with pytest.raises(OperationRefused, match=TOLD):
        await pair.us.operations.statement()


async def test_INV_F3_a_region_that_would_act_again_without_an_epoch_stands_still_and_answers(
    pair: Pair,
) -> None:
    """1. It promises. 2. The candidate gives up, and knows the last epoch that there is. 3. Nobody acts, and nobody can."""
    says(pair.us, region_epoch=ACTED, promised_epoch=ACTED, phase="fenced", claim_region_epoch=ACTED, claim_number=0)  # fmt: skip
    await pair.eu.driver.record(PromiseGiven(region_epoch=RegionEpoch(17), candidate="us"))
    await until(lambda: TOLD in pair.eu.role.reason_not_acting, "it says that it cannot act")
    assert pair.eu.driver.running
    assert pair.eu.driver.outlook.nobody_acts
    answer = await pair.us.driver.parts.peers.ask(
        "eu", AskStatus(region="us"), SiteStatus, timeout_ms=5_000
    )
    assert answer.promised_epoch == 17


PROMISED = PromiseAnswer(granted=True, reason="", claim_region_epoch=LAST, claim_number=0)
DRAINED = Drained(region_epoch=LAST, number=1)


def read_back(message: PeerMessage) -> PeerMessage:
    body = memoryview(msgspec.msgpack.encode(message))
    frame = Frame(FrameKind.ANSWER, 1, type(message).__name__, body, memoryview(b""))
    return decode_message(frame, type(message))


@pytest.mark.parametrize(
    ("answer", "field"),
    [
        (STATUS, "region_epoch"),
        (STATUS, "promised_epoch"),
        (STATUS, "highest_epoch_known"),
        (STATUS, "claim_region_epoch"),
        (PROMISED, "claim_region_epoch"),
        (DRAINED, "region_epoch"),
    ],
)
def test_INV_FMS1_an_answer_with_an_epoch_that_there_cannot_be_is_none(
    answer: PeerMessage, field: str
) -> None:
    assert read_back(answer) == answer
    for epoch in (-2, 1 << 15, 1 << 40, (1 << 64) - 1):
        with pytest.raises(PeerProtocolError, match="malformed"):
            read_back(msgspec.structs.replace(answer, **{field: epoch}))


async def test_INV_FMS1_who_says_such_an_epoch_of_itself_is_taken_for_silent(pair: Pair) -> None:
    before = pair.us.driver.state
    says(pair.eu, region_epoch=RegionEpoch(1 << 40))
    assert await pair.us.driver.outlook.statuses() == {}
    assert pair.us.driver.state == before
