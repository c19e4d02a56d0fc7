"""The node's gauges and the event loop's lag."""

import asyncio
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from idempotency.fencing import leader_epoch, next_region_epoch
from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.ledger_records import TxnStatus
from region_broker.node.gauges import GaugeSources, LoopWatch, NodeCollector
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import Fixture, ManualClock, batch, fixture
from txn_coordinator.verdicts import TxnVerdict


def rendered(
    *,
    groups: tuple[str, ...] = (),
    txns: Mapping[TxnStatus, int] | TxnVerdict = TxnVerdict.NOT_COORDINATOR,
    primary: Fixture | None = None,
) -> str:
    primary = primary or fixture()
    primary.partition.writer.append(batch())
    primary.partition.writer.append(
        batch(origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(0), transactional=True))
    )
    primary.sync()
    registry = CollectorRegistry()
    sources = GaugeSources(
        partitions=primary.table,
        transactions=lambda: txns,
        group_states=lambda: groups,
        offsets=lambda: {"taken": 11, "refused": 12},
        held_back=lambda: {"logs": 2, "ms": 30, "splits": 1},
        scrub=lambda: {
            "bytes": 9, "passes": 2, "oldest_look_ms": 70, "damaged_ranges": 3, "mended_ranges": 4,
        },
    )  # fmt: skip
    registry.register(NodeCollector(sources))
    return generate_latest(registry).decode()


def test_states_are_counted_and_those_without_any_are_zero() -> None:
    txns = {**dict.fromkeys(TxnStatus, 0), TxnStatus.ONGOING: 1}
    text = rendered(groups=("Stable", "Stable", "Empty"), txns=txns)
    assert 'tidemark_groups{state="Stable"} 2.0' in text
    assert 'tidemark_groups{state="Dead"} 0.0' in text
    assert 'tidemark_transactions{state="ongoing"} 1.0' in text
    assert 'tidemark_transactions{state="prepare_abort"} 0.0' in text


def test_INV_TN3_where_no_coordinator_can_say_how_many_transactions_there_are_no_number_is_shown() -> (
    None
):
    assert "tidemark_transactions{" not in rendered(txns=TxnVerdict.UNAVAILABLE)


def test_INV_GOR1_what_offsets_of_groups_take_and_how_many_were_refused_is_shown() -> None:
    text = rendered()
    assert "tidemark_committed_offsets 11.0" in text
    assert "tidemark_refused_offsets 12.0" in text


def test_what_a_mirror_holds_back_is_shown() -> None:
    text = rendered()
    assert "tidemark_held_back_logs 2.0" in text
    assert "tidemark_held_back_ms 30.0" in text


def test_what_the_scrubber_has_done_and_found_is_shown() -> None:
    text = rendered()
    assert "tidemark_scrub_bytes 9.0" in text
    assert "tidemark_scrub_passes 2.0" in text
    assert "tidemark_scrub_oldest_look_ms 70.0" in text
    assert "tidemark_scrub_damaged_ranges 3.0" in text
    assert "tidemark_scrub_mended_ranges 4.0" in text


def test_partitions_and_their_bytes_are_counted() -> None:
    text = rendered()
    assert "tidemark_partitions 1.0" in text
    assert "tidemark_partitions_failed 0.0" in text
    assert "tidemark_log_bytes 0.0" not in text
    assert "tidemark_cold_read_bytes 0.0" in text
    assert "tidemark_cold_reads_waited 0.0" in text
    assert "tidemark_undecided_records 1.0" in text
    assert "tidemark_producers 0.0" in text
    assert "tidemark_kept_deletions 0.0" in text
    assert "tidemark_kept_deletions_bytes 0.0" in text


def test_T22_records_that_a_plain_producer_lost_in_a_failover_are_counted() -> None:
    primary = fixture()
    primary.partition.writer.append(
        batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
    )
    primary.partition.become_leader(
        leader_epoch(next_region_epoch(primary.partition.sight.leader_epoch >> 16, 1), 0)
    )
    primary.partition.state.allow_gap_once()
    assert "tidemark_gap_records 0.0" in rendered(primary=primary)
    primary.partition.writer.append(
        batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(5)))
    )  # 1 to 4 were lost with the old region
    assert "tidemark_gap_records 4.0" in rendered(primary=primary)


async def test_a_loop_that_comes_back_late_is_observed() -> None:
    clock, registry = ManualClock(), CollectorRegistry()
    lag_s = Histogram("lag_seconds", "lag", registry=registry, buckets=(0.05, 1.0))
    watching = asyncio.get_running_loop().create_task(LoopWatch(clock, lag_s).run())
    await asyncio.sleep(0)
    clock.pass_ms(350)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    watching.cancel()
    assert registry.get_sample_value("lag_seconds_sum") == 0.25
    assert registry.get_sample_value("lag_seconds_bucket", {"le": "0.05"}) == 0.0
