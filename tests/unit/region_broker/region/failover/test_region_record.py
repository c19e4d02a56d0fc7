"""A region of several nodes keeps its failover in its metadata: what is recorded, by whom, and who goes on (ADR 48)."""

import asyncio
from collections.abc import Callable
from unittest.mock import Mock
from uuid import UUID

import msgspec
import pytest

from geo_replicator.failover import Phase, born, fold
from geo_replicator.failover_events import (
    Born,
    DrainBegun,
    DrainRolledBack,
    PromiseGiven,
)
from geo_replicator.folder_life import Birth, Chain, FolderIdentity, Shown
from idempotency.fencing import leader_epoch
from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.controller.cluster_commands import ElectLeader, RegisterNode, UnfenceNode
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.metadata_commands import Command, CountNodeStart, PutDomain, apply
from region_broker.controller.metadata_image import DomainImage, MetadataImage
from region_broker.controller.refusals import CommandRefused
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    RecordFailover,
    RegionFolder,
)
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.record import (
    MET_BYTES_MAX,
    LeadsNoMore,
    PatientMetadata,
    RegionRecord,
)
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings
from tests.fixtures.node_logs import InstantClock

EPOCH = RegionEpoch(8)
BIRTH = Birth(birth_id="b" * 32, region="us", region_epoch=EPOCH, wall_ms=1)
FIRST = born(Born("us", True, EPOCH, "f" * 32))
DRAIN = DrainBegun("op", "eu")
PROMISE = PromiseGiven(RegionEpoch(17), "eu")


def own(number: int) -> FolderIdentity:
    return FolderIdentity(
        cluster_id="c", region="us", node_id=number, folder_id=str(number) * 32, born=BIRTH,
        chain=Chain().with_start(f"start of {number}"),
    )  # fmt: skip


class Region:
    """The metadata of a region, as all of its nodes know them."""

    def __init__(self) -> None:
        self.image = MetadataImage(version=0, cluster_id="c")
        self.before: Callable[[Command], None] = lambda _: None
        self.after: Callable[[Command], None] = lambda _: None
        self.leads: dict[int, LeaderEpoch | None] = {}
        self._epoch = 0
        self.put(
            PutDomain(
                DomainImage(name="main", acting_region="us", region_epoch=EPOCH, shard_count=1)
            )
        )
        node = NodeImage(
            node_id=1, incarnation=UUID(int=1), life=UUID(int=2), kafka_host="h", kafka_port=1, peer_host="h",
            peer_port=2, http_host="h", http_port=3,
        )  # fmt: skip
        self._node = node
        self.put(RegisterNode(node))
        self.put(UnfenceNode(1, node.life))

    def put(self, command: Command) -> None:
        self.image = apply(self.image, command)

    async def apply(self, command: Command) -> MetadataImage:
        self.before(command)
        self.put(command)
        self.after(command)
        return self.image

    def elect(self, number: int) -> None:
        """Let a node lead; who led before has not heard of it."""
        self._epoch += 1
        epoch = leader_epoch(EPOCH, self._epoch)
        version = self.image.leadership.version if self.image.leadership else 0
        self.put(ElectLeader(self._node.member, epoch, version))
        self.leads[number] = epoch

    def record(self, number: int) -> RegionRecord:
        return RegionRecord(self, own(number), InstantClock(), lambda: self.leads.get(number))


async def led_by_first() -> tuple[Region, RegionRecord]:
    region = Region()
    region.elect(1)
    record = region.record(1)
    await record.begin(FIRST)
    return region, record


def driver_of(region: Region, record: RegionRecord) -> FailoverDriver:
    parts = FailoverParts(
        domain="main", clock=InstantClock(), metadata=region, role=Mock(region="us"), tidemarks=Mock(), quarantine=Mock(),
        peers=Mock(), folder=record, manifest=Mock(),
    )  # fmt: skip
    return FailoverDriver(parts, record, FailoverSettings())


async def test_a_region_begins_with_what_its_first_leaders_folder_says() -> None:
    region, record = await led_by_first()
    assert record.recover().state == FIRST
    assert record.identity.folder_id == own(1).folder_id
    assert record.identity.born == BIRTH
    assert record.identity.elected
    region.elect(2)
    other = region.record(2)
    await other.begin(None)
    assert other.recover().state == FIRST, "it is begun once"
    assert other.identity.folder_id == own(1).folder_id
    assert other.identity.chain.count == 2
    assert other.identity.node_id == 2


async def test_INV_FRC2_who_leads_next_goes_on_from_the_last_event() -> None:
    region, record = await led_by_first()
    draining = fold(FIRST, DRAIN)
    await record.append(DRAIN, draining)
    region.elect(2)
    assert region.record(2).recover().state == draining
    back = DrainRolledBack("it was started again")
    await region.record(2).append(back, fold(draining, back))
    recorded = region.record(3).recover().state
    assert recorded is not None
    assert recorded.phase is Phase.ACTING


