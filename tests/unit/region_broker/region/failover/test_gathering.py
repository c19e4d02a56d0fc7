"""Before anything of the failover machine is recorded, one node leads all logs again (ADR 53)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import get_args
from unittest.mock import AsyncMock, Mock

import msgspec
import pytest

from geo_replicator.failover import Phase
from geo_replicator.failover_events import (
    Adopted,
    Born,
    CutChosen,
    DrainBegun,
    DrainRolledBack,
    EntryRecord,
    Event,
    FolderNamed,
    FollowResumed,
    HigherEpochLearned,
    HistoryJoined,
    HistoryRefuted,
    LogsCut,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from geo_replicator.lineage import LineageEntry, TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.controller.cluster.spreading import gathering
from region_broker.controller.cluster_commands import ElectLeader, GatherLeaders
from region_broker.controller.cluster_image import Spread
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.controller.region_folder import RecordFailover
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.gathering import (
    ACTS_AGAIN_MS,
    DRAINS_AGAIN_MS,
    LOOK_MS,
    Gathering,
)
from region_broker.region.failover.messages import PromiseAnswer
from region_broker.region.failover.record import LeadersGathered, LeadsNoMore, RegionRecord
from region_broker.region.failover.steps.effects import FailoverSteps
from region_broker.region.failover.steps.outlook import FailoverSettings, Outlook
from region_broker.region.peers.protocol import Hello
from tests.fixtures.cluster_images import member
from tests.fixtures.failover_regions import Pair
from tests.fixtures.node_logs import TOPIC_ID, InstantClock
from tests.fixtures.played_spread import spread_region as spread_region_image
from tests.fixtures.waiting import until
from tests.unit.region_broker.region.failover.test_region_record import (
    BIRTH,
    EPOCH,
    FIRST,
    PROMISE,
    Region,
    driver_of,
)

HIGHER = RegionEpoch(17)
ENTRY = EntryRecord.of(
    LineageEntry(
        region_epoch=HIGHER, acting_region="eu", base=TidemarkPoint(EPOCH, 1), positions={}, decided_wall_ms=0
    )
)  # fmt: skip
EVENTS: tuple[Event, ...] = (
    Born("us", True, EPOCH, "f" * 32),
    HistoryJoined("eu", BIRTH),
    FolderNamed("f" * 32),
    TakeoverBegun(region_epoch=HIGHER, old_region="eu", operation_id="op", planned=False, forced=True),
    TakeoverAbandoned("why"),
    CutChosen(ENTRY),
    LogsCut(HIGHER),
    Adopted(HIGHER, 1),
    HistoryRefuted("eu", EPOCH, 1, 1, "why"),
    DrainBegun("op", "eu"),
    DrainRolledBack("why"),
    PROMISE,
    HigherEpochLearned(HIGHER, "eu"),
    FollowResumed("eu"),
    ReturnBegun((ENTRY,)),
    Returned(HIGHER),
)  # fmt: skip


class SpreadRegion(Region):
    """The metadata of a region whose leaders may be spread; a node that is elected leads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[object] = []
        self.refusals: list[Exception] = []

    def spread(self) -> None:
        """Spread the leaders: nobody looks at the rows here."""
        self.image = msgspec.structs.replace(
            self.image, spread=Spread(groups={}, preferred=(1, 2), topics=())
        )

    async def apply(self, command: object) -> MetadataImage:
        self.asked.append(command)
        if self.refusals:
            raise self.refusals.pop(0)
        if isinstance(command, GatherLeaders):
            assert self.image.leadership is not None
            assert command.expected_version == self.image.leadership.version
            self.image = msgspec.structs.replace(self.image, spread=None)
            self.elect(1)
            return self.image
        if isinstance(command, RecordFailover) and self.image.spread is not None:
            raise CommandRefused("leaders-are-spread", "gather them first")
        return await super().apply(command)  # type: ignore[arg-type]

    @property
    def recorded(self) -> int:
        """How many events are recorded."""
        assert self.image.region_folder is not None
        return self.image.region_folder.failover_number


async def spread_region() -> tuple[SpreadRegion, RegionRecord]:
    region = SpreadRegion()
    region.elect(1)
    record = region.record(1)
    await record.begin(FIRST)
    region.spread()
    region.asked.clear()
    return region, record


def test_the_table_has_every_event() -> None:
    assert {type(event) for event in EVENTS} == set(get_args(Event))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
async def test_INV_GTH1_no_event_is_recorded_before_leaders_are_gathered(event: Event) -> None:
    region, record = await spread_region()
    with pytest.raises(LeadersGathered):
        await record.append(event, FIRST)
    assert [type(command) for command in region.asked] == [GatherLeaders]
    assert region.image.spread is None
    assert region.recorded == 1
    await record.append(event, FIRST)
    assert region.recorded == 2, "whoever leads then records it"


async def test_INV_GTH1_the_gate_is_closed_before_leaders_are_gathered() -> None:
    region, record = await spread_region()
    driver = driver_of(region, record)
    state = await driver.recover()
    closed = Mock()
    driver.parts.role.close_gate = closed  # type: ignore[method-assign]

    def look(_command: object) -> None:
        assert closed.called

    region.before = look
    with pytest.raises(LeadsNoMore):
        await driver.record(PROMISE, expected=state)
    assert closed.called
    assert driver.state is state
    assert region.recorded == 1


