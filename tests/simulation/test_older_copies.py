"""The fault "older copy": a folder is exchanged for what it was earlier, at the primary and at a mirror (rules T33, T35)."""

import asyncio
import logging
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from idempotency.record_batch import iter_headers
from region_broker.records.batches import Record, build_batch
from tests.simulation.folder_faults import copy_of, restore
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_cut_link_alerts import firing, view_of

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

TOPIC = "orders"


async def write(region: Region, value: bytes) -> None:
    """Append one record as an acknowledged write."""
    outcome = region.partition(TOPIC, 0).writer.append(build_batch([Record(None, value)]))
    await region.partition(TOPIC, 0).wait_committed(outcome.next_offset)


def shown(region: Region, since: int = 0) -> bytes:
    """Return the bytes of the topic that this region shows, from an offset on; what retention took is not there."""
    found = region.node.storage.partitions.get(TOPIC, 0)
    data, offset = b"", 0 if found is None else max(since, found.kept_from)
    while found is not None and offset < found.sight.visible_end:
        part = found.reader.read_raw(offset, 1 << 20, found.sight.visible_end)
        offset = list(iter_headers(part))[-1][1].next_offset
        data += part
    return data


async def shows(pair: Pair, region: Region, value: bytes) -> None:
    """Return once the region shows a record of that value."""
    await pair.until(lambda: value in shown(region), f"{region.name} shows {value!r}")


async def older(pair: Pair, region: Region) -> None:
    """Write "kept", copy the region's folder while it is down, write "gone", restore the copy; it is down then."""
    await pair.create_topic(TOPIC, 1)
    await write(pair.eu, b"kept")
    await shows(pair, pair.us, b"kept")
    await region.kill()
    copy = copy_of(region)
    await region.start()
    await until(lambda: pair.eu.node.role.acting, "the primary acts")
    await write(pair.eu, b"gone")
    for each in pair.regions.values():
        await shows(pair, each, b"gone")
    await region.kill()
    restore(region, copy)


async def test_T33_primary_and_the_mirror_is_there(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await older(pair, pair.eu)
        await pair.eu.start()
        assert pair.eu.phase is Phase.DISPUTED
        assert not pair.eu.node.role.acting
        assert b"gone" in shown(pair.us)
        await pair.fail_over()
        await write(pair.us, b"later")
        await shows(pair, pair.eu, b"later")
        assert b"gone" in shown(pair.eu)


async def test_T33_primary_and_the_mirror_comes_later(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 2) as pair:
        await older(pair, pair.eu)
        pair.fabric.cut("eu", "us")
        await pair.eu.start()
        assert pair.eu.node.role.acting, "nobody can be asked: it acts, as ever"
        await write(pair.eu, b"other")
        pair.fabric.heal("eu", "us")
        await pair.until(lambda: pair.eu.phase is Phase.DISPUTED, "they meet")
        assert b"gone" in shown(pair.us)
        assert b"other" in shown(pair.eu)
        operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the loss is accepted")
        assert operation.status == "succeeded", operation.error
        await shows(pair, pair.us, b"other")
        assert b"gone" not in shown(pair.us)
        store = pair.us.node.storage.quarantine
        kept = b"".join(chunk for tail in store.tails() for chunk in store.chunks(tail))
        assert b"gone" in kept
        await write(pair.eu, b"later")
        await shows(pair, pair.us, b"later")


async def test_INV_AL1_a_further_region_that_holds_the_lost_records_is_named(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 7, names=("eu", "us", "ap")) as pair:
        await older(pair, pair.eu)
        await pair.eu.start()
        await pair.until(lambda: pair.eu.phase is Phase.DISPUTED, "they meet")
        stated = await pair.eu.node.operations.loss_to_accept()
        other = "ap" if stated.from_region == "us" else "us"
        told = f"region {other} holds beyond this region, too: 0 committed transactions, {TOPIC}-0 from 1 to 2"
        assert told in stated.open_bound
        await pair.regions[other].kill()
        stated = await pair.eu.node.operations.loss_to_accept()
        assert f"what region {other} holds beyond this region cannot be named now" in (
            stated.open_bound
        )


async def test_T35_a_mirror_is_sent_again_what_its_copy_lacks(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 3) as pair:
        await older(pair, pair.us)
        await pair.us.start()
        await shows(pair, pair.us, b"gone")
        assert pair.eu.node.role.acting
        assert not pair.us.node.storage.quarantine.tails()


@pytest.mark.parametrize("away", [False, True], ids=["the new primary is there", "it comes later"])
async def test_T33_the_old_primary_after_a_failover(tmp_path: Path, *, away: bool) -> None:
    async with region_pair(tmp_path, 4) as pair:
        await older(pair, pair.eu)
        del pair.regions["eu"]
        await pair.fail_over()
        await write(pair.us, b"of us")
        pair.regions["eu"] = pair.eu
        if away:
            pair.fabric.cut("eu", "us")
        await pair.eu.start()
        if away:
            await write(pair.eu, b"other")
            pair.fabric.heal("eu", "us")
        await shows(pair, pair.eu, b"of us")
        assert b"gone" in shown(pair.eu)
        assert b"other" not in shown(pair.eu)
        assert pair.us.node.role.acting


@pytest.mark.parametrize("newest_back", [False, True], ids=["failover", "newest folder back"])
async def test_T33_the_new_primary_of_a_time_when_it_mirrored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, newest_back: bool
) -> None:
    caplog.set_level(logging.WARNING, "tidemark.failover")
    async with region_pair(tmp_path, 5) as pair:
        await older(pair, pair.us)
        await pair.us.start()
        await shows(pair, pair.us, b"gone")
        await pair.us.kill()
        copy = copy_of(pair.us)
        await pair.us.start()
        await pair.fail_over()
        await write(pair.us, b"of us")
        await shows(pair, pair.eu, b"of us")
        await pair.us.kill()
        newest = copy_of(pair.us)
        restore(pair.us, copy)
        await pair.us.begin()
        await until(lambda: pair.us.phase is Phase.FENCED, "it hears of its own later life")
        assert not pair.us.node.role.acting
        await until(lambda: view_of(pair.us)["waits_for"] == "nobody_acts", "it says so")
        assert "TidemarkRegionWaits" in firing(pair.us)
        reason = pair.us.node.role.reason_not_acting
        assert "region us itself took over under region epoch 17" in reason
        assert "give this node its newest one back" in reason
        assert "No other region acts" in reason
        assert "tidemark region failover --to eu" in reason
        await until(lambda: reason in caplog.messages, "the log says it, too")
        await pair.us.node.failover.parts.clock.sleep_ms(2 * pair.us.node.failover.settings.poll_ms)
        assert caplog.messages.count(reason) == 1
        if newest_back:
            await pair.us.kill()
            restore(pair.us, newest)
            await pair.us.start()
            await until(lambda: pair.us.node.role.acting, "us acts again")
            await write(pair.us, b"later")
            await shows(pair, pair.eu, b"later")
            return
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "eu takes over")
        assert operation.status == "succeeded", operation.error
        await shows(pair, pair.us, b"of us")
        assert view_of(pair.us)["waits_for"] == ""


