"""What a node finds reached that begins to lead a mirror region: its own logs say it, its own file may be old (T16)."""

import asyncio
import errno
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from geo_replicator.lineage import BEFORE_ALL, Cut, Lineage, LineageEntry, LogKey, TidemarkPoint
from geo_replicator.whole_ends import AS_FORGOTTEN, NOTHING_WHOLE, Unlisted, WholeEnds
from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.pieces import drained
from idempotency.record_batch import ControlType
from region_broker.controller.metadata_commands import ResizeTopic
from region_broker.controller.metadata_image import (
    TIDEMARK_LEDGER,
    DeletedTopic,
    DomainImage,
    MetadataImage,
)
from region_broker.ports.system.disk import RealDisk
from region_broker.region.ports import Term
from region_broker.region.tidemarks.reached_store import ReachedFile
from region_broker.region.tidemarks.service import TidemarkService
from tests.fixtures.failover_regions import ORDERS, Pair, Site
from tests.fixtures.waiting import until
from tests.spec.tidemarks.test_mirror_ends import (
    LONG,
    TRANSFER,
    begin,
    end,
    ends,
    forget,
    transfer_behind_a_long_one,
)

AT_CUT = WholeEnds(Unlisted.AT_CUT)
TERM = Term(RegionEpoch(8), LeaderEpoch(0), "eu")


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """A mirror `us` that stands still, and has reached all that `eu` has published."""
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.eu.write("second", number=1)
        await pair.reached("second")
        await pair.stop_tidemarks()
        await pair.us.role.stand_still("for a test")
        yield pair


