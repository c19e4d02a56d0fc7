"""How loss statements are made: beside the event loop, and with each decision known before what its transaction staged."""

import threading
from pathlib import Path
from uuid import UUID

import pytest

from geo_replicator.lineage import EMPTY_CUT
from geo_replicator.loss import LossStatement, make_statement
from geo_replicator.quarantine import Provenance
from geo_replicator.tail import LostOffsets, Tail
from idempotency.identity import (
    NO_LEADER_EPOCH,
    OFFSETS_LEDGER,
    TRANSACTION_LEDGER,
    LogKey,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import (
    TxnStatus,
    encode_transaction_key,
    encode_transaction_value,
)
from region_broker.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.failover.log_surgery import quarantined_tail, stated_tail
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.steps import accepting, effects
from region_broker.region.peers.history_messages import AskBeyond
from tests.fixtures.coordinator import record
from tests.fixtures.failover_regions import ORDERS, Pair

LEDGER, OFFSETS = LogKey(UUID(int=2), 0), LogKey(UUID(int=1), 0)


async def test_INV_LO10_a_statement_is_made_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sorts what may be hundreds of thousands of rows: a leader that does so in a step of its loop is fenced."""
    made_in: list[threading.Thread] = []

    def noted(*args: object, **named: object) -> LossStatement:
        made_in.append(threading.current_thread())
        return make_statement(*args, **named)  # type: ignore[arg-type]

    for module in (effects, accepting):
        monkeypatch.setattr(module, "make_statement", noted)
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.us.operations.statement()
        beyond = AskBeyond(
            domain="main", region_epoch=RegionEpoch(17), for_region="us",
            positions={LogKey(pair.eu.partition(0, ORDERS).topic_id, 0).encode(): 0},
        )  # fmt: skip
        await accepting.state_beyond(pair.eu.driver.outlook, beyond)
    assert len(made_in) == 2
    assert threading.main_thread() not in made_in


def committed() -> bytes:
    """Return the decision that commits what producer 5 wrote under epoch 3."""
    decided = record(
        TxnStatus.PREPARE_COMMIT, 4, last_producer_epoch=ProducerEpoch(3), transactional_id="pay-1"
    )
    return build_batch([Record(encode_transaction_key("pay-1"), encode_transaction_value(decided))])


def staged(producer_epoch: int, committed_offset: int) -> bytes:
    """Return the batch by which producer 5 staged an offset for a group."""
    place = OffsetKey("readers", TopicPartition(TopicName("in"), 0))
    value = encode_offset_value(OffsetValue(committed_offset, NO_LEADER_EPOCH, "", 0))
    origin = Origin(
        ProducerId(5), ProducerEpoch(producer_epoch), SequenceNumber(0), transactional=True
    )
    return build_batch([Record(encode_offset_key(place), value)], origin=origin)


@pytest.mark.parametrize("is_stated", [True, False], ids=["stated", "listed"])
async def test_INV_LO10_a_decision_is_known_before_what_its_transaction_staged_wherever_they_lie(
    tmp_path: Path, is_stated: bool
) -> None:
    store = QuarantineStore(RealDisk(), tmp_path / "quarantine")
    tails: list[Provenance] = []
    for key, topic, batches in (
        (OFFSETS, OFFSETS_LEDGER, [staged(3, 42)]),
        (LogKey(OFFSETS.topic_id, 1), OFFSETS_LEDGER, [staged(4, 99)]),
        (LEDGER, TRANSACTION_LEDGER, [committed()]),
    ):
        named = Provenance(
            domain="main", topic=topic, topic_id=key.topic_id, partition=key.partition,
            lineage_epoch=RegionEpoch(17), first_offset=0, last_offset=0, region="us",
            region_epoch=RegionEpoch(8), acting_region="us", base_region_epoch=RegionEpoch(8),
            base_number=5, byte_count=0, batch_count=0, crc32c=0, moved_wall_ms=9,
        )  # fmt: skip
        tails.append(await store.move_in(named, lambda _offset, batches=batches: b"".join(batches)))  # type: ignore[misc]
    tail: Tail
    if is_stated:
        tail = await stated_tail([], EMPTY_CUT, store, tails)
    else:
        tail = await quarantined_tail(store, tails)
    (lost,) = tail.offsets()
    assert lost == LostOffsets(
        group_id="readers", topic="in", partition=0, commit_count=1, last_offset=42
    )
