"""How many messages followers cost: an answer for each group commit, and none for HW alone while there is something to send (INV-RSN1)."""

import asyncio

import pytest

from region_broker.region.cluster.replica_line import ReplicaLine
from region_broker.region.cluster.replica_messages import ReplicaFetch, ReplicaFetched
from region_broker.region.cluster.replica_sending import FetchSession
from region_broker.region.peers.sessions import Reply
from tests.fixtures.node_logs import batch
from tests.fixtures.replica_nodes import ReplicaRegion, live

APPENDS = 20


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[ReplicaFetched]:
    """What the leader answers fetches, those that time out aside."""
    found: list[ReplicaFetched] = []
    answer = FetchSession.answer

    async def noted(session: FetchSession, request: ReplicaFetch) -> Reply:
        reply = await answer(session, request)
        assert isinstance(reply.message, ReplicaFetched)
        if reply.message.parts:
            found.append(reply.message)
        return reply

    monkeypatch.setattr(FetchSession, "answer", noted)
    return found


def test_INV_RSN1_hw_goes_with_what_is_written_next_or_soon_by_itself(
    answers: list[ReplicaFetched],
) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start()
        await region.clock.sleep_ms(20)
        answers.clear()
        for _ in range(APPENDS):
            end = await one.produce(batch())
            await region.clock.sleep_ms(1)
        # One for each follower and append; a network that is slow for once lets HW go by itself.
        assert 2 * APPENDS <= len(answers) < 3 * APPENDS
        begun_ms = region.clock.monotonic_ms()
        await region.until(
            lambda: two.partition().high_watermark == three.partition().high_watermark == end,
            "HW is told",
        )
        assert region.clock.monotonic_ms() - begun_ms < 50

    live(life)


def test_INV_RSN1_what_a_group_commit_gathers_is_one_answer(answers: list[ReplicaFetched]) -> None:
    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        await region.clock.sleep_ms(20)
        answers.clear()
        outcome = one.append(batch())
        for _ in range(4):
            await asyncio.sleep(0)
            outcome = one.append(batch())
        await one.partition().wait_committed(outcome.next_offset)
        assert [part.end_offset for each in answers for part in each.parts][:2] == [5, 5]

    live(life)


def test_INV_RPF6_a_fetch_goes_with_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    for name in ("fetch", "report"):
        method = getattr(ReplicaLine, name)

        def noted(
            line: ReplicaLine, effect: object, name: str = name, method: object = method
        ) -> None:
            said.append(name)
            method(line, effect)  # type: ignore[operator]

        monkeypatch.setattr(ReplicaLine, name, noted)

    async def life(region: ReplicaRegion) -> None:
        one, *_ = await region.start()
        await region.clock.sleep_ms(20)
        said.clear()
        for _ in range(APPENDS):
            await one.produce(batch())
        assert said.count("report") < APPENDS / 2
        assert said.count("fetch") < 3 * APPENDS

    live(life)
