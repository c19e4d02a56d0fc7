"""Cuts of a log that another node leads, over many lives: no tidemark tears a transaction, or holds an output without its input.

A model of what bears on D alone: one log at its leader, the main leader's copy of it, one coordinator, one cut leader. The
answers are judged by the real `Collection` and `CutIndex`. Each rule that was thought to be enough before INV-SCU1 tears some life.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from geo_replicator.cut_rounds import Collection, LogAnswer
from idempotency.cut_index import CutIndex
from idempotency.identity import LeaderEpoch, LogKey, Round
from tests.fixtures.cluster_images import member

KEY = LogKey(member(1).incarnation, 0)
EPOCH = LeaderEpoch(1)
LIVES, STEPS = 120, 120


class Torn(Exception):
    """A tidemark that is none."""


@dataclass
class Txn:
    """`consumed`: the offset of its input that it commits with its output; `stamp`: None until it is decided."""

    data: list[int] = field(default_factory=list)
    consumed: int = 0
    stamp: int | None = None
    marker: int | None = None


Rule = Callable[["Region"], bool]


class Region:
    """A log, its copy, and the rounds; `may_read` says when D is read from the copy."""

    def __init__(self, seed: int, may_read: Rule) -> None:
        self.chance, self.may_read = random.Random(seed), may_read
        self.txns: list[Txn] = []
        self.log: list[tuple[Txn, bool]] = []
        self.durable = self.shown = self.copy_hw = 0
        self.marker_end = 0
        self.round, self.released = 1, 0
        self.closing: int | None = None
        """The round that is closed, and not published yet."""
        self.covers = self.last = 0

    def step(self) -> None:
        self.chance.choice((
            self.write, self.write, self.copy, self.copy, self.show, self.tell, self.decide, self.mark, self.elect, self.close, self.cut,
        ))()  # fmt: skip

    def write(self) -> None:
        opened = [txn for txn in self.txns if txn.stamp is None]
        if not opened or self.chance.random() < 0.4:
            self.txns.append(Txn())
            opened = self.txns[-1:]
        txn = self.chance.choice(opened)
        txn.data.append(len(self.log))
        self.log.append((txn, False))

    def copy(self) -> None:
        self.durable = min(len(self.log), self.durable + self.chance.randint(1, 4))

    def show(self) -> None:
        """HW moves at the leader: the main leader is in sync (INV-SPR10)."""
        self.shown = max(self.shown, self.durable)

    def tell(self) -> None:
        self.copy_hw = self.shown

    def decide(self) -> None:
        """T8: all data is below HW; what was read of the input was, too."""
        ready = [
            txn
            for txn in self.txns
            if txn.stamp is None and all(at < self.shown for at in txn.data)
        ]
        if ready:
            txn = self.chance.choice(ready)
            txn.stamp, txn.consumed = self.round, self.shown

    def mark(self) -> None:
        """T3: what is held is not sent; a marker is confirmed once it is below HW."""
        free = [
            txn for txn in self.txns
            if txn.stamp is not None and txn.marker is None and (txn.stamp < self.round or txn.stamp <= self.released)
        ]  # fmt: skip
        if free:
            txn = self.chance.choice(free)
            txn.marker = len(self.log)
            self.log.append((txn, True))
        confirmed = [
            txn.marker + 1
            for txn in self.txns
            if txn.marker is not None and txn.marker < self.shown
        ]
        self.marker_end = max([self.marker_end, *confirmed])

    def elect(self) -> None:
        """Another leader has what was committed, and some of the rest: the copy is cut to that."""
        if self.chance.random() < 0.3:
            end = self.chance.randint(self.shown, len(self.log))
            for txn, is_marker in self.log[end:]:
                if is_marker:
                    txn.marker = None
                else:
                    txn.data = [at for at in txn.data if at < end]
            del self.log[end:]
            self.durable = min(self.durable, end)
            self.covers = min(self.covers, self.durable)

    def close(self) -> None:
        if self.closing is None:
            self.round += 1
            self.closing = self.released = self.round
            self.covers = self.durable

    def cut(self) -> None:
        if self.closing is None or not self.may_read(self):
            return
        index = CutIndex()
        for at, (txn, is_marker) in enumerate(self.log[: self.durable]):
            if is_marker:
                assert txn.stamp is not None
                index.record(Round(txn.stamp), at)
        taken = Collection(Round(self.closing), {KEY: EPOCH})
        taken.take(
            LogAnswer(
                key=KEY, leader_epoch=EPOCH, leader_epoch_start_offset=0, high_watermark=self.copy_hw, log_start_offset=0,
                first_commit_marker=index.first_commit_marker(Round(self.closing)),
            )
        )  # fmt: skip
        self.judge(self.closing, taken.positions[KEY].cut_offset)
        self.closing = None

    def judge(self, number: int, cut_offset: int) -> None:
        if cut_offset < self.last:
            raise Torn("it goes back")
        self.last = cut_offset
        for txn in self.txns:
            if txn.stamp is not None and txn.stamp < number:
                if any(at >= cut_offset for at in txn.data):
                    raise Torn("a part of its data is beyond D")
                if txn.consumed > cut_offset and not self.bound_by_marker(number, cut_offset):
                    raise Torn("its input is beyond D")
            elif txn.marker is not None and txn.marker < cut_offset:
                raise Torn("the marker of one that was decided behind L is below D")

    def bound_by_marker(self, number: int, cut_offset: int) -> bool:
        """Whether D is the first marker of the round: all that was shown before it was closed lies below that."""
        at = self.log[cut_offset] if cut_offset < len(self.log) else None
        return at is not None and at[1] and (at[0].stamp or 0) >= number


def covers_all(region: Region) -> bool:
    """INV-SCU1."""
    return region.copy_hw >= region.covers


def at_once(_region: Region) -> bool:
    return True


def at_the_last_confirmed_marker(region: Region) -> bool:
    return region.copy_hw >= region.marker_end


def torn(rule: Rule) -> int:
    count = 0
    for seed in range(LIVES):
        region = Region(seed, rule)
        try:
            for _ in range(STEPS):
                region.step()
        except Torn:
            count += 1
    return count


def test_INV_SCU1_no_tidemark_tears_a_transaction_where_logs_are_led_apart() -> None:
    assert torn(covers_all) == 0


@pytest.mark.parametrize("rule", [at_once, at_the_last_confirmed_marker])
def test_INV_SCU1_less_is_not_enough(rule: Rule) -> None:
    assert torn(rule) > 0
