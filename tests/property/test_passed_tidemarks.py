"""A mirror that passes tidemarks by, against one that keeps each: what is kept is reached at the same moment, with the same positions."""

import random
from dataclasses import dataclass, field
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, Lineage, LogKey, TidemarkPoint
from geo_replicator.tidemark import LogPosition, Tidemark, TidemarkBook
from geo_replicator.topology import LedgerTopics
from idempotency.decision import round_of
from idempotency.identity import RegionEpoch

LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))
EPOCH = RegionEpoch(8)
SHARD = LEDGERS.shard_key(0)


@dataclass
class Primary:
    """Writes to logs, creates and deletes topics of one log, and publishes tidemarks; the first one is full."""

    chance: random.Random
    ends: dict[LogKey, int] = field(default_factory=dict)
    deleted: set[LogKey] = field(default_factory=set)
    number: int = 0
    published: dict[LogKey, int] = field(default_factory=dict)

    def publish(self) -> Tidemark:
        """Write a little, and publish."""
        if self.chance.random() < 0.4 or not self.ends:
            self.ends[LogKey(UUID(int=100 + len(self.ends) + len(self.deleted)), 0)] = 0
        if self.chance.random() < 0.15:
            key = self.chance.choice(sorted(self.ends))
            del self.ends[key]
            self.deleted.add(key)
        for key in self.ends:
            self.ends[key] += self.chance.choice((0, 0, 1, 3))
        self.number += 1
        full = self.number == 1 or self.chance.random() < 0.1
        moved = {
            key: LogPosition(end, end // 2)
            for key, end in self.ends.items()
            if full or end > self.published.get(key, -1)
        }
        removed = tuple(sorted(self.published.keys() - self.ends))
        self.published = dict(self.ends)
        return Tidemark(
            domain="main", region_epoch=EPOCH, number=self.number, round=round_of(1, self.number), metadata_version=1,
            ledger={0: self.number}, moved=moved, removed=removed, full=full,
        )  # fmt: skip


class Mirror:
    """Reads tidemarks and copies logs; raises its floor to what is complete."""

    def __init__(self, start: Tidemark) -> None:
        self.book = TidemarkBook(LEDGERS)
        self.frontier = Frontier(LEDGERS, Lineage(), reached=BEFORE_ALL)
        self.at = 0
        self.frontier.reconciled([SHARD], EPOCH)
        self.observe(start)

    def observe(self, tidemark: Tidemark) -> None:
        """Read one more."""
        self.book.apply(self.at, tidemark)
        self.frontier.observe(tidemark)
        self.at += 1

    def copied(self, key: LogKey, end: int) -> None:
        """Have a log up to there."""
        self.frontier.reconciled([key], EPOCH)
        self.frontier.advanced(key, end)

    def reach(self) -> dict[LogKey, int]:
        """Show what is complete; return what that moves."""
        point = self.frontier.complete
        if point == self.frontier.reached:
            return {}
        self.frontier.persisted(point)
        return self.book.raise_floor(point)

    def pending(self) -> dict[TidemarkPoint, bool]:
        """Return what is before this mirror, and whether it can be reached."""
        return {each.point: not each.unreachable for each in self.frontier._pending}


class Pair:
    """Two mirrors of one primary, that copy alike: `thin` passes tidemarks by."""

    def __init__(self, chance: random.Random) -> None:
        self.chance, self.primary = chance, Primary(chance)
        first = self.primary.publish()
        self.plain, self.thin = Mirror(first), Mirror(first)
        self.both = self.plain, self.thin
        self.wanted = TidemarkPoint(EPOCH, chance.randint(1, 40))
        self.watermarks: dict[LogKey, int] = {}
        self.passed = set[TidemarkPoint]()
        self.moved: dict[LogKey, int] = {}

    def step(self) -> None:
        """Do one thing, at both but for passing by."""
        draw = self.chance.random()
        if draw < 0.4:
            tidemark = self.primary.publish()
            for mirror in self.both:
                mirror.observe(tidemark)
        elif draw < 0.5:
            self.pass_by()
        elif draw < 0.55 and self.primary.ends:
            key = self.chance.choice(sorted(self.primary.ends))
            hole = self.chance.randint(0, self.primary.ends[key] + 2)
            for mirror in self.both:
                mirror.frontier.seeded(key, hole)
        else:
            key = self.chance.choice([SHARD, *sorted(self.primary.ends)])
            end = self.primary.number if key == SHARD else self.primary.ends[key]
            here = min(end, self.watermarks.get(key, 0) + self.chance.randint(0, 4))
            self.watermarks[key] = here
            for mirror in self.both:
                mirror.copied(key, here)

    def pass_by(self) -> None:
        """Thin out what `thin` keeps."""
        frontier, before = self.thin.frontier, self.thin.pending()
        kept = frontier.pass_by(self.chance.randint(1, 8), [self.wanted])
        self.thin.book.pass_by(kept | {frontier.complete})
        self.passed |= before.keys() - kept

    def check(self) -> None:
        """Hold both against each other, then show what is complete."""
        before, kept = self.plain.pending(), self.thin.pending()
        assert (
            kept.items()
            == {point: can for point, can in before.items() if point not in self.passed}.items()
        ), "INV-FR9"
        assert list(kept)[-1:] == list(before)[-1:], "INV-THN3: the newest"
        assert self.wanted not in self.passed, "INV-THN3: what is asked for"
        there, here = self.plain.frontier.complete, self.thin.frontier.complete
        assert here == there if there not in self.passed else here < there
        self.moved |= self.plain.reach()
        if here == there:
            self.check_same(self.thin.reach())

    def check_same(self, moved: dict[LogKey, int]) -> None:
        """Both have reached the same: so are their vectors, and what moved at both since that was so last."""
        assert self.thin.book.floor == self.plain.book.floor, "INV-TM6"
        if self.thin.frontier.reached > BEFORE_ALL:
            at = self.thin.frontier.reached
            assert self.thin.book.positions(at) == self.plain.book.positions(at), "INV-TM6"
        assert moved == self.moved, "INV-TM5"
        self.moved = {}


@given(st.integers(0, 1 << 32))
def test_INV_FR9_INV_TM6_what_is_kept_is_reached_as_if_none_were_passed_by(seed: int) -> None:
    pair = Pair(random.Random(seed))
    for _ in range(120):
        pair.step()
        pair.check()