async def test_INV_GTH1_a_spread_that_comes_while_an_event_is_recorded_is_gathered() -> None:
    """1. Nothing is spread; an event is on its way. 2. Leaders are spread before it. 3. It is refused, and its term would never end."""
    region, record = await spread_region()
    region.image = msgspec.structs.replace(region.image, spread=None)

    def spread(command: object) -> None:
        if isinstance(command, RecordFailover):
            region.before = lambda _: None
            region.spread()
            raise CommandRefused("leaders-are-spread", "gather them first")

    region.before = spread
    with pytest.raises(LeadersGathered):
        await record.append(PROMISE, FIRST)
    assert region.image.spread is None
    assert region.recorded == 1


async def test_INV_GTH1_it_is_tried_again_for_as_long_as_this_node_leads() -> None:
    region, record = await spread_region()
    region.refusals = [
        MetadataInDoubt("no quorum"),
        CommandRefused("leadership-changed", "look again"),
    ]
    with pytest.raises(LeadersGathered):
        await record.append(PROMISE, FIRST)
    assert [type(command) for command in region.asked] == [GatherLeaders] * 3
    region, record = await spread_region()

    def depose(_command: object) -> None:
        region.leads[1] = None

    region.refusals = [MetadataInDoubt("no quorum")] * 9
    apply_now = region.apply

    async def apply(command: object) -> MetadataImage:
        depose(command)
        return await apply_now(command)

    region.apply = apply  # type: ignore[method-assign]
    with pytest.raises(LeadsNoMore):
        await record.append(PROMISE, FIRST)
    assert len(region.asked) == 1


async def test_INV_GTH6_another_one_is_elected_where_this_one_lacks_what_a_data_group_has_committed() -> (
    None
):
    """It would ask for itself for ever: who is not in sync in every group is not elected."""
    image = spread_region_image(TOPIC_ID)
    assert image.spread is not None
    row = msgspec.structs.replace(image.spread.groups[1], in_sync=(member(2), member(3)))
    groups = image.spread.groups | {1: row}
    image = msgspec.structs.replace(
        image, spread=msgspec.structs.replace(image.spread, groups=groups)
    )
    region = SpreadRegion()
    region.image = image
    region.elect = lambda number: None  # type: ignore[method-assign]
    leads = [image.leadership.leader_epoch if image.leadership else None]
    asked: list[object] = []

    async def apply(command: object) -> MetadataImage:
        asked.append(command)
        leads[0] = None  # another one does
        return region.image

    region.apply = apply  # type: ignore[method-assign]
    await Gathering(region, PassingClock(), lambda: leads[0]).gather()
    assert asked == [gathering(image)]
    assert [type(each) for each in asked] == [ElectLeader]


class PassingClock(InstantClock):
    """Time passes by waiting alone."""

    def __init__(self) -> None:
        self.now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.now_ms += int(duration_ms)
        await asyncio.sleep(0)


async def led_alone(
    region: SpreadRegion, serves: Callable[[], bool], within_ms: int = ACTS_AGAIN_MS
) -> bool:
    gathering = Gathering(region, PassingClock(), lambda: region.leads.get(1))
    return await gathering.until_led_alone(serves, within_ms)


async def test_INV_GTH2_a_question_goes_on_where_this_node_acts_again() -> None:
    region, _ = await spread_region()
    looks: list[bool] = []

    def serves() -> bool:
        looks.append(region.image.spread is None)
        return len(looks) == 3

    assert await led_alone(region, serves)
    assert looks == [True] * 3


async def test_INV_GTH2_it_is_refused_where_another_node_leads_or_this_one_does_not_act_in_time() -> (
    None
):
    region, _ = await spread_region()
    assert not await led_alone(region, lambda: False)
    region, _ = await spread_region()
    elect_now = region.elect

    def elect(number: int) -> None:
        assert number == 1
        region.leads[1] = None
        elect_now(2)

    region.elect = elect  # type: ignore[method-assign]
    assert not await led_alone(region, lambda: True)


async def test_INV_GTH5_a_question_that_comes_while_ledgers_are_loaded_is_answered_behind_that() -> (
    None
):
    """1. Leaders are gathered for a question, and it takes too long. 2. It is asked again, and they are not spread any more."""
    region, _ = await spread_region()
    assert not await led_alone(region, lambda: False)
    looks: list[int] = []

    def serves() -> bool:
        looks.append(len(looks))
        return len(looks) * LOOK_MS > ACTS_AGAIN_MS

    assert await led_alone(region, serves, DRAINS_AGAIN_MS)
    assert looks[-1] * LOOK_MS >= ACTS_AGAIN_MS
    assert await led_alone(region, lambda: False, DRAINS_AGAIN_MS), "why not, is judged by the rest"


