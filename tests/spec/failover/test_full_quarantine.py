"""A quarantine that has no room for a log that is cut late ends no region (INV-LS4, INV-FS4, T20)."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from geo_replicator.failover import Phase
from geo_replicator.quarantine import Provenance
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.peers.protocol import PeerRefused
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.waiting import until
from tests.spec.failover.test_failover_rules import begin, fenced_with_a_late_cut
from tests.spec.failover.test_late_cuts import acts_with_a_late_cut, disputed_with_a_late_cut


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


NO_ROOM = OSError(errno.ENOSPC, "no space left on device")


def full_disk(
    monkeypatch: pytest.MonkeyPatch, site: Site, error: OSError = NO_ROOM
) -> Callable[[], None]:
    """Let the quarantine of a site have no room until what is returned is called."""
    full, move_in = True, QuarantineStore.move_in

    async def moved(store: QuarantineStore, *given: Any) -> Provenance:
        if full and store._root.is_relative_to(site.folder):
            raise error
        return await move_in(store, *given)

    def make_room() -> None:
        nonlocal full
        full = False

    monkeypatch.setattr(QuarantineStore, "move_in", moved)
    return make_room


async def test_T20_a_disk_that_is_full_ends_no_region_whose_candidate_acts_by_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood fenced, tried again, and said so; the candidate acts, and it is to return."""
    await fenced_with_a_late_cut(pair)
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    await pair.us.until(Phase.FENCED)
    await pair.eu.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    await pair.us.until(Phase.RETURNING)
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert pair.us.driver.running, "a full disk ended it"
    make_room()
    await pair.us.until(Phase.MIRRORING)


async def test_T20_a_disk_that_is_full_at_a_late_cut_ends_no_region_that_acts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acts_with_a_late_cut(pair)
    await pair.us.kill()
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert pair.us.driver.running, "a full disk ended it"
    make_room()
    await pair.us.until(Phase.ACTING)


def broken_for_one_log(
    monkeypatch: pytest.MonkeyPatch, site: Site, number: int
) -> Callable[[], None]:
    """Let the disk refuse to name the tail of one partition until what is returned is called."""
    disk, is_broken = site.quarantine._disk, True
    rename = disk.rename
    folder = f"{site.partition(number).topic_id.hex}-{number}"

    def renamed(source: Path, target: Path) -> None:
        if is_broken and target.parent.name == folder:
            raise OSError(errno.EIO, "input/output error")
        rename(source, target)

    def mend() -> None:
        nonlocal is_broken
        is_broken = False

    monkeypatch.setattr(disk, "rename", renamed)
    return mend


def says_it_has_no_room(site: Site, error: OSError = NO_ROOM) -> bool:
    """Return whether the status of a site names the disk's error, and that it goes on."""
    reason = site.role.reason_not_acting
    return (str(error) or repr(error)) in reason and "goes on by itself" in reason


