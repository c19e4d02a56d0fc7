"""INV-FGT1, INV-FGT2: the gate of a region that loads, or ends a drain, while it is closed for something else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import DrainRolledBack, Event, HigherEpochLearned
from idempotency.identity import RegionEpoch
from region_broker.region.failover.gathering import NeverSpread
from region_broker.region.failover.messages import AskDrain
from region_broker.region.failover.steps.gate import Closing, Gate
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.peers.protocol import RUNS_ELSEWHERE
from region_broker.region.ports import Term
from region_broker.region.role import RegionRole
from tests.fixtures.failover_regions import Pair, Site
from tests.fixtures.waiting import until

ACTS = State(region="eu", phase=Phase.ACTING, region_epoch=RegionEpoch(8), acting_region="eu")
HIGHER = RegionEpoch(17)
TURNS = 20
"""Of the event loop; what opens the gate does so in the first few."""


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[RegionEpoch]:
    """Of eu: the region epochs under which it opened its writes."""
    found: list[RegionEpoch] = []
    open_gate = RegionRole.open_gate

    def noting(role: RegionRole) -> None:
        if role.region == "eu":
            found.append(role.region_epoch)
        open_gate(role)

    monkeypatch.setattr(RegionRole, "open_gate", noting)
    return found


class SlowLoad:
    """A start of a region that may act, and loads when `goes_on` is set; `early`: it has no cut leader before."""

    def __init__(self, *, early: bool = False) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self._early = early

    def _hold(self, site: Site) -> None:
        begin, load = site.role.act, site.groups.load

        async def slow_begin(term: Term, **how: Any) -> None:
            await self._held()
            await begin(term, **how)

        async def slow_load(_term: Term) -> None:
            await self._held()
            await load(_term)

        if self._early:
            site.role.act = slow_begin  # type: ignore[method-assign]
        else:
            site.groups.load = slow_load  # type: ignore[method-assign]

    async def _held(self) -> None:
        self.begun.set()
        await self.goes_on.wait()

    async def start(self, site: Site) -> None:
        """Start a region that was killed; return once it loads."""
        site.on_built = self._hold
        await site.start()
        await self.begun.wait()


class HeldRecord:
    """A record of the failover machine that is durable when `goes_on` is set, where it says that a higher region epoch was learnt."""

    def __init__(self, site: Site) -> None:
        self.begun, self.goes_on = asyncio.Event(), asyncio.Event()
        self._append = site.driver._record.append
        self.also: Callable[[Event], None] = lambda _event: None

    async def append(self, event: Event, after: State) -> None:
        """See `FailoverRecord`."""
        self.also(event)
        if isinstance(event, HigherEpochLearned):
            self.begun.set()
            await self.goes_on.wait()
        await self._append(event, after)


async def some_turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def tell_of_higher_epoch(pair: Pair) -> None:
    hello = replace(pair.us.driver.hello(), region_epoch=HIGHER, acting_region="us", lineage=())
    pair.eu.driver.learn(hello)


@pytest.mark.parametrize("early", [True, False], ids=["no cut leader yet", "ledgers are loaded"])
async def test_INV_FGT1_a_region_that_is_asked_for_a_promise_while_it_loads_takes_no_writes_and_loses_nothing(
    pair: Pair, opened: list[RegionEpoch], *, early: bool
) -> None:
    """1. eu is killed, and starts. 2. A failover is ordered. 3. Its promise waits for a last tidemark, as its load does for the disk."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    await pair.eu.write("acknowledged, and under no tidemark")
    await pair.eu.kill()
    opened.clear()
    load = SlowLoad(early=early)
    await load.start(pair.eu)
    operation = pair.us.operations.begin_failover(confirmed=True)
    await until(lambda: "us is about to act" in pair.eu.role.reason_not_acting, "us asks")
    await some_turns()
    assert pair.eu.driver.state.phase is Phase.ACTING, "it waits for its load"
    load.goes_on.set()
    await pair.us.ended(operation)
    assert operation.status == "succeeded", operation
    assert opened == []
    await pair.us.shows("acknowledged, and under no tidemark")


