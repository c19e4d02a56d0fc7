"""Rule T36: a folder knows whose it is and what it holds; one that is not whole, or another's, is not opened."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.controller.metadata_image import OFFSETS_LEDGER
from region_broker.controller.metadata_store import QUORUM_FOLDER
from region_broker.node import START_REFUSALS, NodeRefused
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover.log_surgery import key_of
from region_broker.region.failover.operations import OperationRefused
from tests.simulation.folder_faults import (
    ClockSetBack,
    copy_of,
    empty_folder,
    lose_file,
    lose_log,
    lose_logs,
    lose_metadata,
    restore,
    restore_part,
)
from tests.simulation.lost_log import COVERED, committed_values, loses_a_log
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_disk_and_clock import commit, connect
from tests.simulation.test_folders_without_history import TOPIC, shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def only_logs(region: Region) -> None:
    """Leave nothing but the logs."""
    lose_metadata(region)
    for name in ("identity", "failover.journal"):
        lose_file(region, name)


def lose_quorum(region: Region) -> None:
    """Let the log of the metadata be gone."""
    region.disk.remove_tree(region.folder / QUORUM_FOLDER)


OLDER = {"quorum/log": r"quorum ends at entry", "metadata.db": r"metadata\.db is older"}

HALVES: dict[str, tuple[Callable[[Region], None], str]] = {
    "metadata without logs": (lose_logs, "logs is missing"),
    "logs without metadata": (lose_metadata, "metadata.db is missing"),
    "no failover journal": (
        lambda region: lose_file(region, "failover.journal"),
        "failover.journal is missing",
    ),
    "no identity": (lambda region: lose_file(region, "identity"), "identity is missing"),
    "no log of the metadata": (lose_quorum, "quorum is not there"),
    "only logs": (only_logs, "logs is there, identity and metadata.db are missing"),
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("side", ["eu", "us"])
async def test_T36_half_a_folder_is_not_opened_and_an_empty_one_in_its_place_is_filled_again(
    tmp_path: Path, half: str, side: str
) -> None:
    lose, reason = HALVES[half]
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        region = pair.regions[side]
        await region.kill()
        lose(region)
        for _ in range(2):  # nor is it made whole by having been tried
            with pytest.raises(START_REFUSALS, match=reason):
                await region.open()
        if side == "eu":
            await pair.fail_over()
        empty_folder(region)
        await region.start()
        await pair.until(lambda: shown(region) == 3, "it got all back")


@pytest.mark.parametrize("side", ["eu", "us"])
@pytest.mark.parametrize("after_failover", [False, True])
async def test_T36_the_folder_of_another_region_is_refused(
    tmp_path: Path, side: str, after_failover: bool
) -> None:
    async with region_pair(tmp_path, 2) as pair:
        await three_records(pair)
        if after_failover:
            await pair.eu.kill()
            await pair.fail_over()
            await pair.eu.start()
            await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        region, other = pair.regions[side], pair.regions["us" if side == "eu" else "eu"]
        for each in (region, other):
            await each.kill()
        own = copy_of(region)
        restore(region, copy_of(other))
        with pytest.raises(NodeRefused, match=f"holds the data of region {other.name}"):
            await region.open()
        restore(region, own)
        for each in (region, other):
            await each.begin()
        acting = pair.us if after_failover else pair.eu
        await pair.until(lambda: acting.node.role.acting, "with their own they go on")
        assert shown(acting) == 3


async def test_T36_an_older_part_of_a_folder_among_newer_ones_is_refused(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 3) as pair:
        await three_records(pair)
        await pair.eu.kill()
        older = copy_of(pair.eu)
        for _ in range(2):
            await pair.eu.start()
            await pair.eu.kill()
        newer = copy_of(pair.eu)
        for name in ("quorum/log", "metadata.db"):
            restore_part(pair.eu, older, name)
            with pytest.raises(START_REFUSALS, match=OLDER[name]):
                await pair.eu.open()
        restore(pair.eu, newer)
        restore_part(pair.eu, older, "metadata.db")
        await pair.eu.start()  # the log has it all
        assert shown(pair.eu) == 3


async def test_T36_the_journal_of_another_folder_is_refused(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 4) as pair:
        await three_records(pair)
        await pair.stop()
        restore_part(pair.us, copy_of(pair.eu), "failover.journal")
        with pytest.raises(NodeRefused, match=r"failover\.journal is that of another folder"):
            await pair.us.open()


async def test_T36_a_clock_set_back_between_starts_does_not_matter(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 5) as pair:
        await three_records(pair)
        for region in pair.regions.values():
            await region.kill()
            region.clock = ClockSetBack(region.clock)
            await region.begin()
        await until(lambda: pair.eu.node.role.acting, "the primary acts")
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(pair.us) == 4, "the mirror follows")


async def lost_log_at_primary(pair: Pair, topic: str) -> None:
    """Let the primary start, alone, without the folder of one log; returns once it says why it does not act."""
    await three_records(pair)
    await pair.stop()
    lose_log(pair.eu, topic, 0)
    for _ in range(2):  # nor does it forget over a restart
        await pair.eu.begin()
        await until(
            lambda: f"not on its disk any more (1: {topic}-0)" in reason(pair.eu), "it says which"
        )
        assert not pair.eu.node.role.acting
        await pair.eu.kill()


def reason(region: Region) -> str:
    """Return why a region takes no writes."""
    return region.node.role.reason_not_acting


@pytest.mark.parametrize("topic", [TOPIC, "__tidemarks", "__transaction_state"])
async def test_T36_primary_that_lost_one_log_does_not_act_and_gets_it_back_from_whoever_takes_over(
    tmp_path: Path, topic: str
) -> None:
    async with region_pair(tmp_path, 6) as pair:
        await lost_log_at_primary(pair, topic)
        await pair.eu.begin()
        await pair.us.start()
        await pair.until(
            lambda: "region failover --to us" in reason(pair.eu), "it says the way out"
        )
        assert shown(pair.us) == 3
        await pair.fail_over()
        await pair.until(
            lambda: pair.eu.phase is Phase.MIRRORING and shown(pair.eu) == 3, "it got it back"
        )
        await write(pair.us, b"four")
        await pair.until(lambda: shown(pair.eu) == 4, "and follows")


async def test_T36_a_lost_log_of_a_ledger_is_not_given_up_and_the_whole_folder_given_back_acts(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 7) as pair:
        await three_records(pair)
        await pair.stop()
        whole = copy_of(pair.eu)
        lose_log(pair.eu, "__transaction_state", 0)
        await pair.eu.begin()
        await until(lambda: "give its whole data folder back" in reason(pair.eu), "it says so")
        with pytest.raises(OperationRefused, match="1 logs went"):
            pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await pair.eu.kill()
        restore(pair.eu, whole)
        await pair.eu.start()
        await until(lambda: pair.eu.node.role.acting, "it acts")
        await pair.us.start()
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(pair.us) == 4, "the mirror follows")


async def test_T36_a_lost_log_is_given_up_only_while_no_other_region_answers(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 9) as pair:
        await three_records(pair)
        await pair.eu.kill()
        lose_log(pair.eu, TOPIC, 0)
        await pair.eu.begin()
        await pair.until(lambda: "give them up by name" in reason(pair.eu), "it says the ways out")
        with pytest.raises(OperationRefused, match="region failover --to us"):
            await pair.eu.node.operations.loss_to_accept()
        operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await pair.until(lambda: operation.status != "running", "it ends")
        assert operation.status == "failed", operation
        assert "region failover --to us" in operation.error
        await pair.us.kill()
        stated = await pair.eu.node.operations.loss_to_accept()
        assert "Region us does not answer" in stated.open_bound
        operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await until(lambda: operation.status != "running", "it ends")
        assert operation.status == "succeeded", operation
        assert pair.eu.partition(TOPIC, 0).log_start_offset == 3
        await write(pair.eu, b"four")
        await pair.us.start()
        await pair.until(lambda: shown(pair.us) == 4, "the mirror goes on behind it")


async def test_T36_a_lost_log_is_given_up_beside_a_region_that_was_emptied_itself(
    tmp_path: Path,
) -> None:
    """A failover to that one, which holds nothing, would give up all that is left."""
    async with region_pair(tmp_path, 10) as pair:
        await three_records(pair)
        await pair.create_topic("other", 1)
        client = await connect(pair.eu)
        await commit(client, "lost", "other", (0,))
        leader, key = pair.eu.node.tidemarks.cut_leader, key_of(pair.eu.partition("other", 0))
        assert leader is not None
        await until(lambda: leader.published_cut().position_of(key) == 2, "a tidemark has it")
        await pair.stop()
        empty_folder(pair.us)
        lose_log(pair.eu, "other", 0)
        await pair.eu.begin()
        await pair.us.begin()
        await pair.until(
            lambda: pair.us.node.storage.partitions.get("other", 0) is not None,
            "the emptied one joins, and hears of the topic",
        )
        await pair.until(
            lambda: "where its tidemark is 0" in reason(pair.eu), "the primary warns of it"
        )
        copied = pair.us.partition("other", 0)
        copied.writer.append_mirrored(build_batch([Record(None, b"copied, and not shown yet")]))
        with pytest.raises(OperationRefused, match="may hold what is lost here"):
            await pair.eu.node.operations.loss_to_accept()
        await copied.wait_committed(1)
        copied.truncate_to(0)
        stated = await pair.eu.node.operations.loss_to_accept()
        assert "Region us answers, and holds nothing of them" in stated.open_bound
        operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await pair.until(lambda: operation.status != "running", "it ends")
        assert operation.status == "succeeded", operation
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(pair.us) == 4, "the emptied one got all that was left")


async def test_T36_a_mirror_that_is_behind_copies_the_rest_where_the_primary_lost_a_log_without_records(
    tmp_path: Path,
) -> None:
    """No tidemark covers a record of that log: nothing that was shown is in danger, and a failover is to lose nothing."""
    async with region_pair(tmp_path, 11) as pair:
        await three_records(pair)
        await pair.us.kill()
        await write(pair.eu, b"four")
        leader, key = pair.eu.node.tidemarks.cut_leader, key_of(pair.eu.partition(TOPIC, 0))
        assert leader is not None
        await until(lambda: leader.published_cut().position_of(key) == 4, "a tidemark has it")
        await pair.eu.kill()
        lose_log(pair.eu, OFFSETS_LEDGER, 0)
        await pair.eu.begin()
        await until(lambda: "not on its disk any more" in reason(pair.eu), "it says which")
        await pair.us.start()
        await pair.until(lambda: shown(pair.us) == 4, "the mirror has all")
        assert not pair.eu.node.role.acting
        await pair.fail_over()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.until(lambda: shown(pair.eu) == 4, "it shows what the mirror has")
        assert shown(pair.us) == 4


async def test_T33_primary_that_lost_a_log_without_records_and_is_an_older_copy_is_in_doubt(
    tmp_path: Path,
) -> None:
    """It stands still for the log already; that it lacks what was shown is heard of all the same."""
    async with region_pair(tmp_path, 12) as pair:
        await three_records(pair)
        await pair.eu.kill()
        older = copy_of(pair.eu)
        await pair.eu.start()
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(pair.us) == 4, "the mirror shows it")
        await pair.stop()
        restore(pair.eu, older)
        lose_log(pair.eu, OFFSETS_LEDGER, 0)
        await pair.eu.begin()
        await until(lambda: "not on its disk any more" in reason(pair.eu), "it says which")
        assert not pair.eu.node.failover.doubt(), "nobody has shown anything of that log"
        await pair.us.start()
        await pair.until(
            lambda: "region us has shown" in pair.eu.node.failover.doubt(), "it hears of it"
        )
        await pair.fail_over()
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await pair.until(lambda: shown(pair.eu) == 4, "it gets back what its copy lacked")
        assert not pair.us.node.failover.doubt()


# Holds INV-SO9.
async def test_T35_an_old_primary_that_returned_cuts_nothing_at_the_word_of_a_new_one_that_lost_a_log(
    tmp_path: Path,
) -> None:
    """The old primary follows the lineage, and has reached no tidemark of the new region epoch yet."""
    async with region_pair(tmp_path, 8) as pair:
        await three_records(pair)
        await pair.eu.kill()
        await pair.fail_over()
        await pair.us.kill()
        lose_log(pair.us, TOPIC, 0)
        await pair.us.begin()
        await until(lambda: "not on its disk any more" in reason(pair.us), "it says which")
        await pair.eu.start()
        await pair.until(lambda: pair.eu.node.tidemarks.link is not None, "eu has a link")
        link = pair.eu.node.tidemarks.link
        assert link is not None
        await pair.until(lambda: link.core.session_count > 2, "it asks again and again")
        assert pair.eu.partition(TOPIC, 0).log_end_offset >= 3
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        assert shown(pair.eu) == 3


async def test_T36_a_region_without_others_gives_up_a_lost_log_by_name_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    region = Region("eu", tmp_path, Fabric(random.Random(1)), random.Random(2), ("eu",))
    try:
        await loses_a_log(region)
        await region.begin()
        await until(lambda: "accept-loss --at eu" in reason(region), "it says the way out")
        stated = await region.node.operations.loss_to_accept()
        assert f"{TOPIC}-0 (it goes on at {COVERED})" in stated.open_bound
        operation = region.node.operations.begin_accept_loss(confirmed=True)
        await until(lambda: operation.status != "running", "it ends")
        assert operation.status == "succeeded", operation
        for turn in (1, 2):
            await until(lambda: region.node.role.acting, "it acts")
            lost, kept = region.partition(TOPIC, 0), region.partition(TOPIC, 1)
            await until(lambda: kept.sight.visible_end == kept.high_watermark, "nothing is open")  # noqa: B023
            assert lost.log_start_offset == 7
            assert kept.log_start_offset == 0
            client = await connect(region)
            end = lost.log_end_offset
            await commit(client, "after", TOPIC, (0, 1))
            await until(lambda: lost.sight.visible_end == end + 2, "written behind what was lost")  # noqa: B023
            values = await committed_values(client, lost.log_start_offset)
            assert values == {
                0: [b"after"] * turn,
                1: [b"both-0", b"both-1", b"both-2", *[b"after"] * turn],
            }
            if turn == 1:
                await region.kill()
                await region.start()
    finally:
        await region.kill()
