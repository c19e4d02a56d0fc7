"""Every tidemark is a consistent cut: transfers between accounts under load, judged at each one of them.

The judge reads logs only: `__tidemarks`, the ledger and the data, as a takeover would (rules T2, T9, T16, T17
together; the reasons (i) to (iii) of "why it holds").
"""

import asyncio
import random
from pathlib import Path

from geo_replicator.lineage import Cut, LogKey
from geo_replicator.reading import read_book
from geo_replicator.tidemark import Tidemark, TidemarkBook, decode
from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.ledger_records import (
    TransactionKey,
    TxnStatus,
    decode_key,
    decode_transaction_value,
)
from idempotency.record_batch import ControlType, iter_headers, read_marker
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.partitions.admission import AppendVerdict
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.mirror.mirror_log import TidemarkLog
from region_broker.region.tidemarks.service import ledgers_of
from tests.fixtures.coordinator_driver import owes_markers
from tests.fixtures.linked_regions import SHARD_COUNT, Site, primary_and_mirror, running, tp
from tests.fixtures.waiting import until
from txn_coordinator.verdicts import TxnVerdict

ACCOUNTS = 4
TIDEMARKS = 12


async def transfer(site: Site, name: str, seed: int, enough: asyncio.Event) -> None:
    """Move value between two accounts, again and again until `enough`; about one in five is aborted."""
    chance = random.Random(seed)
    made = await site.coordinator.clients.init_producer_id(name, 60_000)
    sequences: dict[int, int] = {}
    while not enough.is_set():
        pair = chance.sample(range(ACCOUNTS), 2)
        partitions = [tp("accounts", number) for number in pair]
        verdict = await site.coordinator.clients.add_partitions(
            name, made.producer_id, made.producer_epoch, partitions, implicit=False
        )
        assert verdict is TxnVerdict.OK, verdict
        for number in pair:
            await write_half(site, made.producer_id, made.producer_epoch, number, sequences)
        commit = chance.random() < 0.8
        ended = await site.coordinator.clients.end_txn(
            name, made.producer_id, made.producer_epoch, commit, 1
        )
        assert ended.verdict is TxnVerdict.OK, ended


async def write_half(
    site: Site, producer_id: int, epoch: int, number: int, sequences: dict[int, int]
) -> None:
    sequence = sequences.get(number, 0)
    sequences[number] = sequence + 1
    origin = Origin(
        ProducerId(producer_id), ProducerEpoch(epoch), SequenceNumber(sequence), transactional=True
    )
    batch = build_batch([Record(None, b"1", timestamp_ms=1)], origin=origin)
    outcome = site.partition("accounts", number).writer.append(batch)
    assert outcome.verdict is AppendVerdict.APPENDED, outcome
    await site.partition("accounts", number).wait_committed(outcome.next_offset)


def tidemarks_of(site: Site) -> list[tuple[Tidemark, Cut]]:
    """Return every tidemark in the log with its positions."""
    ledgers = ledgers_of(site.metadata.image)
    records = TidemarkLog(site.partitions, ledgers)
    book = TidemarkBook(ledgers)
    found = []
    for at, key, value in records.tidemark_records(0):
        tidemark = book.apply(at, decode(key, value))
        if tidemark is not None:
            cut = book.positions(tidemark.point)
            assert cut is not None
            found.append((tidemark, cut))
    return found


def decisions_below(site: Site, tidemark: Tidemark) -> dict[tuple[int, int], ProducerId]:
    """Return decision (shard, offset) -> producer id of the committed ones of the cut; check T2."""
    ledger = PartitionTransactionLog(site.partitions, site.clock, SHARD_COUNT)
    committed = {}
    for shard in range(SHARD_COUNT):
        for position, key, value in ledger.replay(shard):
            named = decode_key(key)
            if not isinstance(named, TransactionKey) or value is None:
                continue
            record = decode_transaction_value(named.transactional_id, value)
            if record.status is not TxnStatus.PREPARE_COMMIT:
                continue
            inside = position.offset < tidemark.ledger[shard]
            assert record.stamp is not None
            assert inside == (record.stamp < tidemark.round), (record.stamp, tidemark)
            if inside:
                committed[shard, position.offset] = record.producer_id
    return committed


