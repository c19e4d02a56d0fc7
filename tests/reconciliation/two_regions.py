"""Two regions' log folders with real bytes: transactions, markers, ledgers, tidemarks; and ways to spoil them.

`Primary` plays a primary region and writes what a broker would; `Pair` holds the batches of both sides as lists, which
a fault edits before `write` lays them out as segment files.
"""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid5

import google_crc32c

from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.reconciliation.job import Region
from geo_replicator.tidemark import LogPosition, Tidemark, encode
from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import (
    TransactionRecord,
    TxnStatus,
    encode_transaction_key,
    encode_transaction_value,
)
from idempotency.record_batch import (
    HEADER_BYTES,
    ControlType,
    MarkerFacts,
    build_marker,
    read_header,
)
from region_broker.records.batches import Origin, Record, build_batch
from tests.fixtures.kernel_batches import stamp
from txn_coordinator.states import COMPLETED

NAMESPACE = UUID("00000000-0000-0000-0000-000000007153")
REGION_EPOCH = RegionEpoch(8)
LEADER_EPOCH = LeaderEpoch(REGION_EPOCH << 16 | 1)
TXN_LEDGER = "__transaction_state"
TIDEMARKS = "__tidemarks"
START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000

Place = tuple[str, int]
Logs = dict[Place, list[bytes]]


def topic_id(name: str, generation: int = 0) -> UUID:
    return uuid5(NAMESPACE, f"{name}/{generation}")


def with_crc(batch: bytes) -> bytes:
    changed = bytearray(batch)
    struct.pack_into(">I", changed, 17, google_crc32c.value(bytes(changed[21:])))
    return bytes(changed)


def flipped(batch: bytes, at: int = HEADER_BYTES + 3) -> bytes:
    changed = bytearray(batch)
    changed[at] ^= 0x40
    return bytes(changed)


def restamped(
    batch: bytes, *, base_offset: int | None = None, leader_epoch: int | None = None
) -> bytes:
    header = read_header(batch)
    changed = bytearray(batch)
    stamp(
        changed, 0,
        base_offset=header.base_offset if base_offset is None else base_offset,
        leader_epoch=header.leader_epoch if leader_epoch is None else leader_epoch,
    )  # fmt: skip
    return bytes(changed)


def end_of(log: list[bytes]) -> int:
    return read_header(log[-1]).next_offset if log else 0


@dataclass
class Txn:
    """How one transaction is played; the defaults are a sound one."""

    producer: int
    places: tuple[Place, ...]
    commit: bool = True
    batches: int = 1
    lose_marker_in: tuple[int, ...] = ()
    """Indexes into `places` where the primary never writes the marker."""
    flip_marker_in: tuple[int, ...] = ()
    """Indexes into `places` where the marker says the contrary of the ledger."""
    end: bool = True
    """False: it stays open."""
    in_ledger: bool = True