async def test_INV_GTH5_nobody_waits_longer_for_a_node_that_does_not_lead() -> None:
    region, _ = await spread_region()
    region.image = msgspec.structs.replace(region.image, spread=None)
    region.leads[1] = None
    clock = PassingClock()
    began_ms = clock.monotonic_ms()
    gathering = Gathering(region, clock, lambda: region.leads.get(1))
    assert not await gathering.until_led_alone(lambda: True, DRAINS_AGAIN_MS)
    assert clock.monotonic_ms() - began_ms < DRAINS_AGAIN_MS


def test_INV_GTH5_whoever_asks_waits_longer_than_it_is_waited_for() -> None:
    settings = FailoverSettings()
    assert settings.ask_timeout_ms + settings.final_round_timeout_ms > ACTS_AGAIN_MS
    assert settings.switch_timeout_ms > DRAINS_AGAIN_MS


async def digest_until(driver: FailoverDriver, done: Callable[[], bool]) -> None:
    digesting = asyncio.get_running_loop().create_task(driver._digest())
    await until(done, what="what was learnt")
    digesting.cancel()
    await asyncio.wait([digesting])


async def test_INV_GTH4_a_higher_region_epoch_is_recorded_when_this_node_leads_again() -> None:
    region, record = await spread_region()
    driver = driver_of(region, record)
    await driver.recover()
    driver._learned = Mock(spec=Hello, region_epoch=HIGHER, acting_region="eu")
    driver._heard.set()
    await digest_until(driver, lambda: region.image.spread is None)
    assert region.recorded == 1
    assert (await driver.recover()).phase is Phase.ACTING
    await digest_until(driver, lambda: region.recorded == 2)
    assert driver.state.phase is Phase.FENCED


def steps_of(**parts: object) -> FailoverSteps:
    outlook = Mock(spec=Outlook, settings=FailoverSettings(), region="us", parts=Mock(**parts))
    outlook.lives = Mock(aside=lambda: "", unsure=lambda: "")
    return FailoverSteps(outlook, lambda: FIRST)


async def test_INV_GTH3_a_region_that_stands_aside_gathers_before_it_stands_still(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is recorded then; the leaders of data groups would acknowledge on (T36)."""
    told: list[str] = []
    role = Mock(close_gate=lambda _: told.append("gate"), fence=AsyncMock())
    gathering = Mock(is_due=True, gather=AsyncMock(side_effect=lambda: told.append("gathered")))
    steps = steps_of(role=role, gathering=gathering)
    monkeypatch.setattr(steps._outlook.lives, "aside", lambda: "another one runs")
    steps._load_and_open = AsyncMock(return_value=None)  # type: ignore[method-assign]
    steps._handshake_until_aside = AsyncMock()  # type: ignore[method-assign]
    acting = asyncio.get_running_loop().create_task(steps.act(FIRST))
    await until(lambda: told == ["gate", "gathered"], what="it")
    await asyncio.sleep(0)
    assert not role.fence.called, "the term is over"
    acting.cancel()
    await asyncio.wait([acting])


async def test_INV_GTH2_the_operators_word_does_not_stand_for_a_region_that_elects() -> None:
    promise = PromiseAnswer(granted=True, reason="", claim_region_epoch=EPOCH, claim_number=1)
    silent: tuple[dict[str, PromiseAnswer], dict[str, str]] = ({}, {"eu": "no node leads"})
    peers = Mock(
        ask_all=AsyncMock(side_effect=[silent] * 5 + [({"eu": promise}, {})]),
        between_leaders=lambda missing: "eu" in missing,
        handshake_with_all=AsyncMock(return_value=("eu",)),
    )
    steps = steps_of(peers=peers, clock=InstantClock(), domain="main")
    takeover = TakeoverBegun(
        region_epoch=HIGHER, old_region="eu", operation_id="op", planned=False, forced=True
    )
    assert await steps._ask_promises(takeover) == {"eu": promise}


# --- two regions ---


class Gathers:
    """A region whose leaders are spread when another region asks; it elects some other node as often as `elsewhere` says."""

    def __init__(self, elsewhere: int) -> None:
        self.is_due = False
        self.asked, self._elsewhere = 0, elsewhere

    async def gather(self) -> None:
        raise AssertionError("nothing is spread where it is recorded")

    async def until_led_alone(self, _serves: Callable[[], bool], _within_ms: int) -> bool:
        self.asked += 1
        return self.asked > self._elsewhere


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        await regions.eu.write("first")
        await regions.reached("first")
        yield regions


@pytest.mark.parametrize("kind", ["switch", "failover"])
async def test_INV_GTH2_a_region_that_gathers_is_asked_again_until_it_drains_and_promises(
    pair: Pair, kind: str
) -> None:
    gathers = Gathers(elsewhere=2)
    object.__setattr__(pair.eu.driver.parts, "gathering", gathers)
    operations = pair.us.operations
    operation = (
        operations.begin_switch() if kind == "switch" else operations.begin_failover(confirmed=True)
    )
    await pair.us.ended(operation)
    assert (operation.status, operation.error) == ("succeeded", "")
    assert gathers.asked >= 4, "twice in vain, for the drain and for the promise"
    assert operation.statement is not None
    assert operation.statement.planned
    await pair.eu.until(Phase.MIRRORING)