def judge(site: Site, tidemark: Tidemark, cut: Cut) -> int:
    """Check that the cut holds each transaction whole or not at all; return how many it holds."""
    committed = decisions_below(site, tidemark)
    topic_id = site.metadata.image.topics["accounts"].topic_id
    halves: dict[tuple[int, int], int] = {}
    for number in range(ACCOUNTS):
        open_data: dict[int, list[int]] = {}
        cut_offset = cut.position_of(LogKey(topic_id, number))
        data = site.partition("accounts", number).reader.read_raw(0, 1 << 26)
        for start, header in iter_headers(data):
            if not header.is_control:
                open_data.setdefault(header.producer_id, []).append(header.base_offset)
                continue
            marker = read_marker(data[start : start + header.size_bytes])
            decision = marker.decision
            assert decision is not None
            mine = open_data.pop(header.producer_id, [])
            decided = (decision.shard, decision.offset) in committed
            if marker.control_type is not ControlType.COMMIT:
                continue
            if decided:
                assert all(offset < cut_offset for offset in mine), (
                    "data of a decided one is above D"
                )
                halves[decision.shard, decision.offset] = (
                    halves.get((decision.shard, decision.offset), 0) + 1
                )
            else:
                assert header.base_offset >= cut_offset, "a marker of a later round is below D"
    assert all(count == 2 for count in halves.values()), halves
    assert set(halves) == set(committed)
    return len(halves)


async def test_T2_T9_every_tidemark_holds_each_transfer_whole_or_not_at_all(tmp_path: Path) -> None:
    async with primary_and_mirror(tmp_path) as (primary, mirror, leader, tasks):
        await primary.create_topic("accounts", ACCOUNTS)
        _ = mirror.mirror(tasks, await primary.listen())
        async with asyncio.TaskGroup() as work:
            enough = asyncio.Event()
            for number in range(6):
                work.create_task(transfer(primary, f"teller-{number}", number, enough))
            await until(lambda: leader.published.number >= TIDEMARKS, what="enough tidemarks")
            enough.set()
        await until(
            lambda: not owes_markers(primary.coordinator),
            what="all markers are written",
        )
        final = await leader.final_round()
        link = mirror.link
        await until(lambda: link.reached >= final, what="the last tidemark is reached")
        counts = [judge(primary, tidemark, cut) for tidemark, cut in tidemarks_of(primary)]
        assert counts == sorted(counts)
        assert len(counts) > TIDEMARKS
        assert len(set(counts)) > TIDEMARKS // 2
        assert [cut for _, cut in tidemarks_of(mirror)] == [cut for _, cut in tidemarks_of(primary)]
        assert mirror.tidemarks.claim() == primary.tidemarks.claim()
        for number in range(ACCOUNTS):
            ours, theirs = (
                mirror.partition("accounts", number),
                primary.partition("accounts", number),
            )
            assert ours.reader.read_raw(0, 1 << 26) == theirs.reader.read_raw(0, 1 << 26)
            assert ours.sight.last_stable_offset == theirs.sight.last_stable_offset


async def test_T10_a_new_cut_leader_goes_on_where_the_log_ends(tmp_path: Path) -> None:
    first = Site(tmp_path, "primary")
    async with running() as tasks:
        first.start(tasks)
        leader = await first.act(tasks)
        await first.create_topic("accounts", ACCOUNTS)
        await first.produce("accounts", b"a")
        last = await leader.final_round()
    first.partitions.close()
    second = Site(tmp_path, "primary", metadata=first.metadata, start_count=2)
    async with running() as tasks:
        second.start(tasks)
        leader = await second.act(tasks)
        assert leader.published >= last
        point = await leader.first_tidemark()
        assert point.number > last.number
        rounds = [tidemark.round for tidemark, _ in tidemarks_of(second)]
        assert rounds == sorted(set(rounds))
        book = read_book(
            TidemarkLog(second.partitions, ledgers_of(second.metadata.image)),
            ledgers_of(second.metadata.image),
            last,
        ).book
        assert book.known()[0] == last