@dataclass
class Primary:
    """The primary region: appends to its logs as a leader and a coordinator would."""

    logs: Logs = field(default_factory=dict)
    now_ms: int = START_MS
    sequences: dict[tuple[Place, int, int], int] = field(default_factory=dict)
    epochs: dict[int, int] = field(default_factory=dict)
    shards: int = 2

    def append(self, place: Place, batch: bytes) -> int:
        log = self.logs.setdefault(place, [])
        offset = end_of(log)
        log.append(restamped(batch, base_offset=offset, leader_epoch=LEADER_EPOCH))
        self.now_ms += 1
        return offset

    def data(
        self, place: Place, producer: int, epoch: int, count: int = 2, *, transactional: bool = False,
        skip: int = 0, sequence: int | None = None,
    ) -> int:  # fmt: skip
        key = (place, producer, epoch)
        base = (self.sequences.get(key, 0) if sequence is None else sequence) + skip
        self.sequences[key] = base + count
        records = [
            Record(b"key", f"{place} {producer} {base + i}".encode(), timestamp_ms=self.now_ms)
            for i in range(count)
        ]
        origin = Origin(
            ProducerId(producer),
            ProducerEpoch(epoch),
            SequenceNumber(base),
            transactional=transactional,
        )
        return self.append(place, build_batch(records, origin=origin))

    def plain(self, place: Place, count: int = 3) -> int:
        records = [Record(None, b"plain" * (i + 1), timestamp_ms=self.now_ms) for i in range(count)]
        return self.append(place, build_batch(records))

    def ledger(
        self, txn: Txn, status: TxnStatus, epoch: int, decision: DecisionId | None
    ) -> DecisionId:
        shard = txn.producer % self.shards
        name = f"app-{txn.producer}"
        record = TransactionRecord(
            transactional_id=name, producer_id=ProducerId(txn.producer), previous_producer_id=NO_PRODUCER_ID,
            next_producer_id=NO_PRODUCER_ID, producer_epoch=ProducerEpoch(epoch), last_producer_epoch=ProducerEpoch(epoch - 1),
            timeout_ms=TIMEOUT_MS, status=status,
            partitions=() if status in COMPLETED else tuple(
                TopicPartition(TopicName(topic), number) for topic, number in txn.places
            ),
            last_update_ms=self.now_ms, start_ms=self.now_ms, stamp=Round(1), decision=decision,
            region_epoch=REGION_EPOCH, client_tv=2,
        )  # fmt: skip
        batch = build_batch(
            [
                Record(
                    encode_transaction_key(name),
                    encode_transaction_value(record),
                    timestamp_ms=self.now_ms,
                )
            ]
        )
        offset = self.append((TXN_LEDGER, shard), batch)
        return DecisionId(shard, LEADER_EPOCH, offset, Round(1))

    def play(self, txn: Txn) -> None:
        """Play one transaction the way of KIP-890: its own epoch, the decision under the next one."""
        epoch = self.epochs.get(txn.producer, 0)
        if txn.in_ledger:
            self.ledger(txn, TxnStatus.ONGOING, epoch, None)
        for _ in range(txn.batches):
            for place in txn.places:
                self.data(place, txn.producer, epoch, transactional=True)
        if not txn.end:
            return
        self.epochs[txn.producer] = epoch + 1
        prepare = TxnStatus.PREPARE_COMMIT if txn.commit else TxnStatus.PREPARE_ABORT
        decision = DecisionId(txn.producer % self.shards, LEADER_EPOCH, 0, Round(1))
        if txn.in_ledger:
            decision = self.ledger(txn, prepare, epoch + 1, None)
        for index, place in enumerate(txn.places):
            if index in txn.lose_marker_in:
                continue
            commit = txn.commit != (index in txn.flip_marker_in)
            marker = MarkerFacts(
                ProducerId(txn.producer), ProducerEpoch(epoch + 1), ControlType.COMMIT if commit else ControlType.ABORT, CoordinatorEpoch(1),
                decision, self.now_ms,
            )  # fmt: skip
            self.append(place, build_marker(marker))
        if txn.in_ledger:
            complete = TxnStatus.COMPLETE_COMMIT if txn.commit else TxnStatus.COMPLETE_ABORT
            self.ledger(txn, complete, epoch + 1, decision)

    def tidemark(self, number: int) -> None:
        """Publish a full tidemark at the end of every log."""
        self.logs.setdefault((TIDEMARKS, 0), [])
        moved = {
            LogKey(topic_id(topic), partition): LogPosition(end_of(log), 0)
            for (topic, partition), log in self.logs.items()
            if topic not in (TXN_LEDGER, TIDEMARKS)
        }
        ledger = {
            partition: end_of(log)
            for (topic, partition), log in self.logs.items()
            if topic == TXN_LEDGER
        }
        record = Tidemark(
            domain="main", region_epoch=REGION_EPOCH, number=number, round=Round(number), metadata_version=1,
            ledger=ledger, moved=moved, full=True, wall_ms=self.now_ms,
        )  # fmt: skip
        key, value = encode(record)
        self.append((TIDEMARKS, 0), build_batch([Record(key, value, timestamp_ms=self.now_ms)]))