async def test_INV_FRC1_a_deposed_leader_that_does_not_know_it_records_nothing() -> None:
    region, record = await led_by_first()
    region.elect(2)
    assert region.leads[1] == leader_epoch(EPOCH, 1), "it has not heard of it"
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))
    assert region.record(2).recover().state == FIRST


async def test_INV_FRC1_nor_does_one_that_knows_it() -> None:
    region, record = await led_by_first()
    region.leads[1] = None
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))
    assert record.recover().state == FIRST


@pytest.mark.parametrize("knows", [False, True])
async def test_INV_FRC1_a_promise_that_a_deposed_leader_could_not_record_holds_up_nothing_when_it_leads_again(
    knows: bool,
) -> None:
    """Whoever answers another region is cancelled by nobody (`peers.server`)."""
    region, record = await led_by_first()
    driver = driver_of(region, record)
    state = await driver.recover()

    def lose(_command: Command) -> None:
        region.elect(2)
        region.before = lambda _: None
        if knows:
            region.leads[1] = None
            raise MetadataInDoubt("cut off")

    region.before = lose
    async with asyncio.timeout(1):
        with pytest.raises(LeadsNoMore):
            await driver.record(PROMISE, expected=state)
    region.elect(1)
    async with asyncio.timeout(1):
        state = await driver.recover()
        assert await driver.record(DRAIN, expected=state)
    assert record.recover().state == fold(FIRST, DRAIN)


async def test_INV_FRC1_an_event_that_is_settled_late_takes_nothing_back_of_what_others_recorded() -> (
    None
):
    """1. A drain is recorded, and its leader cut off. 2. Another one ends it. 3. The first one leads again, and hears all of it."""
    region, record = await led_by_first()
    driver = driver_of(region, record)
    state = await driver.recover()
    settled = asyncio.Event()
    apply_now = region.apply

    async def apply_late(command: Command) -> MetadataImage:
        image = await apply_now(command)
        await settled.wait()
        return image

    region.apply = apply_late  # type: ignore[method-assign]
    recording = asyncio.get_running_loop().create_task(driver.record(DRAIN, expected=state))
    await asyncio.sleep(0.01)
    region.apply = apply_now  # type: ignore[method-assign]
    region.elect(2)
    back = DrainRolledBack("its leader is gone")
    await region.record(2).append(back, fold(fold(FIRST, DRAIN), back))
    region.elect(1)
    recovering = asyncio.get_running_loop().create_task(driver.recover())
    await asyncio.sleep(0.01)
    settled.set()
    with pytest.raises(LeadsNoMore):
        await recording
    assert (await recovering).phase is Phase.ACTING
    assert driver.state.phase is Phase.ACTING


@pytest.mark.parametrize(
    "others", [(b"{}",), (b"{}", msgspec.json.encode(fold(FIRST, DRAIN)))], ids=["state", "number"]
)
async def test_INV_FRC1_what_another_try_has_recorded_is_not_taken_for_this_event(
    others: tuple[bytes, ...],
) -> None:
    """Only the state that was asked for, one event later, is of an earlier try."""
    region, record = await led_by_first()

    def overtake(_command: Command) -> None:
        region.before = lambda _: None
        for follows, state in enumerate(others, 1):
            region.put(RecordFailover(leader_epoch(EPOCH, 1), follows, state))

    region.before = overtake
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))


async def test_INV_FRC1_a_leader_that_hears_that_it_was_deposed_asks_no_more() -> None:
    """Cut off as it is, nobody would ever refuse it."""
    region, record = await led_by_first()
    asked = 0

    def cut_off(_command: Command) -> None:
        nonlocal asked
        asked += 1
        if asked == 2:
            region.leads[1] = None
        if asked < 5:
            raise MetadataInDoubt("cut off")

    region.before = cut_off
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))
    assert asked == 2
    assert record.recover().state == FIRST


async def test_INV_MRF1_what_was_begun_under_one_leader_epoch_is_not_recorded_under_the_next() -> (
    None
):
    region, record = await led_by_first()

    def elect_again(_command: Command) -> None:
        region.before = lambda _: None
        region.elect(2)
        region.elect(1)
        raise MetadataInDoubt("nobody knows")

    region.before = elect_again
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))
    assert record.recover().state == FIRST


async def test_INV_FRC1_a_task_of_the_region_waits_until_it_is_cancelled() -> None:
    region, record = await led_by_first()
    region.elect(2)
    joining = asyncio.get_running_loop().create_task(record.join(BIRTH))
    await asyncio.wait([joining], timeout=0.01)
    assert not joining.done()
    joining.cancel()
    await asyncio.wait([joining])


