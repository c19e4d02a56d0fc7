"""Where two logs part, found by halving, also where a cleaning has left holes in one of them or in both (T13, T33)."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from geo_replicator.history import HeldLog as Held
from geo_replicator.history import HistoryDifference, LastBatch, ShownLog, difference_of
from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.link.comparing import shared_ends
from idempotency.identity import LeaderEpoch

KEY = LogKey(UUID(int=1), 0)
EPOCH = LeaderEpoch(9)
LENGTH = 6
READS_MAX = 40
"""Far more than halving takes in logs of these lengths: what reads on is not about to end."""

Batch = tuple[int, int]


@dataclass(slots=True)
class Log:
    """A log of batches, (base offset, end) each, with holes between them; those from `own_from` on nobody else has."""

    batches: Sequence[Batch]
    own_from: int = LENGTH * 10
    who: int = 1
    whole_from: int = 0
    reads: int = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def last_below(self, end: int) -> LastBatch | None:
        found = next((batch for batch in self.batches if batch[1] == end), None)
        if found is None:
            return None
        return LastBatch(EPOCH, found[0], self.who if found[1] > self.own_from else 0)

    # The port of `comparing`.

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        ends = [cut.position_of(key) for key in keys]
        return [
            ShownLog(key, end, self.end, self.last_below(end), self.whole_from)
            for key, end in zip(keys, ends, strict=True)
        ]

    async def first_offset(self, _key: LogKey) -> int:
        return 0

    async def batch_at(self, _key: LogKey, offset: int) -> Batch:
        self.reads += 1
        assert self.reads <= READS_MAX, f"INV-CG1: the search of {self} does not end"
        return next(batch for batch in self.batches if batch[1] > offset)


@dataclass(frozen=True, slots=True)
class Region:
    """The other region, which judges by the product's rule; the first answer may be another one."""

    log: Log
    says_first: list[int] = field(default_factory=list)

    async def show_history(
        self, _point: TidemarkPoint, shown: Sequence[ShownLog]
    ) -> Sequence[HistoryDifference]:
        if self.says_first:
            agreed = self.says_first.pop()
            return [HistoryDifference(KEY, agreed, each.cut_offset, 0, "") for each in shown]
        found = [difference_of(each, self._held(each)) for each in shown]
        return [difference for difference in found if difference is not None]

    def _held(self, shown: ShownLog) -> Held:
        end = self.log.end
        last = self.log.last_below(min(shown.cut_offset, end))
        return Held(0, end, last, epoch_end=end, whole_from=self.log.whole_from)


async def found(ours: Log, region: Region) -> Mapping[LogKey, int]:
    ours.reads = 0
    return await shared_ends(region, ours, {KEY: ours.end})


async def test_INV_CG1_the_other_log_ends_in_a_hole_of_this_one() -> None:
    """A has cleaned Y (hole [4, 20)); after a power loss B holds Y up to 10, and A's tail from 20 on is not there."""
    ours = Log([(0, 4), (20, 25)], whole_from=20)
    theirs = Log([(0, 4), (4, 10)])
    assert await found(ours, Region(theirs)) == {KEY: 4}


@pytest.mark.parametrize("agreed_end", range(26))
async def test_INV_CG1_whatever_the_other_region_says_first_the_search_ends(
    agreed_end: int,
) -> None:
    ours = Log([(0, 4), (20, 25)])
    shared = await found(ours, Region(Log(ours.batches), [agreed_end]))
    assert shared == {KEY: max(end for end in (0, 4, 25) if end <= agreed_end)}


def layouts() -> list[Sequence[Batch]]:
    """Every log of batches and holes below `LENGTH` that ends with a batch."""
    logs: list[Sequence[Batch]] = []
    for borders in itertools.chain.from_iterable(
        itertools.combinations(range(LENGTH + 1), count) for count in range(2, LENGTH + 2)
    ):
        pairs = list(itertools.pairwise(borders))
        logs += (
            [pair for pair, keep in zip(pairs, (*kept, True), strict=True) if keep]
            for kept in itertools.product((True, False), repeat=len(pairs) - 1)
        )
    return logs


@pytest.mark.parametrize("own_from", range(LENGTH + 1))
async def test_INV_CG1_INV_CG2_with_holes_it_finds_the_last_batch_that_both_hold(
    own_from: int,
) -> None:
    """By looking at each batch in turn, from the last one down."""
    for batches in layouts():
        ours = Log(batches, own_from=own_from)
        for their_end in range(LENGTH + 1):
            # The other one holds the same up to `own_from`, and other bytes behind; nobody has cleaned below what is compared.
            kept = [batch for batch in batches if batch[1] <= min(own_from, their_end)]
            theirs = Log(kept, who=2)
            last = theirs.end
            if their_end > last:
                theirs = Log([*kept, (last, their_end)], own_from=last, who=2)
            both = max((end for _, end in kept), default=0)
            assert await found(ours, Region(theirs)) == {KEY: both}, (batches, their_end)
