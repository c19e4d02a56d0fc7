"""How many tidemarks a mirror keeps to reach, behind a log that waits: a bounded number, and which (T16)."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.link import thinning
from geo_replicator.reading import LOGS_AT_ONCE, RECORD_COST
from geo_replicator.tidemark import LogPosition, Tidemark, TidemarkBook
from geo_replicator.topology import LedgerTopics
from idempotency.decision import round_of
from tests.fixtures.linked_regions import REGION_EPOCH
from tests.fixtures.waiting import until
from tests.spec.tidemarks.test_read_again import mirrored

RECORDS = 80


async def test_INV_THN1_INV_THN3_behind_a_log_that_waits_a_mirror_keeps_a_bounded_number_of_tidemarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are read, and few are kept: among them the newest, and the one that is asked for. It reaches both."""
    monkeypatch.setattr(thinning, "POSITIONS_MAX", 60)
    async with mirrored(tmp_path) as (primary, mirror, _):
        reaching, leader = mirror.link.reaching, primary.cut_leader
        assert leader is not None
        log, logs = LogKey(primary.metadata.image.topics["t"].topic_id, 0), reaching._ports.logs
        before, high_watermark = leader.published, logs.high_watermark
        asked_for = TidemarkPoint(before.region_epoch, before.number + 21)
        reaching._facts = replace(reaching._facts, wanted=asked_for)
        here = high_watermark(log)
        monkeypatch.setattr(
            logs, "high_watermark", lambda key: here if key == log else high_watermark(key)
        )
        for _ in range(RECORDS):
            last = leader.published
            await primary.produce("t", b"b")
            await until(lambda last=last: leader.published > last, "it is published")  # type: ignore[misc]
            assert reaching.book.cost_above <= 60 + LOGS_AT_ONCE // RECORD_COST * 8
        last = leader.published
        await until(
            lambda: (newest := reaching.book.newest) is not None and newest.newest.point == last,
            "all are read",
        )
        assert mirror.link.reached == before
        assert last.number > before.number + RECORDS // 2
        assert {asked_for, last} <= set(reaching.book.known())
        assert len(reaching.book.known()) < RECORDS // 2
        for point in (asked_for, last):
            cut = reaching.book.positions(point)
            assert cut is not None
            here = cut.position_of(log)
            reaching.log_moved(log)
            await until(lambda point=point: mirror.link.reached >= point, "it is reached")  # type: ignore[misc]
            assert mirror.link.reached == point
            assert mirror.partition("t").sight.visible_end == here


class Few:
    """A book and a frontier that stand behind a log, and are thinned out; `movers` logs move at each tidemark."""

    def __init__(self, movers: int) -> None:
        self.ledgers = LedgerTopics(UUID(int=1), UUID(int=2))
        self.keys = [LogKey(UUID(int=3), number) for number in range(movers)]
        self.book, self.frontier = TidemarkBook(self.ledgers), Frontier(self.ledgers)
        self.thinning = thinning.Thinning(self.book, self.frontier)
        self.frontier.reconciled([*self.keys, self.ledgers.shard_key(0)], REGION_EPOCH)
        for key in (*self.keys[1:], self.ledgers.shard_key(0)):
            self.frontier.advanced(key, 1 << 40)
        self.number = 0
        self.reached = set[int]()

    def publish(self) -> None:
        """Read one more tidemark."""
        self.number += 1
        tidemark = Tidemark(
            domain="main", region_epoch=REGION_EPOCH, number=self.number, round=round_of(1, self.number),
            metadata_version=1, ledger={0: self.number}, full=self.number == 1,
            moved={key: LogPosition(self.number, 0) for key in self.keys},
        )  # fmt: skip
        self.book.apply(self.number, tidemark)
        self.frontier.observe(tidemark)
        self.thinning.look(())

    def copy_up_to(self, number: int) -> None:
        """Let the log that waits have what the tidemark of that number needs, and show what is complete."""
        self.frontier.advanced(self.keys[0], number)
        if self.frontier.complete > self.frontier.reached:
            self.frontier.persisted(self.frontier.complete)
            self.book.raise_floor(self.frontier.complete)
            self.reached.add(self.frontier.complete.number)


@pytest.mark.parametrize("movers", [1, 10, 60])
def test_INV_THN2_a_mirror_that_is_behind_all_the_time_reaches_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, movers: int
) -> None:
    """It stays 1,000 tidemarks behind, which are more than may be kept."""
    monkeypatch.setattr(thinning, "POSITIONS_MAX", 600)
    few, behind = Few(movers), 1_000
    most = max(600, 4 * thinning.KEPT_MIN * (movers + 2))
    for number in range(1, 4 * behind):
        few.publish()
        few.copy_up_to(max(0, number - behind))
        assert few.book.cost_above <= most, "INV-THN1"
    apart = [after - before for before, after in pairwise(sorted(few.reached))]
    assert max(apart) <= behind, "it would show nothing for longer than it is behind"
    assert len(apart) >= thinning.KEPT_MIN
    few.copy_up_to(few.number)
    assert few.number in few.reached, "INV-THN3: the newest"
    assert few.book.cost_above == 0