async def test_INV_FRC1_an_answer_that_was_lost_is_asked_for_again_and_takes_effect_once() -> None:
    region, record = await led_by_first()
    lost = [True, True]

    def lose(_command: Command) -> None:
        if lost:
            lost.pop()
            raise MetadataInDoubt("nobody knows")

    region.after = lose
    await record.append(DRAIN, fold(FIRST, DRAIN))
    folder = region.image.region_folder
    assert folder is not None
    assert folder.failover_number == 2
    assert record.recover().state == fold(FIRST, DRAIN)


async def test_INV_FRC1_a_command_that_never_arrived_is_asked_for_again() -> None:
    region, record = await led_by_first()
    lost = [True]

    def lose(_command: Command) -> None:
        if lost:
            lost.pop()
            raise MetadataInDoubt("no quorum")

    region.before = lose
    await record.append(DRAIN, fold(FIRST, DRAIN))
    assert record.recover().state == fold(FIRST, DRAIN)


async def test_INV_FRC3_a_step_that_has_no_room_is_told_as_an_error_and_ends_no_node(
    caplog: pytest.LogCaptureFixture,
) -> None:
    region, record = await led_by_first()
    refused: list[Command] = []

    def refuse(command: Command) -> None:
        refused.append(command)
        if len(refused) in {1, 2, 4}:
            raise CommandRefused("command-too-large", "this change has 9 bytes")

    region.before = refuse
    await record.append(DRAIN, fold(FIRST, DRAIN))
    assert record.recover().state == fold(FIRST, DRAIN)
    patient = PatientMetadata(region, InstantClock())
    await patient.apply(CountNodeStart())
    assert len(refused) == 5
    errors = [each for each in caplog.records if each.levelname == "ERROR"]
    assert len(errors) == 3
    assert "this change has 9 bytes" in errors[0].getMessage()
    assert "empty their data folders" in errors[0].getMessage(), "the way out"


async def test_INV_FRC3_a_step_that_has_no_room_is_another_nodes_when_that_one_leads() -> None:
    region, record = await led_by_first()

    def refuse(_command: Command) -> None:
        region.leads[1] = None
        raise CommandRefused("command-too-large", "this change has 9 bytes")

    region.before = refuse
    with pytest.raises(LeadsNoMore):
        await record.append(DRAIN, fold(FIRST, DRAIN))


async def test_INV_FRC3_starts_of_another_region_that_are_too_large_are_not_remembered() -> None:
    region, record = await led_by_first()
    before = region.image.version
    shown = Shown(folder_id="e", incarnations=("1" * MET_BYTES_MAX,), incarnation_count=1)
    with pytest.raises(MetadataUnwritable, match="are kept at most"):
        await record.note_met("eu", shown)
    assert region.image.version == before


async def test_T32_the_region_joins_a_history_once_and_every_node_knows_it() -> None:
    region = Region()
    region.elect(1)
    without = msgspec.structs.replace(own(1), born=None)
    record = RegionRecord(region, without, InstantClock(), lambda: region.leads.get(1))
    await record.begin(None)
    assert record.identity.history is None
    assert record.recover().state is None
    await record.join(BIRTH)
    await record.join(BIRTH)
    assert region.record(2).identity.joined == BIRTH


async def test_T36_the_known_starts_of_other_regions_outlive_the_leader() -> None:
    region, record = await led_by_first()
    shown = Shown(folder_id="e", incarnations=("1", "2"), incarnation_count=2)
    await record.note_met("eu", shown)
    before = region.image.version
    await record.note_met("eu", shown)
    assert region.image.version == before, "nothing is new"
    region.elect(2)
    assert region.record(2).identity.met == {"eu": shown.to_remember()}


@pytest.mark.parametrize("known", [True, False])
async def test_before_its_first_leader_a_node_speaks_of_its_own_folder(known: bool) -> None:
    region = Region()
    if known:
        region.elect(1)
        await region.record(1).begin(FIRST)
    identity = region.record(2).identity
    assert identity.folder_id == (own(1) if known else own(2)).folder_id
    assert identity.elected == known


async def test_a_step_waits_for_a_quorum_that_is_away_and_ends_no_node() -> None:
    region = Region()
    lost = [True, True]

    def lose(_command: Command) -> None:
        if lost:
            lost.pop()
            raise MetadataInDoubt("no quorum")

    region.before = lose
    patient = PatientMetadata(region, InstantClock())
    region.elect(1)
    asked = BeginRegionFolder(leader_epoch(EPOCH, 1), RegionFolder(folder_id="f"))
    assert (await patient.apply(asked)).region_folder is not None
    assert patient.image is region.image
    with pytest.raises(CommandRefused):
        await patient.apply(BeginRegionFolder(leader_epoch(EPOCH, 7), RegionFolder(folder_id="f")))