A0: Place = ("accounts", 0)
A1: Place = ("accounts", 1)
OFFSETS: Place = ("__consumer_offsets", 0)
PLAIN: Place = ("clicks", 0)
DATA_PLACES = (A0, A1, PLAIN)


def sound_primary(extra: Callable[[Primary], None] | None = None, rounds: int = 6) -> Primary:
    """Return a primary with commits, aborts, an open transaction, plain and idempotent producers, a tidemark."""
    primary = Primary()
    for turn in range(rounds):
        primary.play(Txn(1000, (A0, A1, OFFSETS), batches=1 + turn % 2))
        primary.play(Txn(1001, (A1, A0), commit=turn % 2 == 0))
        primary.data(PLAIN, 2000, 0, 1 + turn % 3)
        primary.plain(PLAIN)
        primary.data(A0, 2001, 3)
    if extra is not None:
        extra(primary)
    primary.play(Txn(1000, (A0, A1, OFFSETS)))
    primary.data(PLAIN, 2000, 0)
    primary.tidemark(1)
    primary.play(Txn(1001, (A0, A1)))
    primary.play(Txn(1002, (A1,), end=False))
    primary.data(PLAIN, 2000, 0)
    return primary


@dataclass
class Pair:
    """Both sides. `byte_faults` are applied to the files after they are written."""

    source: Logs
    mirror: Logs
    roll_batches: int = 7
    mirror_generation: dict[str, int] = field(default_factory=dict)
    byte_faults: list[Callable[[Path, Path], None]] = field(default_factory=list)

    @classmethod
    def of(cls, primary: Primary, roll_batches: int = 7) -> "Pair":
        copies = [{place: list(log) for place, log in primary.logs.items()} for _ in range(2)]
        return cls(copies[0], copies[1], roll_batches)

    def cut(self, place: Place) -> int:
        """Return how many batches of a log the tidemark of `sound_primary` covers at least."""
        return len(self.source[place]) - 4

    def write(self, folder: Path) -> tuple[Region, Region]:
        regions = []
        for name, logs in (("primary", self.source), ("away", self.mirror)):
            generation = self.mirror_generation if name == "away" else {}
            write_region(folder / name, logs, self.roll_batches, generation)
            reached = TidemarkPoint(REGION_EPOCH, 1) if name == "away" else None
            regions.append(Region(name=name, data_dir=folder / name, reached=reached))
        for fault in self.byte_faults:
            fault(folder / "primary", folder / "away")
        return regions[0], regions[1]


def write_region(
    folder: Path, logs: Logs, roll_batches: int, generation: dict[str, int] | None = None
) -> None:
    root = folder / "logs"
    root.mkdir(parents=True)
    (root / "format").write_text("tidemark-log 1\n")
    counts: dict[str, int] = {}
    for topic, partition in logs:
        counts[topic] = max(counts.get(topic, 0), partition + 1)
    for (topic, partition), batches in logs.items():
        identity = topic_id(topic, (generation or {}).get(topic, 0))
        primary = root / identity.hex
        primary.mkdir(exist_ok=True)
        described = {
            "topic_id": str(identity),
            "name": topic,
            "partition_count": counts[topic],
            "internal": False,
        }
        (primary / "topic.json").write_text(json.dumps(described))
        write_partition(primary / str(partition), batches, roll_batches)


def write_partition(folder: Path, batches: list[bytes], roll_batches: int) -> None:
    """Lay batches out in segments that roll where the *offsets* of the sound log would (every n-th batch)."""
    folder.mkdir()
    if not batches:
        (folder / f"{0:020d}.log").write_bytes(b"")
        return
    for start in range(0, len(batches), roll_batches):
        chunk = batches[start : start + roll_batches]
        base = min(read_header(batch).base_offset for batch in chunk)
        if start == 0:
            base = 0
        (folder / f"{base:020d}.log").write_bytes(b"".join(chunk))


def segments(region: Path, place: Place, generation: int = 0) -> list[Path]:
    """Return the segment files of a partition, oldest first."""
    return sorted(
        (region / "logs" / topic_id(place[0], generation).hex / str(place[1])).glob("*.log")
    )
