"""The driver that has leaders spread and gathered: what it proposes, and what it does where that is refused."""

import asyncio
from dataclasses import dataclass, field

import pytest
from msgspec import structs

from idempotency.fencing import LEADER_COUNTER_MAX
from idempotency.identity import Member
from region_broker.controller.cluster.spreading import KeeperCommand
from region_broker.controller.cluster_commands import ElectLeader, GatherLeaders, PreferSpread
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.controller.metadata_commands import apply
from region_broker.controller.metadata_image import MetadataImage
from region_broker.region.cluster.spread_keeper import SpreadKeeper, SpreadParts, idle_because
from tests.fixtures.cluster_images import after, leader_epoch
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.spread_images import (
    A,
    B,
    C,
    able_to_spread,
    elected,
    left_with,
    spread,
    spreading,
)


@dataclass
class Region:
    """The metadata, as one node has them."""

    image: MetadataImage
    me: Member = A
    trouble: str | None = None
    clock: ManualClock = field(default_factory=ManualClock)
    asked: list[KeeperCommand] = field(default_factory=list)
    fails: bool = False
    awaits_readers: bool = False
    under_way: int = 0
    most: int = 0

    def keeper(self) -> SpreadKeeper:
        return SpreadKeeper(
            SpreadParts(
                me=self.me, image=lambda: self.image, apply=self._apply, idle=self._idle, trouble=lambda: self.trouble,
                clock=self.clock,
            )
        )  # fmt: skip

    def _idle(self) -> str:
        return idle_because(leads=self.me == A, acts=True, awaits_readers=self.awaits_readers)

    def is_spread(self) -> bool:
        return self.image.spread is not None

    async def _apply(self, command: KeeperCommand) -> None:
        self.asked.append(command)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if self.fails:
            raise MetadataInDoubt("no majority")
        self.image = apply(self.image, command)


async def test_INV_SPD1_it_spreads_when_that_is_due_and_gathers_when_it_is_asked_to() -> None:
    region = Region(after(able_to_spread(), PreferSpread(wanted=True)))
    keeper = region.keeper()
    await keeper.look()
    assert region.asked == []
    region.clock.now_ms += 10_000
    await keeper.look()
    assert region.asked == [spreading()]
    assert await keeper.gather("a switch")
    assert region.asked[1:] == [GatherLeaders(3)]
    assert await keeper.gather("a switch"), "they are gathered"
    assert len(region.asked) == 2


async def test_INV_SPD1_what_is_refused_or_in_doubt_is_decided_anew() -> None:
    region = Region(after(spread(), PreferSpread(wanted=False)), fails=True)
    keeper = region.keeper()
    await keeper.look()
    assert not await keeper.gather("a switch")
    region.fails = False
    region.clock.now_ms += 1_000
    await keeper.look()
    assert region.asked == [GatherLeaders(3)] * 3
    assert region.image.spread is None


async def test_INV_SPD2_a_data_leader_in_trouble_asks_for_gathering() -> None:
    region = Region(after(spread(), PreferSpread(wanted=True)), B)
    keeper = region.keeper()
    await keeper.look()
    assert region.asked == []
    region.trouble = "orders-1 has stopped"
    await keeper.look()
    assert region.asked == [GatherLeaders(3)]
    await keeper.look()
    assert len(region.asked) == 1, "it leads none any more"


async def test_INV_SPD2_where_the_main_leader_lacks_something_another_one_is_elected() -> None:
    image = spread()
    region = Region(left_with(image, 1, B), B, trouble="x")
    await region.keeper().look()
    assert region.asked == [ElectLeader(B, leader_epoch(4), 3)]


async def test_where_no_leader_epoch_is_left_a_look_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    image = spread()
    image = left_with(image, 1, B)
    used_up = structs.replace(image, last_leader_epoch=leader_epoch(LEADER_COUNTER_MAX))
    region = Region(used_up, B, trouble="x")
    await region.keeper().look()
    assert region.asked == []
    assert "not gathered" in caplog.text


async def test_INV_SPD3_one_node_leads_all_while_clients_of_another_region_write() -> None:
    """What a mirror's clients send is carried to the main leader, whole: it could not serve what others lead."""
    region = Region(after(spread(), PreferSpread(wanted=True)))
    keeper = region.keeper()
    keeper.note_forwarded()
    await keeper.look()
    assert region.asked == [GatherLeaders(3)]
    region.clock.now_ms += 599_000
    await keeper.look()
    assert "clients of another region write here" in keeper.waits_for()
    assert not region.is_spread()
    region.clock.now_ms += 1_000
    await keeper.look()
    region.clock.now_ms += 10_000
    await keeper.look()
    assert region.is_spread()
    assert keeper.waits_for() == ""


def test_what_keeps_leaders_from_being_spread_is_told_by_its_own_name() -> None:
    """A region that acts, and gives its readers time behind a takeover, is not told to take no writes."""
    assert idle_because(leads=True, acts=True, awaits_readers=False) == ""
    assert "took over" in idle_because(leads=True, acts=True, awaits_readers=True)
    assert "takes no writes" in idle_because(leads=True, acts=False, awaits_readers=True)
    assert "another node" in idle_because(leads=False, acts=False, awaits_readers=False)


async def test_INV_SPD4_consumers_behind_a_takeover_are_waited_for_and_that_is_told() -> None:
    region = Region(after(able_to_spread(), PreferSpread(wanted=True)), awaits_readers=True)
    keeper = region.keeper()
    for _ in range(3):
        await keeper.look()
        region.clock.now_ms += 20_000
    assert region.asked == []
    assert "took over" in keeper.waits_for()
    region.awaits_readers = False
    await keeper.look()
    region.clock.now_ms += 10_000
    await keeper.look()
    assert region.is_spread()


async def test_INV_SPD4_nobody_is_gathered_for_consumers_that_a_data_leader_had_waited_for() -> (
    None
):
    region = Region(after(spread(), PreferSpread(wanted=True)), B, awaits_readers=True)
    await region.keeper().look()
    assert region.asked == []


async def test_INV_SPD1_two_that_ask_at_once_are_heard_one_after_the_other() -> None:
    region = Region(after(spread(), PreferSpread(wanted=True)))
    keeper = region.keeper()
    both = tuple(await asyncio.gather(keeper.gather("a switch"), keeper.gather("a promise")))
    assert region.asked == [GatherLeaders(3)] * 2
    assert region.most == 1
    assert both == (True, True), "the second one was refused: nothing was left to do"


async def test_INV_SPK1_no_leaders_are_spread_where_a_log_is_in_trouble() -> None:
    region = Region(after(able_to_spread(), PreferSpread(wanted=True)), trouble="x has stopped")
    keeper = region.keeper()
    for _ in range(3):
        await keeper.look()
        region.clock.now_ms += 10_000
    assert region.asked == []
    assert keeper.waits_for() == "x has stopped"


async def test_INV_SPD2_who_leads_no_group_does_not_ask_for_gathering() -> None:
    image = after(spread(), PreferSpread(wanted=True))
    region = Region(after(image, elected(image, 1, C)), B, trouble="a copy has stopped")
    await region.keeper().look()
    assert region.asked == []


async def test_INV_SPD2_what_is_refused_is_asked_for_again_behind_a_pause() -> None:
    region = Region(after(spread(), PreferSpread(wanted=True)), B, trouble="x", fails=True)
    keeper = region.keeper()
    counts = []
    for passed_ms in (0, 999, 1, 1):
        region.clock.now_ms += passed_ms
        await keeper.look()
        counts.append(len(region.asked))
    assert counts == [1, 1, 2, 2]
