"""ADR 25: a group ledger replays to the same groups and offsets after it was compacted, whatever was written to it.

Real records in real batches on a simulated disk; the live side applies each once, in order, and never looks back.
What may be written follows the coordinators' own rules: a group of the new protocol ends with tombstones of all that
it has, its epoch last.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from idempotency.identity import (
    NO_LEADER_EPOCH,
    ProducerEpoch,
    ProducerId,
    TopicName,
    TopicPartition,
)
from idempotency.record_batch import ControlType
from region_broker.controller.metadata_image import LEDGER_CONFIGS, OFFSETS_LEDGER
from region_broker.groups.modern.records import (
    Current,
    GroupEpoch,
    MemberMetadata,
    ModernValue,
    Target,
    TargetEpoch,
    encode_value,
)
from region_broker.groups.offsets import OffsetTable
from region_broker.groups.ports import KeyValue, LedgerMarker, LedgerRecord, TxnProducer
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    MemberValue,
    ModernKey,
    ModernKind,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_modern_key,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.ledgers.offsets_log import PartitionOffsetsLog
from region_broker.partitions.partition import Partition
from tests.fixtures.node_logs import Fixture, append_marker, fixture
from tests.simulation.disk import Crashed
from tests.unit.region_broker.log.test_cleaning import clean

CONFIGS = dict(LEDGER_CONFIGS[OFFSETS_LEDGER]) | {
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
SHARD = 0
TOPIC_OF = {"A": UUID(int=7), "B": UUID(int=8)}  # no partition has two owners
GROUPS = ("g1", "g2", "g3")
PRODUCERS = (1, 2, 3)
STEPS = 120


@dataclass
class Ledger:
    """The partition, and the table that was kept up to date beside it."""

    chance: random.Random
    some: Fixture = field(default_factory=lambda: fixture(CONFIGS))
    live: OffsetTable = field(default_factory=OffsetTable)
    open: set[int] = field(default_factory=set)
    cleanings: int = 0

    def get(self, _name: str, _number: int) -> Partition:
        """Stand for the table of partitions."""
        return self.some.partition

    def write(self, records: Sequence[KeyValue], producer_id: int = -1) -> None:
        """Append one batch, and apply it."""
        log = PartitionOffsetsLog(self, self.some.clock)
        producer = (
            None if producer_id < 0 else TxnProducer(ProducerId(producer_id), ProducerEpoch(0))
        )
        appended = log.append(SHARD, records, producer=producer)
        for at, (key, value) in enumerate(records, appended.base_offset):
            self.live.apply(
                LedgerRecord(at, key, value, ProducerId(producer_id), appended.timestamp_ms)
            )
        if producer_id >= 0:
            self.open.add(producer_id)

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Write a marker, and apply it."""
        append_marker(
            self.some.partition,
            producer_id=producer_id,
            producer_epoch=0,
            control_type=ControlType.COMMIT if commit else ControlType.ABORT,
            coordinator_epoch=1,
            decision=None,
            timestamp_ms=self.some.clock.now_ms,
        )
        self.live.apply(LedgerMarker(ProducerId(producer_id), commit))
        self.open.discard(producer_id)

    def replayed(self) -> OffsetTable:
        """Return what a start, or a takeover, makes of the log."""
        self.some.sync()
        table = OffsetTable()
        for part in PartitionOffsetsLog(self, self.some.clock).replay(SHARD):
            for entry in part.entries:
                table.apply(entry)
        return table

    def clean(self) -> None:
        """Clean what may be cleaned; the fixture's bound is the last stable offset."""
        self.some.sync()
        self.cleanings += clean(self.some, keys_max=self.chance.choice([3, 10_000]))

    def crash_while_cleaning(self) -> None:
        """Lose the process, or the power, at some operation of the disk in mid-cleaning."""
        self.some.sync()
        self.some.disk.crash_after(self.chance.randrange(1, 60))
        with suppress(Crashed):
            clean(self.some)
        if self.chance.random() < 0.5:
            self.some.disk.power_loss(random.Random(self.chance.random()))
        else:
            self.some.disk.process_killed()
        self.some.open()
        assert self.some.partition.failed is None, self.some.partition.failed


def facts(table: OffsetTable) -> Mapping[str, Any]:
    """Return all that a table says, without the place of each group's last record: that one may have gone."""
    return {
        "committed": {group: places for group, places in table.committed.items() if places},
        "pending": {pid: staged for pid, staged in table.pending.items() if staged},
        "groups": table.group_values,
        "modern": table.modern,
        "ids": table.group_ids(),
    }


