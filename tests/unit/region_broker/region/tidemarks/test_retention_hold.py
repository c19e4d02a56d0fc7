"""T14: what retention keeps for mirrors, through restarts of the primary and absences of theirs."""

import errno
from pathlib import Path

import pytest

from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from idempotency.identity import RegionEpoch
from region_broker.limits import MIRROR_HOLD_MS
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.tidemarks.retention_hold import FILE_NAME, HoldParts, RetentionHold
from tests.fixtures.coordinator import ManualClock
from tests.fixtures.node_logs import Fixture, fixture
from tests.simulation.disk import SimulatedDisk

FOLDER = Path("/data")
POINTS = [TidemarkPoint(RegionEpoch(8), number) for number in range(3)]


class Primary:
    """One partition's the primary, and what it knows of its mirrors."""

    def __init__(self) -> None:
        self.some: Fixture = fixture()
        self.key = key_of(self.some.partition)
        self.disk = SimulatedDisk()
        self.disk.make_dirs(FOLDER)
        self.clock = ManualClock()
        self.acted: set[str] = set()
        self.region_epoch = POINTS[0].region_epoch
        self.start()

    def start(self) -> None:
        """Start the process (again): what is not on the disk is forgotten."""
        self.cut: Cut | None = Cut(POINTS[1], {self.key: 3})
        self.starts = {self.key: 0}
        self.copied: dict[str, dict[LogKey, int]] = {}
        self.reached: dict[str, TidemarkPoint] = {}
        self.heard_ms_ago: dict[str, int] = {}
        self.hold = RetentionHold.open(self.disk, FOLDER, self.clock, ["us"])
        self.parts = HoldParts(
            partitions=lambda: [self.some.partition],
            published_cut=lambda: self.cut,
            published_starts=lambda: self.starts,
            region_epoch=lambda: self.region_epoch,
            regions=lambda: ["us"],
            acted=lambda: self.acted,
            copied=self.copied.get,
            reached=self.reached.get,
            heard_ms_ago=self.heard_ms_ago.get,
        )

    async def held(self) -> int | None:
        await self.hold.look(self.parts)
        return self.noted

    @property
    def noted(self) -> int | None:
        hold = self.hold.of(self.some.partition)
        return None if hold is None else hold.offset

    async def ordered(self) -> int:
        await self.hold.look(self.parts)
        hold = self.hold.of(self.some.partition)
        assert hold is not None
        return hold.ordered_offset

    async def mirror_reports(self, copied: int, reached: TidemarkPoint) -> None:
        await self.hold.meet("us")
        self.copied["us"] = {self.key: copied}
        self.reached["us"] = reached
        self.heard_ms_ago["us"] = 0


async def test_T14_nothing_is_held_for_a_mirror_that_never_came() -> None:
    primary = Primary()
    assert await primary.held() is None


# Holds INV-RH1.
async def test_T14_what_is_above_the_last_tidemark_that_a_mirror_has_reached_is_held() -> None:
    """A takeover may cut there, and the primary must be able to go back to it; what it has copied does not count."""
    primary = Primary()
    await primary.mirror_reports(copied=9, reached=POINTS[1])
    assert await primary.held() == 3
    primary.cut = Cut(POINTS[2], {primary.key: 7})
    assert await primary.held() == 3
    await primary.mirror_reports(copied=9, reached=POINTS[2])
    assert await primary.held() == 7


# Holds INV-RH1.
async def test_T14_primary_knows_after_a_restart_what_a_mirror_that_is_away_has_not_copied() -> (
    None
):
    primary = Primary()
    await primary.hold.meet("us")
    primary.start()
    assert primary.noted == 0  # it came, and no round of retention was since
    assert await primary.held() == 0
    await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == 2
    primary.start()
    assert primary.noted == 2
    assert await primary.held() == 2


async def test_T14_a_region_that_acted_before_is_waited_for_though_it_never_mirrored_this_one() -> (
    None
):
    primary = Primary()
    primary.acted = {"us"}
    assert await primary.held() == 0


# Holds INV-RH1.
async def test_T14_what_an_order_has_deleted_is_held_until_all_have_reached_a_tidemark_that_says_so() -> (
    None
):
    primary = Primary()
    primary.starts = {primary.key: 1}
    await primary.mirror_reports(copied=9, reached=POINTS[0])
    assert await primary.ordered() == 0, "a takeover may void the order"
    await primary.mirror_reports(copied=9, reached=POINTS[1])
    primary.cut, primary.starts = Cut(POINTS[2], {primary.key: 7}), {primary.key: 5}
    assert await primary.ordered() == 1, "of the tidemark that was reached"
    await primary.mirror_reports(copied=9, reached=POINTS[2])
    assert await primary.ordered() == 5
    primary.start()
    assert await primary.ordered() == 0, "nobody has said since what it has reached"


async def test_INV_RH1_a_tidemark_that_may_be_void_is_not_waited_for_where_another_region_acted() -> (
    None
):
    """us takes over below (8, 2), and switches back under 24, between two looks; another order is given, in (24, 9)."""
    primary = Primary()
    await primary.mirror_reports(copied=9, reached=POINTS[1])
    assert await primary.ordered() == 0
    primary.cut, primary.starts = Cut(POINTS[2], {primary.key: 7}), {primary.key: 5}
    assert await primary.ordered() == 0
    primary.cut = Cut(TidemarkPoint(RegionEpoch(24), 9), {primary.key: 12})
    await primary.mirror_reports(copied=9, reached=TidemarkPoint(RegionEpoch(24), 8))
    assert await primary.ordered() == 0, "no tidemark that us has reached says so"