@pytest.mark.parametrize("accepted", [False, True], ids=["failover", "loss accepted"])
async def test_T35_who_has_begun_a_region_epoch_twice_closes_its_writes(
    tmp_path: Path, *, accepted: bool
) -> None:
    async with region_pair(tmp_path, 6) as pair:
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, b"kept")
        await shows(pair, pair.us, b"kept")
        await pair.us.kill()
        copy = copy_of(pair.us)
        await pair.us.start()
        await pair.fail_over()
        await write(pair.us, b"of the first time")
        await shows(pair, pair.eu, b"of the first time")
        await pair.us.kill()
        restore(pair.us, copy)
        pair.fabric.cut("eu", "us")
        await pair.us.start()
        await pair.fail_over()
        await write(pair.us, b"of the second time")
        pair.fabric.heal("eu", "us")
        await pair.until(lambda: pair.us.phase is Phase.DISPUTED, "they meet")
        assert not pair.us.node.role.acting
        assert "has begun region epoch 17 twice" in pair.us.node.role.reason_not_acting
        assert b"of the first time" in shown(pair.eu)
        loser, winner = (pair.eu, pair.us) if accepted else (pair.us, pair.eu)
        operations = winner.node.operations
        begin = operations.begin_accept_loss if accepted else operations.begin_failover
        operation = begin(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the operator's word is done")
        assert operation.status == "succeeded", operation.error
        await write(winner, b"later")
        await shows(pair, loser, b"later")
        since = max(each.partition(TOPIC, 0).kept_from for each in (loser, winner))
        assert shown(loser, since) == shown(winner, since)
        store = loser.node.storage.quarantine
        kept = b"".join(chunk for tail in store.tails() for chunk in store.chunks(tail))
        assert (b"of the first time" if accepted else b"of the second time") in kept


async def test_INV_M24_an_epoch_begun_a_second_time_and_never_acted_under_keeps_nobody_from_returning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. us takes over. 2. Its folder is exchanged for an older copy; it begins that epoch again, and ends. 3. eu takes over."""

    async def stand(*_: object) -> None:
        await asyncio.Event().wait()

    async with region_pair(tmp_path, 8) as pair:
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, b"kept")
        await shows(pair, pair.us, b"kept")
        await pair.us.kill()
        copy = copy_of(pair.us)
        await pair.us.start()
        await pair.fail_over()
        await write(pair.us, b"of us")
        await shows(pair, pair.eu, b"of us")
        await pair.us.kill()
        first = pair.eu.node.storage.metadata.image.main_domain.lineage[-1]
        restore(pair.us, copy)
        pair.fabric.cut("eu", "us")
        await pair.us.start()
        monkeypatch.setattr(pair.us.node.failover.steps, "_cut_all", stand)
        pair.us.node.operations.begin_failover(confirmed=True)
        domain = pair.us.node.storage.metadata.image.main_domain
        await pair.until(
            lambda: bool(pair.us.node.storage.metadata.image.main_domain.lineage), "it begins again"
        )
        (second,) = pair.us.node.storage.metadata.image.main_domain.lineage
        assert second.region_epoch == first.region_epoch > domain.region_epoch
        assert second != first
        await pair.us.kill()
        await pair.take_over(planned=False, by=pair.eu)
        await write(pair.eu, b"of eu")
        pair.fabric.heal("eu", "us")
        await pair.us.start()
        for value in (b"of us", b"of eu"):
            await shows(pair, pair.us, value)
        assert (
            pair.us.node.storage.metadata.image.main_domain.lineage
            == pair.eu.node.storage.metadata.image.main_domain.lineage
        )
        assert pair.us.node.storage.metadata.image.main_domain.lineage[0] == first