async def test_INV_FGT1_a_load_that_ends_opens_nothing_while_a_higher_epoch_is_recorded(
    pair: Pair, opened: list[RegionEpoch], monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.kill()
    opened.clear()
    load = SlowLoad()
    await load.start(pair.eu)
    record = HeldRecord(pair.eu)
    monkeypatch.setattr(pair.eu.driver._record, "append", record.append)
    tell_of_higher_epoch(pair)
    load.goes_on.set()
    await record.begun.wait()
    await until(lambda: pair.eu.role.serving is not None, "all is loaded")
    await some_turns()
    assert opened == []
    assert "us acts under region epoch 17" in pair.eu.role.reason_not_acting
    record.goes_on.set()
    await pair.eu.until(Phase.FENCED)
    assert opened == []


async def test_INV_FGT1_a_drain_that_ends_opens_nothing_while_a_higher_epoch_is_recorded(
    pair: Pair, opened: list[RegionEpoch], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is loaded already needs no load: it would open in the next step."""
    await pair.eu.answers.drain(AskDrain(operation_id="first", to_region="us", timeout_ms=60_000))
    opened.clear()
    record = HeldRecord(pair.eu)

    def learn(event: Event) -> None:
        if isinstance(event, DrainRolledBack):
            tell_of_higher_epoch(pair)

    record.also = learn
    monkeypatch.setattr(pair.eu.driver._record, "append", record.append)
    await pair.eu.answers._end_drain(pair.eu.driver.state, "it is given up")
    await record.begun.wait()
    await some_turns()
    assert pair.eu.driver.state.phase is Phase.ACTING
    assert opened == []
    record.goes_on.set()
    await pair.eu.until(Phase.FENCED)
    assert opened == []


def gate_of(state: State) -> tuple[Gate, Mock]:
    role = Mock(serving=object())
    outlook = Mock(spec=Outlook, parts=Mock(role=role), lives=Mock(aside=lambda: ""))
    outlook.is_refuted.return_value = False
    return Gate(outlook, lambda: state), role


def test_INV_FGT2_what_comes_to_nothing_lets_the_gate_open_again() -> None:
    gate, role = gate_of(ACTS)
    gate.loaded(ACTS)
    assert role.open_gate.call_count == 1
    with gate.closed("first"):
        role.close_gate.assert_called_with("first")
        with gate.closed("second"):
            gate.close(Closing.HIGHER_EPOCH, "third")
        assert role.open_gate.call_count == 1
    assert role.open_gate.call_count == 1, "the third one does"
    gate.done(Closing.HIGHER_EPOCH)
    assert role.open_gate.call_count == 2
    gate.done(Closing.HIGHER_EPOCH)
    assert role.open_gate.call_count == 2, "it kept nothing closed"


def test_INV_FGT1_nothing_opens_that_is_not_loaded_or_for_another_state() -> None:
    gate, role = gate_of(ACTS)
    gate.close(Closing.RECORDING, "first")
    gate.done(Closing.RECORDING)
    gate.loaded(replace(ACTS, reason="another one"))
    gate.close(Closing.RECORDING, "second")
    gate.loaded(ACTS)
    role.close_gate.assert_called_with("second")
    gate.unload()
    gate.done(Closing.RECORDING)
    assert not role.open_gate.called


async def test_INV_FGT2_a_refusal_that_is_over_before_anybody_stands_still_lets_the_gate_open(
    pair: Pair, opened: list[RegionEpoch]
) -> None:
    """Two answers of us wait behind a pause of the loop: of an earlier handshake, which it refuses, and of a later one."""
    opened.clear()
    hello = replace(pair.us.driver.hello(), answers=True)
    pair.eu.driver.learn(replace(hello, refused="another one runs", refused_code=RUNS_ELSEWHERE))
    assert "another one runs" in pair.eu.role.reason_not_acting
    pair.eu.driver.learn(hello)
    await some_turns()
    assert pair.eu.role.acting, pair.eu.role.reason_not_acting
    assert len(opened) == 1


@pytest.mark.parametrize("turns", range(1, 10))
async def test_INV_FGT2_a_node_that_is_let_in_before_it_stands_still_goes_on_as_it_did(
    pair: Pair, opened: list[RegionEpoch], monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    """To end its handshakes takes a few turns of the loop. In these the gate opened, shut without a word, and all was loaded anew."""
    fenced, fence = list[str](), pair.eu.role.fence

    async def noting(reason: str) -> None:
        fenced.append(reason)
        await fence(reason)

    monkeypatch.setattr(pair.eu.role, "fence", noting)
    opened.clear()
    hello = replace(pair.us.driver.hello(), answers=True)
    pair.eu.driver.learn(replace(hello, refused="another one runs", refused_code=RUNS_ELSEWHERE))
    for _ in range(turns):
        await asyncio.sleep(0)
    stands_still = bool(fenced)
    pair.eu.driver.learn(hello)
    assert pair.eu.role.acting is not stands_still
    await some_turns()
    if not stands_still:
        assert pair.eu.role.acting, pair.eu.role.reason_not_acting
    assert fenced == (["region us says that another one runs"] if stands_still else [])


async def test_INV_FGT2_a_node_that_is_let_in_before_it_stands_still_gathers_no_leaders(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathered = list[str]()

    async def gather(_self: NeverSpread) -> None:
        gathered.append(pair.eu.role.reason_not_acting)

    monkeypatch.setattr(NeverSpread, "is_due", True)
    monkeypatch.setattr(NeverSpread, "gather", gather)
    hello = replace(pair.us.driver.hello(), answers=True)
    refused = replace(hello, refused="another one runs", refused_code=RUNS_ELSEWHERE)
    pair.eu.driver.learn(refused)
    await asyncio.sleep(0)
    pair.eu.driver.learn(hello)
    await some_turns()
    assert pair.eu.role.acting, pair.eu.role.reason_not_acting
    assert gathered == []
    pair.eu.driver.learn(refused)
    await some_turns()
    assert gathered == ["region us says that another one runs"], "INV-GTH3"