# Holds INV-RH3.
async def test_T14_a_mirror_that_is_gone_for_a_week_holds_nothing_any_more() -> None:
    primary = Primary()
    await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == 2
    primary.start()
    primary.clock.advance(MIRROR_HOLD_MS)
    assert await primary.held() == 2
    primary.clock.advance(1)
    assert await primary.held() is None


async def test_T14_time_in_which_the_primary_was_off_makes_no_mirror_old() -> None:
    primary = Primary()
    await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == 2
    primary.clock.advance(2 * MIRROR_HOLD_MS)
    primary.start()
    assert await primary.held() == 2


async def test_INV_RH4_a_disk_that_takes_no_note_ends_no_round_of_retention() -> None:
    primary = Primary()
    await primary.mirror_reports(copied=2, reached=POINTS[1])

    def full(_operation: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "no room", str(path))

    primary.disk.fault = full
    assert await primary.held() == 2
    primary.disk.fault = None
    assert await primary.held() == 2
    primary.start()
    assert primary.noted == 2


async def test_INV_RH2_a_mirror_that_could_not_be_noted_is_not_known() -> None:
    primary = Primary()

    def full(_operation: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "no room", str(path))

    primary.disk.fault = full
    for _ in range(2):
        with pytest.raises(OSError, match="no room"):
            await primary.hold.meet("us")
    primary.disk.fault = None
    await primary.hold.meet("us")
    primary.start()
    assert primary.hold.mirrors == ("us",)


async def test_T14_a_damaged_file_holds_everything_for_every_region() -> None:
    primary = Primary()
    primary.disk.write_file_atomic(FOLDER / FILE_NAME, b"{")
    primary.start()
    assert await primary.held() == 0


async def test_INV_RH3_a_region_that_acted_and_is_gone_for_good_stays_gone_until_it_is_heard() -> (
    None
):
    """It was known anew at every look, as one that comes back some day: retention made room once a week."""
    primary = Primary()
    primary.acted = {"us"}
    assert await primary.held() == 0
    primary.clock.advance(MIRROR_HOLD_MS + 1)
    assert await primary.held() is None, "gone for a week"
    assert await primary.held() is None
    primary.start()
    assert await primary.held() is None, "known durably"
    await primary.hold.meet("us")
    assert primary.noted == 0, "it is back, and has told nothing yet"


async def test_INV_RH5_who_begins_to_lead_holds_all_for_a_mirror_that_another_node_has_met() -> (
    None
):
    primary = Primary()
    primary.hold.begin_anew(["us"])
    assert await primary.held() == 0
    await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == 2


async def test_INV_RH5_a_mirror_is_not_silent_while_others_lead() -> None:
    """It was heard by who led meanwhile; and an emptied mirror may have begun again, below what this node has noted."""
    primary = Primary()
    await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == 2
    primary.start()
    primary.clock.advance(2 * MIRROR_HOLD_MS)
    primary.hold.begin_anew([])
    assert await primary.held() == 0
    primary.clock.advance(MIRROR_HOLD_MS + 1)
    assert await primary.held() is None, "a disk is finite (INV-RH3)"


@pytest.mark.parametrize("restarts", [False, True], ids=["one process", "restarted"])
@pytest.mark.parametrize("heard", [False, True], ids=["never heard", "heard in a former term"])
async def test_INV_RH6_the_time_in_which_a_region_mirrors_is_no_silence_of_the_primary(
    *, heard: bool, restarts: bool
) -> None:
    """us acts under 17 for months and is lost; this region takes over under 24, and us comes back within days."""
    primary = Primary()
    primary.acted = {"us"}
    if heard:
        await primary.mirror_reports(copied=2, reached=POINTS[1])
    assert await primary.held() == (2 if heard else 0)
    primary.cut, primary.region_epoch = None, RegionEpoch(17)
    for weeks in range(1, 4):
        primary.clock.advance(MIRROR_HOLD_MS)
        if heard:
            primary.heard_ms_ago["us"] = weeks * MIRROR_HOLD_MS
        await primary.hold.look(primary.parts)
    if restarts:
        primary.start()
    primary.region_epoch = RegionEpoch(24)
    primary.cut = Cut(TidemarkPoint(RegionEpoch(24), 9), {primary.key: 12})
    assert primary.hold.mirrors == ("us",)
    assert await primary.held() is not None
    primary.clock.advance(MIRROR_HOLD_MS)
    assert await primary.held() is not None
    primary.clock.advance(1)
    assert await primary.held() is None, "a disk is finite (INV-RH3)"


async def test_INV_RH6_silence_of_a_former_term_is_no_silence_of_this_one() -> None:
    """It was gone for a week, came back, and acted: the region that mirrored it meanwhile has counted that week."""
    primary = Primary()
    primary.acted = {"us"}
    assert await primary.held() == 0
    primary.clock.advance(MIRROR_HOLD_MS + 1)
    assert await primary.held() is None
    primary.region_epoch = RegionEpoch(24)
    assert await primary.held() == 0
