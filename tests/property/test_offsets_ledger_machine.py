"""B5: the live offsets table equals the replay of its ledger, whatever happens in whatever order.

The live side is the shard that the coordinator uses; markers are applied later than they are
appended, in any order. The model knows nothing of records: ten lines over plain tuples.
"""

from copy import deepcopy
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from idempotency.identity import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicPartition,
)
from region_broker.groups.offsets import OffsetsToPut, OffsetTable
from region_broker.groups.ports import LedgerMarker, TxnProducer
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.groups.settings import GroupSettings
from region_broker.groups.shard import Shard, ShardStatus
from tests.unit.region_broker.groups.fakes import MemoryLedger, tp

GROUPS = st.sampled_from(["g1", "g2"])
PARTITIONS = st.integers(0, 2)
OFFSETS = st.integers(0, 50)
PRODUCERS = st.integers(1, 3)


class OffsetsLedgerMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = MemoryLedger(1)
        self.shard = Shard(0, ShardStatus.ACTIVE)
        self.unapplied: list[LedgerMarker] = []
        self.history: list[tuple[Any, ...]] = []

    # --- what happens -------------------------------------------------------------------------

    @rule(group=GROUPS, partition=PARTITIONS, offset=OFFSETS)
    def commit(self, group: str, partition: int, offset: int) -> None:
        self._write(group, partition, offset, None)
        self.history.append(("commit", group, partition, offset))

    @rule(group=GROUPS, partition=PARTITIONS, offset=OFFSETS, producer=PRODUCERS)
    def stage(self, group: str, partition: int, offset: int, producer: int) -> None:
        if any(marker.producer_id == producer for marker in self.unapplied):
            return  # in PREPARE_*: verification refuses it
        self._write(group, partition, offset, TxnProducer(ProducerId(producer), ProducerEpoch(0)))
        self.history.append(("stage", group, partition, offset, producer))

    @rule(group=GROUPS, partition=PARTITIONS)
    def tombstone(self, group: str, partition: int) -> None:
        key = encode_offset_key(OffsetKey(group, tp(partition)))
        self.shard.write(self.ledger, [(key, None)])
        self.history.append(("tombstone", group, partition))

    @rule(group=GROUPS, generation=st.one_of(st.none(), st.integers(1, 5)))
    def group_record(self, group: str, generation: int | None) -> None:
        value = None
        if generation is not None:
            value = encode_group_value(GroupValue("consumer", generation, None, None, 0))
        self.shard.write(self.ledger, [(encode_group_key(GroupKey(group)), value)])
        self.history.append(("other",))

    @rule(producer=PRODUCERS, commit=st.booleans())
    def append_marker(self, producer: int, commit: bool) -> None:
        if any(marker.producer_id == producer for marker in self.unapplied):
            return
        self.ledger.append_marker(0, producer, commit=commit)
        self.unapplied.append(LedgerMarker(ProducerId(producer), commit))
        self.history.append(("end", producer, commit))

    @precondition(lambda self: self.unapplied)
    @rule(pick=st.integers(0, 2))
    def apply_marker(self, pick: int) -> None:
        self.shard.apply_marker(self.unapplied.pop(pick % len(self.unapplied)))

    @rule()
    def restart(self) -> None:
        shard = Shard(0)
        shard.leave(ShardStatus.LOADING)
        for marker in self.unapplied:  # reported while it loads: applied twice
            shard.apply_marker(marker)
        shard.enter(self.ledger.replayed(0), GroupSettings(), now_ms=0)
        self.shard, self.unapplied = shard, []

    # --- what must hold -----------------------------------------------------------------------

    @invariant()
    def live_is_replay(self) -> None:
        table = deepcopy(self.shard.table)
        for marker in reversed(self.unapplied):
            table.apply(marker)
        assert table == self.ledger.replayed(0)

    @invariant()
    def replay_is_the_model(self) -> None:
        committed, pending = _model(self.history)
        table: OffsetTable = self.ledger.replayed(0)
        seen = {
            (group, place_tp.partition): place.committed_offset
            for group, places in table.committed.items()
            for place_tp, place in places.items()
        }
        assert seen == {key: offset for key, (_, offset) in committed.items()}
        for group in ("g1", "g2"):
            waits = [partition.partition for partition in table.pending_partitions(group)]
            assert sorted(waits) == sorted(
                {p for held in pending.values() for g, p in held if g == group}
            )

    def _write(self, group: str, partition: int, offset: int, producer: TxnProducer | None) -> None:
        where: TopicPartition = tp(partition)
        value = OffsetValue(offset, NO_LEADER_EPOCH, "", 0)
        batch, offsets = self.ledger.batch(), OffsetsToPut(group)
        for each in (
            OffsetValue(offset + 7, LeaderEpoch(3), "again", 0),
            value,
        ):  # the last of a partition counts
            batch.add(encode_offset_key(OffsetKey(group, where)), encode_offset_value(each))
            offsets.add(where, each, transactional=producer is not None)
        self.shard.write_offsets(self.ledger, batch, offsets, producer)


_Places = dict[tuple[str, int], tuple[int, int]]


def _model(history: list[tuple[Any, ...]]) -> tuple[_Places, dict[int, _Places]]:
    """Say what rules C43 to C45 make of a history: place -> (index in the history, offset)."""
    committed: _Places = {}
    pending: dict[int, _Places] = {}
    for index, event in enumerate(history):
        match event:
            case ("commit", group, partition, offset):
                committed[group, partition] = (index, offset)
            case ("stage", group, partition, offset, producer):
                pending.setdefault(producer, {})[group, partition] = (index, offset)
            case ("tombstone", group, partition):
                for places in (committed, *pending.values()):
                    places.pop((group, partition), None)
            case ("end", producer, commit):
                for place, found in pending.pop(producer, {}).items():
                    if commit and found > committed.get(place, (-1, -1)):
                        committed[place] = found
            case _:
                pass
    return committed, pending


OffsetsLedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestB5LiveIsReplay = OffsetsLedgerMachine.TestCase