class Successor:
    """A node of the same region as `site`, with the same logs and another file."""

    def __init__(self, site: Site, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.file = ReachedFile.open(RealDisk(), folder)
        self.parts = replace(site.tidemarks._parts, reached=self.file)
        self.service = TidemarkService(self.parts)

    @property
    def on_disk(self) -> tuple[TidemarkPoint, WholeEnds]:
        found = ReachedFile.open(RealDisk(), self._folder)
        return found.point, found.whole

    def with_lineage(self, *entries: LineageEntry) -> None:
        lineage = Lineage(entries)
        self.service = TidemarkService(replace(self.parts, lineage=lambda: lineage))


@pytest.fixture
def successor(pair: Pair, tmp_path: Path) -> Successor:
    return Successor(pair.us, tmp_path / "successor")


def reached(pair: Pair) -> TidemarkPoint:
    return pair.us.tidemarks._parts.reached.point


def earlier(point: TidemarkPoint, by: int = 1) -> TidemarkPoint:
    return TidemarkPoint(point.region_epoch, point.number - by)


async def test_INV_TKO1_an_empty_file_is_given_what_the_region_has_reached(
    pair: Pair, successor: Successor
) -> None:
    assert successor.service.claim().point == BEFORE_ALL
    for _ in range(2):  # running it again changes nothing
        await successor.service.take_over_reached()
        assert successor.on_disk == (reached(pair), NOTHING_WHOLE)
        assert successor.service.claim() == pair.us.tidemarks.claim()
        assert not successor.service.lost_here()


async def test_INV_TKO1_an_old_file_is_brought_up_to_it_and_knows_nothing_whole(
    pair: Pair, successor: Successor
) -> None:
    await successor.file.save(earlier(reached(pair)), AT_CUT)
    await successor.service.take_over_reached()
    assert successor.on_disk == (reached(pair), NOTHING_WHOLE)


@pytest.mark.parametrize("whole", [AT_CUT, AS_FORGOTTEN])
async def test_INV_TKO4_the_ends_of_the_very_tidemark_are_forgotten_too(
    pair: Pair, successor: Successor, whole: WholeEnds
) -> None:
    """Another history may have given the same number to another tidemark since."""
    await successor.file.save(reached(pair), whole)
    await successor.service.take_over_reached()
    assert successor.on_disk == (reached(pair), NOTHING_WHOLE)


async def test_INV_TKO3_a_file_beyond_all_that_is_held_stays_and_the_loss_is_told(
    pair: Pair, successor: Successor
) -> None:
    before = reached(pair)
    await successor.file.save(before, AT_CUT)
    pair.us.partition(1).truncate_to(0)
    await successor.service.take_over_reached()
    assert successor.on_disk == (before, NOTHING_WHOLE)
    assert successor.service.claim().point < before
    assert "was reached and shown here" in successor.service.lost_here()


async def test_INV_TKO3_a_stopped_log_does_not_lower_what_this_node_itself_wrote_down(
    pair: Pair, successor: Successor
) -> None:
    await successor.file.save(reached(pair), AT_CUT)
    partition = pair.us.partition(1)
    partition.commit_up_to(0)
    partition.stop("for a test")
    await successor.service.take_over_reached()
    assert successor.on_disk[0] == reached(pair)


async def test_INV_TKO2_nothing_is_reached_beyond_what_is_known_of_a_stopped_log(
    pair: Pair, successor: Successor
) -> None:
    """`durable_end` says None of it, which is no claim."""
    partition = pair.us.partition(1)
    partition.commit_up_to(0)
    partition.stop("for a test")
    await successor.service.take_over_reached()
    assert BEFORE_ALL < successor.file.point < reached(pair)


async def test_INV_TKO2_what_is_not_committed_in_the_region_is_not_reached(
    pair: Pair, successor: Successor
) -> None:
    pair.us.partition(1).commit_up_to(0)
    await successor.service.take_over_reached()
    assert BEFORE_ALL < successor.file.point < reached(pair)


def taken_from(base: TidemarkPoint, positions: dict[LogKey, int]) -> LineageEntry:
    return LineageEntry(RegionEpoch(17), "eu", base, positions)


async def test_INV_TKO2_a_void_tidemark_is_not_claimed_and_a_void_file_is_lowered(
    pair: Pair, successor: Successor
) -> None:
    """T25: the base stands in the log that holds more than that."""
    base = earlier(reached(pair))
    await successor.file.save(reached(pair), AT_CUT)
    successor.with_lineage(taken_from(base, dict(pair.us.tidemarks.claim().positions)))
    await successor.service.take_over_reached()
    assert successor.on_disk == (base, NOTHING_WHOLE)


async def test_INV_TKO2_a_log_that_is_not_cut_to_the_lineage_counts_up_to_there_only(
    pair: Pair, successor: Successor
) -> None:
    """T23, H16: its length says nothing, what lies beyond is another history."""
    claim = pair.us.tidemarks.claim()
    key = LogKey(pair.us.partition(1).topic_id, 1)
    successor.with_lineage(taken_from(claim.point, {**claim.positions, key: 0}))
    await successor.service.take_over_reached()
    assert BEFORE_ALL < successor.file.point < claim.point


async def test_a_log_is_looked_at_once_however_many_tidemarks_name_it(
    pair: Pair, successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the loop stands still for seconds, its node is fenced, and so is each one that leads next."""
    looks: list[RegionEpoch] = []
    held_of = Lineage.held_of

    def counted(lineage: Lineage, region_epoch: RegionEpoch) -> Cut | None:
        looks.append(region_epoch)
        return held_of(lineage, region_epoch)

    monkeypatch.setattr(Lineage, "held_of", counted)
    claim = pair.us.tidemarks.claim()
    key = LogKey(pair.us.partition(1).topic_id, 1)
    successor.with_lineage(taken_from(claim.point, {**claim.positions, key: 0}))
    await successor.service.take_over_reached()
    logs = pair.us.tidemarks._parts.partitions
    epochs = [len(partition.log.epochs.entries()) for partition in logs]
    assert 0 < len(looks) <= sum(epochs)


async def test_INV_TKO2_a_log_copied_with_holes_counts_for_nothing_within_them(
    pair: Pair, successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T13, INV-FR7."""
    cleaning = pair.us.partition(1).log.cleaning
    monkeypatch.setattr(type(cleaning), "holes_below", property(lambda c: 2 * (c is cleaning)))
    await successor.service.take_over_reached()
    assert BEFORE_ALL < successor.file.point < reached(pair)


async def test_INV_TKO2_a_topic_that_has_not_grown_here_yet_keeps_its_tidemark_from_being_reached(
    pair: Pair, successor: Successor
) -> None:
    """T15. Its log may be here already: copied early, it would be gone after a takeover."""
    topic = pair.us.metadata.image.topics[ORDERS]
    await pair.us.metadata.apply(ResizeTopic(topic.topic_id, 1, 2))
    assert pair.us.partition(1).high_watermark > 0
    await successor.service.take_over_reached()
    assert BEFORE_ALL < successor.file.point < reached(pair)


def seen_with(successor: Successor, image: MetadataImage) -> None:
    metadata = _Metadata(successor.parts.metadata, image)
    successor.service = TidemarkService(replace(successor.parts, metadata=metadata))  # type: ignore[arg-type]


class _Metadata:
    """The metadata of a region whose image says something else."""

    def __init__(self, _real: object, image: MetadataImage) -> None:
        self.image = image


async def test_INV_TKO2_a_topic_that_is_not_here_yet_keeps_its_tidemark_from_being_reached(
    pair: Pair, successor: Successor
) -> None:
    pair.us.table.drop_topic(pair.us.partition(1).topic_id)
    await successor.service.take_over_reached()
    assert BEFORE_ALL <= successor.file.point < reached(pair)


async def test_INV_FR8_a_topic_deleted_here_is_not_missed_at_the_base_and_is_beyond_it(
    pair: Pair, successor: Successor
) -> None:
    """T15. `cut_to` has counted that base as reached, and the former leader showed it."""
    claim = pair.us.tidemarks.claim()
    image = pair.us.metadata.image
    topic = image.topics[ORDERS]
    pair.us.table.drop_topic(topic.topic_id)
    rest = {name: each for name, each in image.topics.items() if name != ORDERS}
    gone = DeletedTopic(topic=topic, metadata_version=1)
    seen_with(
        successor,
        msgspec.structs.replace(image, topics=rest, deleted={topic.topic_id: gone}),
    )
    await successor.service.take_over_reached()
    assert successor.file.point < claim.point
    parts = successor.service._parts
    lineage = Lineage((taken_from(claim.point, dict(claim.positions)),))
    successor.service = TidemarkService(replace(parts, lineage=lambda: lineage))
    await successor.service.take_over_reached()
    assert successor.file.point == claim.point


async def test_T24_where_the_region_acts_the_file_stays_and_its_claim_is_what_it_published(
    pair: Pair, tmp_path: Path
) -> None:
    await pair.eu.role.stand_still("for a test")
    successor = Successor(pair.eu, tmp_path / "successor")
    await successor.file.save(TidemarkPoint(RegionEpoch(8), 1), AT_CUT)
    await successor.service.take_over_reached()
    assert successor.on_disk == (TidemarkPoint(RegionEpoch(8), 1), NOTHING_WHOLE)
    assert successor.service.claim() == pair.eu.tidemarks.claim()


async def test_T16_a_region_that_was_cut_to_a_base_of_its_own_shows_it_under_another_leader(
    pair: Pair, tmp_path: Path
) -> None:
    """The last tidemark is one that it has published itself, and it mirrors now."""
    image = pair.eu.metadata.image
    domain: DomainImage = msgspec.structs.replace(image.main_domain, acting_region="us")
    successor = Successor(pair.eu, tmp_path / "successor")
    seen_with(successor, msgspec.structs.replace(image, domains={"main": domain}))
    await successor.service.take_over_reached()
    assert successor.on_disk == (reached(pair), NOTHING_WHOLE)


async def test_a_folder_without_logs_has_reached_nothing(pair: Pair, successor: Successor) -> None:
    for topic in list(pair.us.metadata.image.topics.values()):
        pair.us.table.drop_topic(topic.topic_id)
    await successor.service.take_over_reached()
    assert successor.on_disk == (BEFORE_ALL, NOTHING_WHOLE)


async def test_where_tidemarks_are_unreadable_the_file_stays(
    pair: Pair, successor: Successor
) -> None:
    await successor.file.save(earlier(reached(pair)), AT_CUT)
    pair.us.partition(0, "__tidemarks").stop("for a test")
    await successor.service.take_over_reached()
    assert successor.on_disk == (earlier(reached(pair)), NOTHING_WHOLE)


async def test_what_the_link_of_an_earlier_time_knew_is_claimed_no_more(
    pair: Pair, tmp_path: Path
) -> None:
    """T24: another node has led since, and shown more."""
    us = pair.us.tidemarks
    before, led_before = reached(pair), us.link
    await us._parts.reached.save(earlier(before), NOTHING_WHOLE)
    await us.take_over_reached()
    assert led_before is not us.link
    assert us.claim().point == before


async def test_INV_RS3_cancelled_it_leaves_what_is_on_disk(
    pair: Pair, successor: Successor
) -> None:
    taking = asyncio.get_running_loop().create_task(successor.service.take_over_reached())
    await asyncio.sleep(0)
    taking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taking
    assert successor.on_disk[0] == successor.file.point
    await successor.service.take_over_reached()
    assert successor.on_disk == (reached(pair), NOTHING_WHOLE)


async def test_a_disk_that_refuses_leaves_all_as_it_was(
    pair: Pair, successor: Successor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(successor.file, "_write", full)
        with pytest.raises(OSError, match="full"):
            await successor.service.take_over_reached()
    assert successor.on_disk == (BEFORE_ALL, NOTHING_WHOLE) == (successor.file.point, NOTHING_WHOLE)
    await successor.service.take_over_reached()
    assert successor.on_disk[0] == reached(pair)


# -- what is whole (T17) ---------------------------------------------------------------------------


def copied_inside_the_region(site: Site) -> None:
    """Let HW be what all in sync have, as in a region of several nodes."""
    for partition in site.table:
        partition.commit_up_to(1 << 40)


async def test_T17_a_new_leader_shows_no_half_of_a_transaction_whatever_its_file_says(
    tmp_path: Path,
) -> None:
    """INV-TKO4. Its file is of another history, in which the tidemark of that number had nothing open."""
    async with Pair(tmp_path) as pair:
        transfer_behind_a_long_one(pair.eu)
        await pair.eu.write("plain", number=1)
        await pair.reached("plain")
        await pair.stop_tidemarks()
        await pair.us.role.stand_still("for a test")
        successor = Successor(pair.us, tmp_path / "successor")
        await successor.file.save(reached(pair), AT_CUT)
        for partition in pair.us.table:  # it has followed
            partition.rewind_cut(0, is_end=False)
        await successor.service.take_over_reached()
        link = successor.service.open_link(TERM)
        assert ends(pair.us) == [0, 0]
        assert pair.us.partition(1).sight.visible_end == 3
        del link


async def test_T17_the_leader_of_a_mirror_forgets_nothing_that_it_has_not_shown(
    tmp_path: Path,
) -> None:
    """1. A transaction is copied with its markers, and committed in the region. 2. Maintenance forgets it. 3. A tidemark covers
    it: in one log it lies behind what is open, in the other it would be shown.
    """
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.stop_tidemarks()
        copied_inside_the_region(pair.us)
        transfer_behind_a_long_one(pair.eu)
        await pair.eu.write("plain", number=1)
        await pair.copied(pair.eu.partition(0).topic_id, 4)
        await until(lambda: pair.us.partition(1).high_watermark == 3, "it is copied")
        forget(pair.us)
        pair.eu.ledger.answers.set()
        await until(lambda: pair.us.partition(1).sight.visible_end == 3, "it is reached")
        assert ends(pair.us) == [1, 0]
        end(pair.eu, LONG, 0, ControlType.ABORT)
        await until(
            lambda: ends(pair.us) == [5, 3], "the long one is over, and the transfer is whole"
        )


async def test_T17_what_a_node_forgot_while_it_followed_is_shown_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    """INV-WC4. It follows, shows nothing, and keeps nothing of what is committed."""
    async with Pair(tmp_path) as pair:
        transfer_behind_a_long_one(pair.eu)
        await pair.eu.write("plain", number=1)
        await pair.reached("plain")
        await pair.stop_tidemarks()
        await pair.us.role.stand_still("for a test")
        copied_inside_the_region(pair.us)
        for partition in pair.us.table:
            partition.rewind_cut(0, is_end=False)
        forget(pair.us)
        assert pair.us.partition(1).state.forgotten_below == 3
        successor = Successor(pair.us, tmp_path / "successor")
        await successor.service.take_over_reached()
        link = successor.service.open_link(TERM)
        assert ends(pair.us) == [0, 0]
        del link


async def test_INV_TKO5_what_the_region_had_shown_is_shown_by_the_next_leader_while_the_primary_is_lost(
    tmp_path: Path,
) -> None:
    """1. A transaction is committed in the region, and no tidemark covers it. 2. The primary is lost. 3. Who follows forgets what it
    may, and leads next."""
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.eu.write("second", number=1)
        await pair.reached("second")
        await pair.stop_tidemarks()
        for number in range(2):
            begin(pair.eu, TRANSFER, number)
            end(pair.eu, TRANSFER, number, ControlType.COMMIT)
        await until(
            lambda: all(pair.us.partition(number).high_watermark == 3 for number in range(2)),
            "it is copied",
        )
        await pair.us.role.stand_still("for a test")
        copied_inside_the_region(pair.us)
        for partition in pair.us.table:
            partition.rewind_cut(0, is_end=False)
        successor = Successor(pair.us, tmp_path / "successor")
        cut = await successor.service.held_cut()
        drained(
            pair.us.table.upkeep.maintain(
                lambda _: None, lambda partition: cut.position_of(partition.key)
            )
        )
        assert [pair.us.partition(number).state.forgotten_below for number in range(2)] == [1, 1]
        await successor.service.take_over_reached()
        link = successor.service.open_link(TERM)
        link.reaching.look_again()
        reaching = asyncio.get_running_loop().create_task(link.reaching.run())
        await until(lambda: ends(pair.us) == [1, 1], "what was shown is shown again, and no more")
        reaching.cancel()


async def test_INV_TKO5_where_no_tidemark_can_be_read_nothing_is_forgotten(pair: Pair) -> None:
    records = pair.us.table.get(TIDEMARK_LEDGER, 0)
    assert records is not None
    records.stop("for a test")
    assert not (await pair.us.tidemarks.held_cut()).positions
