"""Rules T31 and T24: a promise whose candidate gave up, whoever gave it, keeps no region fenced, nor does it use up the region epochs."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import Event, PromiseGiven, TakeoverAbandoned, TakeoverBegun
from region_broker.region.failover.messages import AskPromise, PromiseAnswer
from region_broker.region.failover.operations import Operation
from region_broker.region.peers.protocol import PeerMessage, PeerRefused
from tests.simulation.region_pair import NAMES, Pair, Region, region_pair
from tests.simulation.test_three_regions import TOPIC, VALUES, ended, shown, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def lose_promises(asking: Region, monkeypatch: pytest.MonkeyPatch, *, of: str) -> list[str]:
    """Lose what region `of` answers when `asking` wants its promise, which it records; returns what was lost, as it grows."""
    lost: list[str] = []
    ask_all = asking.node.failover.parts.peers.ask_all

    async def losing(
        message: PeerMessage, answer_type: type[PeerMessage], *, timeout_ms: int
    ) -> tuple[Mapping[str, PeerMessage], Mapping[str, str]]:
        answers, missing = await ask_all(message, answer_type, timeout_ms=timeout_ms)
        if not isinstance(message, AskPromise) or of not in answers:
            return answers, missing
        answer = answers[of]
        assert isinstance(answer, PromiseAnswer)
        assert answer.granted, answer
        lost.append(of)
        rest = {name: each for name, each in answers.items() if name != of}
        return rest, {**missing, of: "the answer was lost"}

    monkeypatch.setattr(asking.node.failover.parts.peers, "ask_all", losing)
    return lost


def keep_from_promising(region: Region, monkeypatch: pytest.MonkeyPatch, *, to: str) -> None:
    """Let `region` record no promise to `to`, and say so at once."""
    record = region.node.failover.record

    async def keeping(event: Event, *, expected: State | None = None) -> bool:
        if isinstance(event, PromiseGiven) and event.candidate == to:
            raise PeerRefused("hangs", "its disk hangs")
        return await record(event, expected=expected)

    monkeypatch.setattr(region.node.failover, "record", keeping)


async def switch_in_vain(pair: Pair) -> Operation:
    """Order a switch to us; returns it when it was given up."""
    operation = await ended(pair, pair.us.node.operations.begin_switch())
    assert operation.status == "failed", operation
    assert "no promise of region eu" in operation.error
    return operation


async def test_INV_FS5_a_promise_of_a_third_region_to_who_gave_up_does_not_keep_the_primary_from_acting_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch to us: ap promises, and eu, whose answer is lost. 2. us gives up. 3. ap's promise stays recorded for good."""
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: shown(pair.us) == shown(ap) == 1, "both show")
        lose_promises(pair.us, monkeypatch, of="eu")
        await switch_in_vain(pair)
        given_up = pair.us.node.failover.state.abandoned_epoch
        assert ap.node.failover.state.promise.region_epoch == given_up
        await pair.until(lambda: pair.eu.node.role.acting, "eu acts again")
        assert pair.eu.node.role.region_epoch > given_up
        await write(pair.eu, VALUES[1])
        await pair.until(lambda: shown(pair.us) == shown(ap) == 2, "both follow it again")


class Reclaims:
    """Notes when a region began to take over from itself, when it gave that up, and whether it said meanwhile that nobody acts."""

    def __init__(self, region: Region) -> None:
        self.begun_ms: list[int] = []
        self.given_up_ms: list[int] = []
        self.told: set[int] = set()
        """Behind how many of them it said so."""
        self._region = region
        region.node.failover.on_step = self._note

    def _note(self, event: Event, _before: State, _after: State) -> None:
        now_ms = self._region.wall.monotonic_ms()
        if isinstance(event, TakeoverBegun):
            self.begun_ms.append(now_ms)
        if isinstance(event, TakeoverAbandoned):
            self.given_up_ms.append(now_ms)

    def tried(self, times: int) -> bool:
        """Return whether it has begun so often."""
        if self._region.node.failover.outlook.nobody_acts:
            self.told.add(len(self.begun_ms))
        return len(self.begun_ms) == times

    def pauses_ms(self) -> list[int]:
        """Return how long it stood still between two of them."""
        return [
            begun - ended for ended, begun in zip(self.given_up_ms, self.begun_ms[1:], strict=False)
        ]


async def test_INV_FS9_a_region_that_gives_no_promise_costs_a_number_only_behind_pauses_that_double(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch to us is in vain. 2. eu takes over from itself. 3. ap says how it stands, and records no promise, as its disk hangs."""
    async with region_pair(tmp_path, 3, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: shown(pair.us) == shown(ap) == 1, "both show")
        reclaims = Reclaims(pair.eu)
        with monkeypatch.context() as hanging:
            keep_from_promising(ap, hanging, to="eu")
            lose_promises(pair.us, hanging, of="eu")
            await switch_in_vain(pair)
            await pair.until(lambda: reclaims.tried(5), "eu tries again and again")
        assert [pause // 1_000 for pause in reclaims.pauses_ms()] == [1, 2, 4, 8]
        assert reclaims.told == {1, 2, 3, 4}
        await pair.until(lambda: pair.eu.node.role.acting, "eu acts again")
        await write(pair.eu, VALUES[1])
        await pair.until(lambda: shown(pair.us) == shown(ap) == 2, "both follow it again")


async def test_INV_FS5_a_takeover_from_itself_that_was_given_up_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A switch to us is given up. 2. eu takes over from itself; us promises, in vain. 3. us can be heard again."""
    async with region_pair(tmp_path, 2, names=NAMES) as pair:
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, VALUES[0])
        await pair.until(lambda: shown(pair.us) == 1, "us shows it")
        with monkeypatch.context() as second:
            lost = lose_promises(pair.eu, second, of="us")
            with monkeypatch.context() as first:
                lose_promises(pair.us, first, of="eu")
                await switch_in_vain(pair)
            await pair.until(lambda: bool(lost), "us promises to eu, which does not hear it")
            state = pair.eu.node.failover.state
            assert state.takeover is not None
            wanted = state.takeover.region_epoch
            await pair.until(
                lambda: pair.eu.node.failover.state.abandoned_epoch >= wanted, "eu gives up, too"
            )
        assert pair.us.node.failover.state.promise.region_epoch >= wanted
        await pair.until(lambda: pair.eu.node.role.acting, "eu acts again")
        assert pair.eu.node.role.region_epoch > wanted
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows it")
        await write(pair.eu, VALUES[1])
        await pair.until(lambda: shown(pair.us) == 2, "and copies")
