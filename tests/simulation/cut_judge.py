"""What a takeover at each tidemark would keep, judged from the logs of a region alone.

A transaction of the cut is whole: its data lies below D in every partition, committed by a marker below D or,
where none is there yet, by the decision below L (rules T2, T9, T21). The judge reads bytes and the ledger; it
asks no service of the node.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from chaos.history import seen
from geo_replicator.lineage import Cut, LogKey
from geo_replicator.tidemark import Tidemark, TidemarkBook, decode
from idempotency.identity import ProducerId
from idempotency.ledger_records import (
    TransactionKey,
    TransactionRecord,
    TxnStatus,
    decode_key,
    decode_transaction_value,
)
from idempotency.record_batch import ControlType, MarkerFacts, iter_headers, read_marker
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.partitions.partition import Partition
from region_broker.records.batches import iter_records
from region_broker.region.mirror.mirror_log import TidemarkLog
from region_broker.region.tidemarks.service import ledgers_of
from tests.simulation.region_pair import SHARD_COUNT, Region

ALL_BYTES = 1 << 30


@dataclass(frozen=True)
class Batch:
    """One batch of a data partition; `values` of its records, or its marker."""

    offset: int
    producer_id: int
    transactional: bool
    values: tuple[tuple[int, bytes], ...]
    marker: MarkerFacts | None


@dataclass(frozen=True)
class Decided:
    """One ledger record with its position."""

    shard: int
    offset: int
    record: TransactionRecord


def whole(partition: Partition, start: int, end: int | None = None) -> bytes:
    """Return the bytes of a log from `start` to `end` (default: all that is durable)."""
    data, offset = b"", start
    while piece := partition.reader.read_raw(offset, ALL_BYTES, end):
        data += piece
        offset = max(header.next_offset for _, header in iter_headers(piece))
    return data


def batches_of(partition: Partition) -> list[Batch]:
    """Return all durable batches."""
    data = whole(partition, partition.log_start_offset)
    found = []
    for start, header in iter_headers(data):
        batch = data[start : start + header.size_bytes]
        marker = read_marker(batch) if header.is_control else None
        values = (
            ()
            if header.is_control
            else tuple((record.offset, record.value or b"") for record in iter_records(batch))
        )
        found.append(
            Batch(header.base_offset, header.producer_id, header.is_transactional, values, marker)
        )
    return found


def ledger_of(region: Region) -> list[Decided]:
    """Return all transaction records of all shards, in order per shard."""
    found = []
    for shard in range(SHARD_COUNT):
        partition = region.partition(TRANSACTION_LEDGER, shard)
        data = whole(partition, partition.log_start_offset)
        for start, header in iter_headers(data):
            for record in iter_records(data[start : start + header.size_bytes]):
                named = decode_key(record.key or b"")
                if isinstance(named, TransactionKey) and record.value is not None:
                    value = decode_transaction_value(named.transactional_id, record.value)
                    found.append(Decided(shard, record.offset, value))
    return found


def tidemarks_of(region: Region) -> Iterator[tuple[Tidemark, Cut]]:
    """Yield every tidemark in the region's log that it has reached, with its positions."""
    image = region.node.storage.metadata.image
    ledgers = ledgers_of(image)
    records = TidemarkLog(region.node.storage.partitions, ledgers)
    book = TidemarkBook(ledgers)
    claimed = region.node.tidemarks.claim().point
    partition = records.partition
    assert partition is not None
    for at, key, value in records.tidemark_records(partition.log_start_offset):
        tidemark = book.apply(at, decode(key, value))
        if tidemark is not None and tidemark.point <= claimed:
            cut = book.positions(tidemark.point)
            assert cut is not None
            yield tidemark, cut


LOOKS_MAX = 100
"""So many tidemarks of a life are looked at."""


def torn_at_tidemarks(region: Region, topic: str) -> Iterator[str]:
    """Say at which tidemarks one half of a transfer is kept: each is two records of one attempt. Some of all tidemarks are looked at.

    Not at those whose decisions the cleaner may have taken out of the ledger since.
    """
    cleaned = [
        region.partition(TRANSACTION_LEDGER, shard).log.cleaning.holes_below
        for shard in range(SHARD_COUNT)
    ]
    every = max(1, sum(1 for _ in tidemarks_of(region)) // LOOKS_MAX)
    for tidemark, kept in kept_at_each(region, topic, every):
        if any(tidemark.ledger[shard] < below for shard, below in enumerate(cleaned)):
            continue
        halves = Counter(seen(number, offset, value).attempt for number, offset, value in kept)
        torn = sorted(name for name, count in halves.items() if count != 2)
        if torn:
            yield f"a takeover at tidemark {tidemark.point} would tear {torn[:5]}"


def kept_at_each(
    region: Region, topic: str, every: int = 1
) -> Iterator[tuple[Tidemark, list[tuple[int, int, bytes]]]]:
    """Yield each tidemark, or each how many, with the committed records (partition, offset, value) that it keeps."""
    image = region.node.storage.metadata.image.topics[topic]
    logs = [batches_of(region.partition(topic, number)) for number in range(image.partition_count)]
    ledger = ledger_of(region)
    for tidemark, cut in islice(tidemarks_of(region), 0, None, every):
        decided = {
            entry.record.producer_id: entry
            for entry in ledger
            if entry.offset < tidemark.ledger[entry.shard]
        }
        kept = []
        for number, batches in enumerate(logs):
            end = cut.position_of(LogKey(image.topic_id, number))
            below = [batch for batch in batches if batch.offset < end]
            kept += [
                (number, offset, value)
                for offset, value in _committed(topic, number, below, decided)
            ]
        yield tidemark, kept


def _committed(
    topic: str, number: int, batches: list[Batch], decided: Mapping[ProducerId, Decided]
) -> list[tuple[int, bytes]]:
    kept: list[tuple[int, bytes]] = []
    open_values: dict[int, list[tuple[int, bytes]]] = {}
    markers: dict[int, MarkerFacts] = {}
    for batch in batches:
        if batch.marker is None:
            into = open_values.setdefault(batch.producer_id, []) if batch.transactional else kept
            into += batch.values
            continue
        markers[batch.producer_id] = batch.marker
        values = open_values.pop(batch.producer_id, [])
        if batch.marker.control_type is ControlType.COMMIT:
            kept += values
    for producer_id, values in open_values.items():
        if _is_committed(
            f"{topic}-{number}", decided.get(ProducerId(producer_id)), markers.get(producer_id)
        ):
            kept += values
    return kept


def _is_committed(place: str, entry: Decided | None, marker: MarkerFacts | None) -> bool:
    """Return whether the open data of a producer in a partition is what its newest decision commits."""
    if entry is None or entry.record.status is not TxnStatus.PREPARE_COMMIT:
        return False
    if place not in {str(partition) for partition in entry.record.partitions}:
        return False
    done = None if marker is None else marker.decision
    # 1. T's marker lies below D. 2. The same producer wrote T2's data behind it. 3. T's COMPLETE lies
    # above L, so PREPARE of T is the newest record of the cut: it says nothing about T2.
    return done is None or (done.shard, done.offset) != (entry.shard, entry.offset)