class Life:
    """Random steps over one ledger."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.ledger = Ledger(self.chance)

    def run(self) -> None:
        steps = [
            self.commit, self.commit, self.stage, self.stage, self.end, self.end, self.delete_offset,
            self.classic, self.modern, self.modern, self.delete_group, self.wait, self.ledger.clean, self.ledger.clean,
            self.ledger.crash_while_cleaning,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.chance.choice(steps)()
            assert facts(self.ledger.replayed()) == facts(self.ledger.live)
        for producer_id in tuple(self.ledger.open):
            self.ledger.end(producer_id, commit=True)
        self.ledger.some.clock.pass_ms(2_000)
        self.ledger.clean()
        self.ledger.some.close_and_reopen()
        assert facts(self.ledger.replayed()) == facts(self.ledger.live)

    def _offsets(self) -> list[KeyValue]:
        """Return a batch; the metadata is long, so that segments are full soon."""
        return [
            (
                encode_offset_key(OffsetKey(self.chance.choice(GROUPS), self._place())),
                encode_offset_value(
                    OffsetValue(self.chance.randrange(99), NO_LEADER_EPOCH, "m" * 300, 5)
                ),
            )
            for _ in range(self.chance.randrange(1, 5))
        ]

    def _place(self) -> TopicPartition:
        return TopicPartition(TopicName("orders"), self.chance.randrange(3))

    def commit(self) -> None:
        self.ledger.write(self._offsets())

    def stage(self) -> None:
        self.ledger.write(self._offsets(), self.chance.choice(PRODUCERS))

    def end(self) -> None:
        if self.ledger.open:
            producer_id = self.chance.choice(sorted(self.ledger.open))
            self.ledger.end(producer_id, commit=self.chance.random() < 0.6)

    def delete_offset(self) -> None:
        key = OffsetKey(self.chance.choice(GROUPS), self._place())
        self.ledger.write([(encode_offset_key(key), None)])

    def classic(self) -> None:
        member = MemberValue("m", None, "c", "h", 1, 1, b"s" * 200, b"a" * 200)
        value = GroupValue(
            "consumer", self.chance.randrange(9), "range", "m", 0,
            members=(member,) if self.chance.random() < 0.5 else (),
        )  # fmt: skip
        raw = None if self.chance.random() < 0.3 else encode_group_value(value)
        self.ledger.write([(encode_group_key(GroupKey(self.chance.choice(GROUPS))), raw)])

    def modern(self) -> None:
        """Let a member of a group of the new protocol come, go on or leave."""
        group_id, member = self.chance.choice(GROUPS), self.chance.choice(sorted(TOPIC_OF))
        epoch = self.chance.randrange(1, 99)
        parts = {TOPIC_OF[member]: frozenset({self.chance.randrange(3)})}
        metadata = MemberMetadata(
            instance_id=None, rack_id=None, client_id="c" * 100, client_host="h",
            topic_names=("orders",), topic_regex=None, rebalance_timeout_ms=1, assignor=None,
        )  # fmt: skip
        told: list[tuple[ModernKind, str, ModernValue | None]] = [
            (ModernKind.GROUP_EPOCH, "", GroupEpoch(epoch))
        ]
        if self.chance.random() < 0.3:
            told += [
                (kind, member, None)
                for kind in (ModernKind.CURRENT, ModernKind.TARGET, ModernKind.MEMBER)
            ]
        else:
            told += [
                (ModernKind.MEMBER, member, metadata),
                (ModernKind.TARGET, member, Target(parts)),
                (ModernKind.TARGET_EPOCH, "", TargetEpoch(epoch)),
                (
                    ModernKind.CURRENT,
                    member,
                    Current(member_epoch=epoch, assigned=parts, revoking={}),
                ),
            ]
        self.ledger.write(
            [
                (
                    encode_modern_key(ModernKey(kind, group_id, name)),
                    None if value is None else encode_value(value),
                )
                for kind, name, value in told
            ]
        )

    def delete_group(self) -> None:
        """End a group as the coordinator does, perhaps in two batches, perhaps dying behind the first."""
        group = self.ledger.live.modern.get(self.chance.choice(GROUPS))
        if group is None:
            return
        records: list[KeyValue] = [(encode_modern_key(key), None) for key in group.tombstones()]
        cut = self.chance.randrange(len(records))
        parts = [part for part in (records[:cut], records[cut:]) if part]
        for part in parts[: self.chance.choice([1, 2])]:
            self.ledger.write(part)

    def wait(self) -> None:
        self.ledger.some.clock.pass_ms(700)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_B5_the_replay_of_a_compacted_group_ledger_is_the_live_table(seed: int) -> None:
    life = Life(seed)
    life.run()
    assert life.ledger.cleanings > 0
    assert life.ledger.some.partition.log.cleaning.mark.first_dirty_offset > 0


def test_a_ledger_of_many_commits_keeps_what_the_last_ones_say() -> None:
    ledger = Ledger(random.Random(1))
    key = encode_offset_key(OffsetKey("g", TopicPartition(TopicName("orders"), 0)))
    for number in range(2_000):
        value = encode_offset_value(OffsetValue(number, NO_LEADER_EPOCH, "", 5))
        ledger.write([(key, value)])
    whole_bytes = ledger.some.partition.log.size_bytes
    ledger.clean()
    assert ledger.some.partition.log.size_bytes < whole_bytes / 20
    place = ledger.replayed().lookup("g", TopicPartition(TopicName("orders"), 0))
    assert place is not None
    assert place.committed_offset == 1_999
