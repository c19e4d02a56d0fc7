"""How far read-committed readers of a mirror see, over takeovers and returns; T16, T17."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.whole_ends import NOTHING_WHOLE, Unlisted, WholeEnds
from idempotency.decision import DecisionId
from idempotency.identity import (
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    SequenceNumber,
)
from idempotency.record_batch import ControlType
from region_broker.partitions.parts.retention import Due
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Origin
from region_broker.region.tidemarks.reached_store import ReachedFile
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.node_logs import append_marker, batch
from tests.fixtures.waiting import until

TRANSFER, LONG = 7, 8


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as pair:
        yield pair


def begin(site: Site, producer_id: int, number: int) -> None:
    """Write the first record of a transaction."""
    origin = Origin(
        ProducerId(producer_id), ProducerEpoch(0), SequenceNumber(0), transactional=True
    )
    site.partition(number).writer.append(batch(origin=origin))


def end(site: Site, producer_id: int, number: int, kind: ControlType) -> None:
    """Write its marker."""
    append_marker(
        site.partition(number),
        producer_id=producer_id,
        producer_epoch=0,
        control_type=kind,
        coordinator_epoch=1,
        decision=DecisionId(0, LeaderEpoch(1), producer_id, Round(producer_id)),
        timestamp_ms=1_000_000,
    )


def transfer_behind_a_long_one(site: Site) -> None:
    """A committed transfer over both partitions, in 0 behind what is open.

    partition 0: the long one at 0, the transfer at 1, its marker at 2. partition 1: the transfer at 0, its marker at 1.
    """
    begin(site, LONG, 0)
    for number in range(2):
        begin(site, TRANSFER, number)
        end(site, TRANSFER, number, ControlType.COMMIT)


def ends(site: Site) -> list[int]:
    """Return how far read-committed readers see."""
    sights = [site.partition(number).sight for number in range(2)]
    return [sight.readable_end(Isolation.READ_COMMITTED) for sight in sights]


def known(site: Site, isolation: Isolation) -> list[bool]:
    """Return whether ListOffsets tells an end of each log."""
    return [site.partition(number).sight.knows_end(isolation) for number in range(2)]


def forget(site: Site) -> None:
    """Maintain both logs, as a node does all the time."""
    for number in range(2):
        site.partition(number).retention.maintain(
            Due(now_ms=0, monotonic_ms=0, producer_expiration_ms=1 << 40)
        )


def keys(site: Site) -> list[LogKey]:
    """Return the keys of both logs."""
    return [LogKey(site.partition(number).topic_id, number) for number in range(2)]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, TidemarkPoint, WholeEnds]]:
    """Note what the regions write of what they reached."""
    noted: list[tuple[str, TidemarkPoint, WholeEnds]] = []
    write = ReachedFile._write

    def writing(store: ReachedFile, point: TidemarkPoint, whole: WholeEnds) -> None:
        write(store, point, whole)
        noted.append((store._path.parent.name, point, whole))

    monkeypatch.setattr(ReachedFile, "_write", writing)
    return noted


async def test_T17_a_region_that_acted_returns_without_half_of_what_it_forgot(
    pair: Pair, written: list[tuple[str, TidemarkPoint, WholeEnds]]
) -> None:
    transfer_behind_a_long_one(pair.eu)
    await pair.eu.write("plain", number=1)
    await pair.reached("plain")
    forget(pair.eu)
    await fail_over(pair.us)
    await pair.eu.until(Phase.MIRRORING)
    await pair.us.write("later", number=1)
    await pair.eu.shows("later")
    _, _, kept = next(entry for entry in written if entry[0] == "eu")
    assert kept == NOTHING_WHOLE, "it has acted since its birth, and never knew a whole cut"
    assert ends(pair.eu) == [0, 0]
    # INV-PT9: nor is that told as an end to read on from.
    assert known(pair.eu, Isolation.READ_COMMITTED) == [True, False], "the long one is open at 0"
    assert all(known(pair.eu, Isolation.READ_UNCOMMITTED))
    end(pair.us, LONG, 0, ControlType.ABORT)
    await until(lambda: ends(pair.eu) == [4, 4], "the long one is over, and the transfer is whole")
    assert all(known(pair.eu, Isolation.READ_COMMITTED))


async def test_T16_an_end_that_an_open_transaction_holds_is_told_though_the_primary_is_gone(
    pair: Pair,
) -> None:
    """INV-PT9. What it has forgotten lies behind the open one: nobody was shown that, and no tidemark will say more."""
    await pair.eu.write("plain")
    begin(pair.eu, LONG, 0)
    await pair.eu.write("behind")
    await pair.reached("behind")
    forget(pair.eu)
    assert ends(pair.eu) == [1, 0]
    pair.us.ledger.answers.clear()
    pair.us.operations.begin_failover(confirmed=True)
    await pair.eu.until(Phase.MIRRORING)
    await until(lambda: pair.eu.tidemarks.view is not None, "it shows what it had shown")
    assert pair.eu.tidemarks.view is not None
    pair.eu.tidemarks.view.whole_wait_ms = 0
    await pair.us.kill()
    await until(lambda: ends(pair.eu) == [1, 0], "it has waited as long as it may")
    assert pair.eu.partition(0).state.forgotten_below == 3
    assert all(known(pair.eu, Isolation.READ_COMMITTED))


async def test_T16_what_a_mirror_showed_whole_is_known_over_its_takeover_and_return(
    pair: Pair, written: list[tuple[str, TidemarkPoint, WholeEnds]]
) -> None:
    await pair.eu.write("whole", number=1)
    await pair.reached("whole")
    begin(pair.eu, LONG, 0)
    await until(lambda: pair.us.partition(0).sight.visible_end == 1, "it is reached")
    assert ends(pair.us) == [0, 1]
    _, _, shown = written[-1]
    first, second = keys(pair.us)
    assert (shown.end_of(first, 1, 0), shown.end_of(second, 1, 0)) == (0, 1)
    await pair.eu.kill()
    await fail_over(pair.us)
    assert written[-1][2] == shown
    end(pair.us, LONG, 0, ControlType.ABORT)
    await pair.us.write("later", number=1)
    forget(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    await pair.eu.shows("later")
    del written[:]
    await fail_over(pair.eu)
    await pair.us.until(Phase.MIRRORING)
    _, base, kept = next(entry for entry in written if entry[0] == "us")
    assert base > TidemarkPoint(RegionEpoch(8), 0)
    # Partition 1 ended at 1 when this region mirrored. It ends at 2 now: what it completed since, it has forgotten.
    assert kept.unlisted is Unlisted.AT_CUT
    assert [kept.listed[key] for key in (first, second)] == [0, 1]
    await until(lambda: ends(pair.us) == [2, 2], "with nothing open all is shown")


async def test_T16_a_restarted_mirror_shows_at_once_what_it_had_shown(pair: Pair) -> None:
    transfer_behind_a_long_one(pair.eu)
    await pair.eu.write("plain", number=1)
    await pair.reached("plain")
    assert ends(pair.us) == [0, 0]
    end(pair.eu, LONG, 0, ControlType.ABORT)
    await until(lambda: ends(pair.us) == [4, 3], "all is whole")
    begin(pair.eu, TRANSFER + 9, 0)
    await until(lambda: pair.us.partition(0).sight.visible_end == 5, "it is reached")
    await pair.us.kill()
    await pair.eu.kill()
    await pair.us.start()
    await until(lambda: pair.us.tidemarks.link is not None, "it mirrors again, alone")
    assert ends(pair.us) == [4, 3]
