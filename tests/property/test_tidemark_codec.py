"""Tidemark records and vectors against plain models, for any content."""

import random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, Lineage, LogKey, TidemarkPoint
from geo_replicator.reading import read_book
from geo_replicator.tidemark import (
    LogPosition,
    TermRecord,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    decode,
    encode,
)
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.topology import LedgerTopics
from idempotency.decision import round_of
from idempotency.identity import RegionEpoch

LEDGERS = LedgerTopics(UUID(int=1), UUID(int=2))
OFFSETS = st.integers(0, 2**62)
KEYS = st.builds(LogKey, st.uuids(), st.integers(0, 2**31 - 1))
TIDEMARKS = st.builds(
    Tidemark,
    domain=st.text(max_size=20),
    region_epoch=st.integers(0, 2**31),
    number=st.integers(0, 2**62),
    round=st.integers(0, 2**63 - 1),
    metadata_version=OFFSETS,
    ledger=st.dictionaries(st.integers(0, 64), OFFSETS, max_size=8),
    moved=st.dictionaries(KEYS, st.builds(LogPosition, OFFSETS, OFFSETS), max_size=8),
    removed=st.lists(KEYS, max_size=4).map(tuple),
    full=st.booleans(),
    previous_at=st.integers(-1, 2**62),
    full_at=st.integers(-1, 2**62),
    wall_ms=OFFSETS,
)


@given(TIDEMARKS)
def test_tidemarks_round_trip(tidemark: Tidemark) -> None:
    assert decode(*encode(tidemark)) == tidemark


@given(st.integers(0, 2**31), st.integers(0, 2**31), OFFSETS)
def test_term_records_round_trip(region_epoch: int, term: int, number: int) -> None:
    record = TermRecord(
        domain="main", region_epoch=RegionEpoch(region_epoch), term=term, number=number
    )
    assert decode(*encode(record)) == record


@given(TIDEMARKS, st.integers(0, 400), st.binary(max_size=3))
def test_damaged_records_are_errors_and_never_anything_else(
    tidemark: Tidemark, at: int, noise: bytes
) -> None:
    key, value = encode(tidemark)
    damaged = value[:at] + noise + value[at + len(noise) + 1 :]
    try:
        decode(key, damaged)
    except TidemarkError:
        return


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_noise_is_an_error(key: bytes, value: bytes) -> None:
    with pytest.raises(TidemarkError):
        decode(key, value)


LOGS = [LogKey(UUID(int=10 + topic), number) for topic in range(3) for number in range(2)]
STEPS = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=6), st.sets(st.integers(0, 2))),
    min_size=1,
    max_size=30,
)


class Written:
    """`__tidemarks` in memory, one record per offset."""

    def __init__(self, steps: list[tuple[list[int], set[int]]], full_every: int) -> None:
        """Each step moves some logs on by one and keeps only some of the topics (all at first)."""
        self.records: list[tuple[int, bytes, bytes]] = []
        self.tidemarks: list[Tidemark] = []
        self.models: list[dict[LogKey, int]] = []
        writer = TidemarkWriter("main", TidemarkBook(LEDGERS))
        offsets: dict[LogKey, int] = {}
        topics = {key.topic_id for key in LOGS}
        for number, (moves, deleted) in enumerate(steps, 1):
            if number > 1:
                topics -= {UUID(int=10 + topic) for topic in deleted if topic > 0}
            for index in moves:
                if LOGS[index].topic_id in topics:
                    offsets[LOGS[index]] = offsets.get(LOGS[index], 0) + 1
            offsets = {key: offset for key, offset in offsets.items() if key.topic_id in topics}
            writer._records_since_full = 2000 if number % full_every == 0 else 0
            tidemark = writer.prepare(
                ClosedCut(
                    round=round_of(1, number),
                    region_epoch=RegionEpoch(8),
                    metadata_version=number,
                    ledger={0: number},
                    moved={key: LogPosition(offset, 0) for key, offset in offsets.items()},
                    existing=frozenset(topics),
                    wall_ms=number,
                )
            )
            at = len(self.records)
            self.records.append((at, *encode(tidemark)))
            self.tidemarks.append(writer.published(at, 10))
            self.models.append(dict(offsets))

    def tidemark_records(self, start_offset: int):  # type: ignore[no-untyped-def] # noqa: ANN201
        return iter(self.records[start_offset:])

    def last_tidemark_record(self) -> tuple[int, bytes, bytes] | None:
        return self.records[-1] if self.records else None


# Holds INV-TR1.
@given(STEPS, st.integers(1, 5), st.data())
def test_vectors_equal_the_model_from_any_floor(
    steps: list[tuple[list[int], set[int]]], full_every: int, data: st.DataObject
) -> None:
    log = Written(steps, full_every)
    floor = data.draw(st.integers(1, len(steps)))
    read = read_book(log, LEDGERS, TidemarkPoint(RegionEpoch(8), floor))
    book = read.book
    assert book.known() == (TidemarkPoint(RegionEpoch(8), floor),), "INV-TR4"
    for at, key, value in log.tidemark_records(read.next_offset):
        book.apply(at, decode(key, value))
    assert book.known() == tuple(
        TidemarkPoint(RegionEpoch(8), k) for k in range(floor, len(steps) + 1)
    )
    for number in range(floor, len(steps) + 1):
        cut = book.positions(TidemarkPoint(RegionEpoch(8), number))
        assert cut is not None
        data_logs = {key: at for key, at in cut.positions.items() if LEDGERS.has_cut_offset(key)}
        assert data_logs == log.models[number - 1]
        assert cut.position_of(LEDGERS.shard_key(0)) == number
        assert cut.position_of(LEDGERS.tidemark_key) == number


@given(STEPS, st.randoms(use_true_random=False))
def test_T16_reached_equals_the_definition_whatever_comes_first(
    steps: list[tuple[list[int], set[int]]], chance: random.Random
) -> None:
    log = Written([(moves, set()) for moves, _ in steps], 3)
    frontier = Frontier(LEDGERS, Lineage())
    watermarks = dict.fromkeys([*LOGS, LEDGERS.shard_key(0)], 0)
    frontier.reconciled(watermarks, RegionEpoch(8))
    known = 0
    for _ in range(60):
        if known < len(log.tidemarks) and chance.random() < 0.4:
            frontier.observe(log.tidemarks[known])
            known += 1
        else:
            key = chance.choice(list(watermarks))
            watermarks[key] += chance.randint(0, 6)
            frontier.advanced(key, watermarks[key])
        reached = [
            number
            for number in range(1, known + 1)
            if all(watermarks[key] >= at for key, at in log.models[number - 1].items())
            and watermarks[LEDGERS.shard_key(0)] >= number
        ]
        expected = TidemarkPoint(RegionEpoch(8), max(reached)) if reached else BEFORE_ALL
        assert frontier.complete == expected
