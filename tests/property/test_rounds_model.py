"""Rounds over a network that delays and reorders: the real cut leader core against a small model of the rest.

Two ledger shards, three partitions, transactions that write two partitions and depend on what they could
read. Every message is delivered late, in any order, some twice. At each published tidemark: decided ones are
whole below D, no marker of the others is, and nothing in the cut depends on something outside. Removing a rule
must be noticed (the mutants), or this test would prove nothing.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

import pytest

from geo_replicator.effects import (
    CollectPositions,
    EnterRound,
    PublishTidemark,
    RecordTerm,
    ReleaseRound,
    RoundEffect,
)
from geo_replicator.events import (
    PositionsCollected,
    RoundEvent,
    ShardEntered,
    SomethingChanged,
    TermRecorded,
    TidemarkDurable,
    TimePassed,
)
from geo_replicator.lineage import LogKey
from geo_replicator.rounds import Collection, LogAnswer, RoundsCore
from idempotency.cut_index import CutIndex
from txn_coordinator.rounds import RoundGate

SHARDS, PARTITIONS, TERM = 2, 3, 5
KEYS = [LogKey(UUID(int=1), number) for number in range(PARTITIONS)]


class Torn(Exception):
    """A published tidemark is no consistent cut."""


@dataclass
class Txn:
    """One transaction: where it writes, and what it saw when it was decided."""

    number: int
    shard: int
    partitions: list[int]
    stamp: int | None = None
    ledger_offset: int = -1
    saw: frozenset[int] = frozenset()


@dataclass
class Shard:
    """A ledger shard: its round gate (real), its length, and the decisions whose markers are held."""

    gate: RoundGate = field(default_factory=RoundGate)
    length: int = 0
    held: list[Txn] = field(default_factory=list)


@dataclass
class Log:
    """A partition: (transaction, is_marker) by offset, and the real cut index."""

    records: list[tuple[int, bool]] = field(default_factory=list)
    index: CutIndex = field(default_factory=CutIndex)


class Model:
    """The world around one `RoundsCore`; `pool` holds what is under way."""

    def __init__(self, seed: int, mutant: str) -> None:
        self.chance, self.mutant = random.Random(seed), mutant
        self.core = RoundsCore(term=TERM, shard_count=SHARDS)
        self.now_ms = 0
        self.shards = [Shard() for _ in range(SHARDS)]
        self.logs = [Log() for _ in range(PARTITIONS)]
        self.txns: list[Txn] = []
        self.pool: list[Callable[[], None]] = []
        self.collection = Collection(0, {})
        self.published = 0
        for effect in self.core.start():
            self.perform(effect)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.pool and self.chance.random() < 0.7:
                message = self.chance.choice(self.pool)
                if self.chance.random() < 0.9:
                    self.pool.remove(message)
                message()
            elif self.chance.random() < 0.8:
                self.begin()
            else:
                self.now_ms += self.chance.choice([1, 20, 300])
                self.tell(TimePassed())

    def tell(self, event: RoundEvent) -> None:
        for effect in self.core.step(event, now_ms=self.now_ms):
            self.perform(effect)

    # The cut leader's effects become messages.

    def perform(self, effect: RoundEffect) -> None:
        match effect:
            case RecordTerm():
                self.tell(TermRecorded())
            case EnterRound(round=number):
                self.pool += [self.enter(shard, number) for shard in range(SHARDS)]
            case ReleaseRound(round=number):
                self.pool += [self.release(shard, number) for shard in range(SHARDS)]
            case CollectPositions(round=number):
                self.collection = Collection(number, dict.fromkeys(KEYS, TERM))
                self.pool += [self.collect(number, log) for log in range(PARTITIONS)]
            case PublishTidemark(round=number, ledger=ledger):
                self.judge(number, [ledger[shard] for shard in range(SHARDS)])
                self.published += 1
                self.tell(TidemarkDurable(number))

    def enter(self, number: int, round_: int) -> Callable[[], None]:
        def deliver() -> None:
            shard = self.shards[number]
            if round_ > shard.gate.current:
                shard.gate.enter(round_)
                shard.gate.current_offset = shard.length
                shard.length += 1
                if self.mutant == "no hold":
                    shard.gate.release(round_)
                self.send_free(shard)
            if round_ == shard.gate.current:
                answer = ShardEntered(round_, number, TERM, shard.gate.current_offset)
                self.pool.append(lambda: self.tell(answer))

        return deliver

    def release(self, number: int, round_: int) -> Callable[[], None]:
        def deliver() -> None:
            self.shards[number].gate.release(round_)
            self.send_free(self.shards[number])

        return deliver

    def send_free(self, shard: Shard) -> None:
        free = [txn for txn in shard.held if shard.gate.is_free(txn.stamp or 0)]
        shard.held = [txn for txn in shard.held if txn not in free]
        for txn in free:
            self.pool += [self.mark(txn, log) for log in txn.partitions]

    def mark(self, txn: Txn, number: int) -> Callable[[], None]:
        def deliver() -> None:
            log = self.logs[number]
            if (txn.number, True) not in log.records:  # T6
                log.index.record(txn.stamp or 0, len(log.records))
                log.records.append((txn.number, True))

        return deliver

    def collect(self, round_: int, number: int) -> Callable[[], None]:
        def deliver() -> None:
            if self.collection.round != round_ or KEYS[number] not in self.collection.missing:
                return
            log = self.logs[number]
            marker = log.index.first_commit_marker(round_)
            self.collection.take(
                LogAnswer(
                    key=KEYS[number],
                    leader_epoch=TERM,
                    leader_epoch_start_offset=0,
                    high_watermark=len(log.records),
                    log_start_offset=0,
                    first_commit_marker=None if self.mutant == "D is HW" else marker,
                )
            )
            if not self.collection.missing:
                self.tell(PositionsCollected(round_))

        return deliver

    # Transactions.

    def begin(self) -> None:
        partitions = self.chance.sample(range(PARTITIONS), 2)
        txn = Txn(len(self.txns), self.chance.randrange(SHARDS), partitions)
        self.txns.append(txn)
        for number in partitions:
            self.logs[number].records.append((txn.number, False))
        stamp = self.shards[txn.shard].gate.current
        self.pool.append(lambda: self.decide(txn, stamp))

    def decide(self, txn: Txn, stamp_when_asked: int) -> None:
        if txn.stamp is not None:
            return
        shard = self.shards[txn.shard]
        txn.stamp = stamp_when_asked if self.mutant == "stamp before log" else shard.gate.current
        txn.ledger_offset = shard.length
        shard.length += 1
        txn.saw = frozenset(seen for log in self.logs for seen, marker in log.records if marker)
        shard.held.append(txn)
        self.send_free(shard)
        self.tell(SomethingChanged())

    # The judge.

    def judge(self, round_: int, ledger: list[int]) -> None:
        cuts = [self.collection.positions[key].cut_offset for key in KEYS]
        inside = {
            txn.number
            for txn in self.txns
            if txn.stamp is not None and txn.ledger_offset < ledger[txn.shard]
        }
        for txn in self.txns:
            if txn.number in inside and not txn.saw <= inside:
                raise Torn(f"{txn} depends on what round {round_} does not hold")
        for log, cut in zip(self.logs, cuts, strict=True):
            for offset, (number, marker) in enumerate(log.records):
                if number in inside and not marker and offset >= cut:
                    raise Torn(f"data of {number} at {offset} is above D {cut}")
                if number not in inside and marker and offset < cut:
                    raise Torn(f"marker of {number} at {offset} is below D {cut}")


def runs(mutant: str, seeds: int) -> Iterator[Model]:
    """Run the model under `seeds` schedules."""
    for seed in range(seeds):
        model = Model(seed, mutant)
        model.run(120)
        yield model


def test_T4_T9_every_published_tidemark_is_closed_under_any_schedule() -> None:
    published = [model.published for model in runs("", 400)]
    assert sum(published) > 400, "the schedules publish enough for this to mean something"


@pytest.mark.parametrize("mutant", ["no hold", "D is HW", "stamp before log"])
def test_removing_a_rule_is_noticed(mutant: str) -> None:
    with pytest.raises(Torn):
        for _ in runs(mutant, 400):
            pass