# Holds INV-FS4.
async def test_T20_a_region_that_acts_and_has_no_room_serves_nothing_and_is_not_copied_from(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the log is cut: it has confirmed that it may act, and takes its term once only."""
    await acts_with_a_late_cut(pair)
    await pair.us.kill()
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    await until(lambda: says_it_has_no_room(pair.us), "it says why")
    taken = pair.us.metadata.image.last_leader_epoch
    for _ in range(30):
        await asyncio.sleep(0.02)
        assert not pair.us.role.acting
        assert b"beyond" not in pair.us.values(1), "it is shown"
        with pytest.raises(PeerRefused, match="cuts its logs to where"):
            pair.us.source._admit(pair.us.driver.state.region_epoch, "eu")
    make_room()
    await pair.us.until(Phase.ACTING)
    assert pair.us.metadata.image.last_leader_epoch == taken
    assert pair.us.role.reason_not_acting == ""
    assert b"beyond" not in pair.us.raw(1)


# Holds INV-FS4.
async def test_T24_a_region_that_acts_and_has_no_room_promises_another_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands fenced then, and tries again as such."""
    await acts_with_a_late_cut(pair)
    await pair.us.kill()
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    await until(lambda: says_it_has_no_room(pair.us), "it says why")
    begin(pair.eu)
    await pair.us.until(Phase.FENCED)
    assert pair.us.driver.cut_is_owed()
    make_room()
    await pair.eu.until(Phase.ACTING)
    await pair.us.until(Phase.MIRRORING)
    assert b"beyond" not in pair.us.raw(1)
    assert b"beyond" not in pair.eu.raw(1)


# Holds INV-FS4.
@pytest.mark.parametrize("error", [NO_ROOM, OSError()], ids=["no room", "without a text"])
async def test_T31_a_region_that_returns_to_a_full_disk_shows_nothing_beyond_the_cut_and_goes_on(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    await pair.eu.write("beyond", number=1)
    await pair.eu.kill()
    await fail_over(pair.us)
    make_room = full_disk(monkeypatch, pair.eu, error)
    await pair.eu.start()
    await pair.eu.until(Phase.RETURNING)
    await until(lambda: says_it_has_no_room(pair.eu, error), "it says why")
    assert pair.eu.partition(1).log_end_offset == 1, "nothing is cut that is not kept"
    assert b"beyond" not in pair.eu.values(1), "it is shown"
    make_room()
    await pair.eu.until(Phase.MIRRORING)
    assert b"beyond" not in pair.eu.raw(1)
    assert [tail.partition for tail in pair.eu.quarantine.tails() if tail.topic == "orders"] == [1]


# Holds INV-FS4.
async def test_T20_a_candidate_whose_disk_is_full_at_the_cut_takes_over_when_there_is_room(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its base is chosen: it gives nothing up, as it does where its node is started again."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    await pair.eu.write("beyond", number=1)
    await until(lambda: pair.us.partition(1).high_watermark == 1, "it is copied")
    await pair.eu.kill()
    make_room = full_disk(monkeypatch, pair.us)
    operation = pair.us.operations.begin_failover(confirmed=True)
    await pair.us.until(Phase.CUTTING)
    await until(lambda: says_it_has_no_room(pair.us), "it says why")
    assert (operation.status, pair.us.driver.cut_is_owed()) == ("running", True)
    make_room()
    await pair.us.until(Phase.ACTING)
    assert (await pair.us.ended(operation)).status == "succeeded"
    assert b"beyond" not in pair.us.raw(1)


# Holds INV-SBS2, INV-FS4.
async def test_T20_one_log_whose_tail_the_disk_refuses_keeps_its_region_from_acting_and_is_named(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    for number in range(2):
        await pair.eu.write(f"beyond-{number}", number=number)
    ends = [2, 1]
    for number, end in enumerate(ends):
        log = pair.us.partition(number)
        await until(lambda log=log, end=end: log.high_watermark == end, "it is copied")  # type: ignore[misc]
    await pair.eu.kill()
    mend = broken_for_one_log(monkeypatch, pair.us, 1)
    operation = pair.us.operations.begin_failover(confirmed=True)
    await until(lambda: "orders-1 is not cut" in pair.us.role.reason_not_acting, "it is named")
    assert says_it_has_no_room(pair.us, OSError(errno.EIO, "input/output error"))
    for _ in range(30):
        await asyncio.sleep(0.02)
        assert (pair.us.driver.state.phase, pair.us.role.acting) == (Phase.CUTTING, False)
        assert pair.us.partition(1).log_end_offset == 1, "nothing is cut that is not kept"
    mend()
    assert (await pair.us.ended(operation)).status == "succeeded"
    (losses,) = await pair.us.operations.losses()
    assert (losses.plain_record_count, losses.unexplained) == (2, ())
    tails = [tail for tail in pair.us.quarantine.tails() if tail.topic == "orders"]
    assert sorted((tail.partition, tail.first_offset, tail.last_offset) for tail in tails) == [
        (0, 1, 1), (1, 0, 0)
    ]  # fmt: skip


# Holds INV-FS4.
async def test_T33_a_full_disk_holds_an_accepted_loss_back_until_there_is_room(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It closes its history first, which has a log that is cut late."""
    await disputed_with_a_late_cut(pair)
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    await pair.us.until(Phase.DISPUTED)
    operation = pair.us.operations.begin_accept_loss(confirmed=True)
    await until(lambda: says_it_has_no_room(pair.us), "it says why")
    assert (operation.status, pair.us.driver.state.phase) == ("running", Phase.FENCING)
    make_room()
    assert (await pair.us.ended(operation)).status == "succeeded", operation.error
    assert b"beyond" not in pair.us.raw(1)


# Holds INV-FS4.
async def test_T31_a_region_that_acts_and_has_no_room_hears_of_another_one_that_acts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """eu cannot reach us, and takes over without its promise; us reaches eu."""
    await acts_with_a_late_cut(pair)
    await pair.us.kill()
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start(listens=False)
    await until(lambda: says_it_has_no_room(pair.us), "it says why")
    await fail_over(pair.eu)
    await pair.us.until(Phase.RETURNING)
    make_room()
    await pair.us.until(Phase.MIRRORING)
    assert b"beyond" not in pair.us.raw(1)
