"""Transactions as administrators and brokers see them, over a real socket and a real coordinator.

Expected values come from KafkaApis.scala, TransactionCoordinator.scala, TransactionStateManager.scala,
UnifiedLog.scala and ClientMetricsManager.java (4.x), KIP-664, KIP-714, KIP-890, KIP-939, KIP-994, KIP-1050.
"""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from idempotency.java_hash import ledger_shard
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.handlers.dispatch.services import ForwardingFailed
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, wire_fixture
from tests.fixtures.transaction_port import (
    SHARDS,
    batch_of,
    begin,
    end,
    init,
    join,
    mirror_of,
    produce,
    txn_broker,
)

PRODUCE, WRITE_TXN_MARKERS, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 0, 27, 61, 65, 66
UNKNOWN_TOPIC, LOADING, UNSUPPORTED, INVALID_TOPIC, INVALID_REQUEST = 3, 14, 35, 17, 42
BAD_EPOCH, INVALID_TXN_STATE, BAD_MAPPING, COORDINATOR_FENCED = 47, 48, 49, 52
NOT_AUTHORIZED, NOT_ATTEMPTED, FENCED, ID_NOT_FOUND, ABORTABLE = 53, 55, 90, 105, 120


async def describe_producers(client: RawClient, *indexes: int, topic: str = "orders") -> Any:
    answer = await client.call(
        DESCRIBE_PRODUCERS, 0, {"topics": [{"name": topic, "partition_indexes": list(indexes)}]}
    )
    return answer.topics[0].partitions


async def describe(client: RawClient, *names: str) -> Any:
    answer = await client.call(DESCRIBE, 0, {"transactional_ids": list(names)})
    return answer.transaction_states


async def listed(client: RawClient, version: int = 1, **filters: Any) -> dict[str, str]:
    fields = {"state_filters": [], "producer_id_filters": []} | filters
    answer = await client.call(LIST, version, fields)
    assert answer.error_code == 0
    return {row.transactional_id: row.transaction_state for row in answer.transaction_states}


async def marker(
    client: RawClient,
    pair: tuple[int, int],
    *indexes: int,
    commit: bool = False,
    coordinator_epoch: int = 0,
    version: int = 1,
) -> list[int]:
    """WriteTxnMarkers as AbortTransactionHandler builds it; return the error per partition."""
    answer = await client.call(WRITE_TXN_MARKERS, version, {"markers": [{
        "producer_id": pair[0], "producer_epoch": pair[1], "transaction_result": commit,
        "topics": [{"name": "orders", "partition_indexes": list(indexes)}],
        "coordinator_epoch": coordinator_epoch,
    }]})  # fmt: skip
    (result,) = answer.markers
    assert result.producer_id == pair[0]
    (topic,) = result.topics
    assert [row.partition_index for row in topic.partitions] == list(indexes)
    return [int(row.error_code) for row in topic.partitions]


# --- DescribeProducers ----------------------------------------------------------------------------


async def test_KIP664_describe_producers_tells_sequence_epochs_and_the_open_transaction(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0)
        assert await produce(client, batch_of(pair, b"a", b"b")) == 0
        assert await produce(client, batch_of(pair, b"c", sequence=2)) == 0
        plain = int((await init(client, None)).producer_id)
        alone = batch_of((plain, 0), b"d", transactional=False)
        assert await produce(client, alone, name=None) == 0
        (row,) = await describe_producers(client, 0)
        assert (row.partition_index, row.error_code, row.error_message) == (0, 0, None)
        found = {state.producer_id: state for state in row.active_producers}
        assert set(found) == {pair[0], plain}
        state = found[pair[0]]
        assert (state.producer_epoch, state.last_sequence, state.last_timestamp) == (pair[1], 2, 1)
        # No marker yet: the coordinator's epoch is unknown here. The transaction begins at offset 0.
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (-1, 0)
        assert found[plain].current_txn_start_offset == -1
        assert found[plain].last_sequence == 0


async def test_KIP664_describe_producers_after_the_marker_knows_the_coordinator(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0)
        assert await produce(client, batch_of(pair, b"a")) == 0
        assert (await end(client, pair, commit=True)).error_code == 0
        await fixture.partition("orders").wait_committed(2)
        ((state,),) = [row.active_producers for row in await describe_producers(client, 0)]
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (LEADER_EPOCH, -1)


async def test_KIP664_describe_producers_refuses_by_partition(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        rows = await describe_producers(client, 0, 3, -1)
        assert [row.error_code for row in rows] == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
        assert [row.active_producers for row in rows] == [(), (), ()]
        (row,) = await describe_producers(client, 0, topic="no/such")
        assert row.error_code == INVALID_TOPIC
        (row,) = await describe_producers(client, 0, topic="nowhere")
        assert row.error_code == UNKNOWN_TOPIC


# --- DescribeTransactions, ListTransactions -------------------------------------------------------


async def test_KIP664_describe_transactions_tells_state_pair_and_partitions(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 2, 0)
        now_ms = fixture.services.clock.wall_ms()
        known, unknown, nameless = await describe(client, "t", "never", "")
        assert (known.error_code, known.transactional_id) == (0, "t")
        assert (known.transaction_state, known.producer_id, known.producer_epoch) == (
            "Ongoing", *pair
        )  # fmt: skip
        assert known.transaction_timeout.total_seconds() == 60
        started_ms = known.transaction_start_time.timestamp() * 1000
        assert now_ms - 60_000 < started_ms <= now_ms
        assert [(t.topic, set(t.partitions)) for t in known.topics] == [("orders", {0, 2})]
        assert (unknown.error_code, unknown.transactional_id) == (ID_NOT_FOUND, "never")
        assert nameless.error_code == INVALID_REQUEST
        assert (await end(client, pair, commit=False)).error_code == 0
        (ended,) = await describe(client, "t")
        assert ended.transaction_state in ("PrepareAbort", "CompleteAbort")


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_KIP664_list_transactions_filters_by_state_and_producer(
    tmp_path: Path, version: int
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        first = await begin(client, 0, name="open")
        idle = await init(client, "idle")
        everything = {"open": "Ongoing", "idle": "Empty"}
        assert await listed(client, version) == everything
        assert await listed(client, version, state_filters=["Ongoing"]) == {"open": "Ongoing"}
        assert await listed(client, version, state_filters=["Ongoing", "Empty"]) == everything
        assert await listed(client, version, producer_id_filters=[first[0]]) == {"open": "Ongoing"}
        both = {"state_filters": ["Empty"], "producer_id_filters": [first[0]]}
        assert await listed(client, version, **both) == {}
        assert await listed(client, version, producer_id_filters=[idle.producer_id, 77]) == {
            "idle": "Empty"
        }


async def test_KIP664_list_transactions_names_unknown_states_and_they_match_nothing(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        await begin(client, 0, name="open")
        fields = {"state_filters": ["ongoing", "Gone"], "producer_id_filters": []}
        answer = await client.call(LIST, 1, fields)
        assert answer.error_code == 0
        assert answer.unknown_state_filters == ("ongoing", "Gone")  # names are case sensitive
        assert answer.transaction_states == ()


async def test_KIP994_list_transactions_filters_by_duration(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        await begin(client, 0, name="open")
        assert await listed(client, duration_filter=-1) == {"open": "Ongoing"}
        assert await listed(client, duration_filter=3_600_000) == {}


async def test_KIP1152_list_transactions_filters_by_a_pattern_of_the_whole_id(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        for name in ("pay-1", "pay-22", "ship-1", "zahlung-ü"):
            await init(client, name)

        async def matching(pattern: str | None) -> set[str]:
            return set(await listed(client, 2, transactional_id_pattern=pattern))

        everything = {"pay-1", "pay-22", "ship-1", "zahlung-ü"}
        assert await matching(None) == everything
        assert await matching("") == everything
        assert await matching("pay-.*") == {"pay-1", "pay-22"}
        assert await matching("pay") == set()  # the whole id, as Matcher.matches
        assert await matching("(pay|ship)-1") == {"pay-1", "ship-1"}
        assert await matching("zahlung-.") == {"zahlung-ü"}
        assert await matching("(?:a*)*b") == set()
        for bad in ("pay-(", "(a)\\1", "*"):  # RE2 has no back references
            fields = {
                "state_filters": (),
                "producer_id_filters": (),
                "transactional_id_pattern": bad,
            }
            answer = await client.call(LIST, 2, fields)
            assert (answer.error_code, answer.transaction_states) == (128, ())


async def test_C23_listings_of_a_coordinator_that_does_not_serve_are_refused(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path, load=False) as (fixture, _txn):
        client = await fixture.connect()
        answer = await client.call(LIST, 1, {"state_filters": [], "producer_id_filters": []})
        assert (answer.error_code, answer.transaction_states) == (16, ())
        (state,) = await describe(client, "t")
        assert state.error_code == 16


# --- WriteTxnMarkers ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_B13_an_administrators_abort_ends_the_transaction_at_the_coordinator(
    tmp_path: Path, version: int
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0, 1)
        assert await produce(client, batch_of(pair, b"a")) == 0
        assert await produce(client, batch_of(pair, b"b"), 1) == 0
        # As kafka-transactions.sh: the pair and coordinator epoch that DescribeProducers told, one partition.
        assert await marker(client, pair, 0, version=version) == [0]
        for index in (
            0,
            1,
        ):  # INV-TN2, and all partitions of the transaction, not only the one named
            partition = fixture.partition("orders", index)
            assert partition.state.open_transactions() == []
            assert partition.sight.readable_end(Isolation.READ_COMMITTED) == 2
            (aborted,) = partition.state.aborted_in(0, 2, 2)
            assert aborted.producer_id == pair[0]
        (state,) = await describe(client, "t")
        assert (state.transaction_state, state.producer_epoch) == ("CompleteAbort", pair[1] + 1)
        # The producer can neither commit nor go on.
        assert (await end(client, pair, commit=True)).error_code == FENCED
        assert await join(client, pair, 0) == [FENCED]
        assert await produce(client, batch_of(pair, b"c", sequence=1)) == BAD_EPOCH
        assert await marker(client, (pair[0], pair[1] + 1), 0, version=version) == [
            COORDINATOR_FENCED
        ]


async def test_B13_a_transaction_that_no_transactional_id_knows_is_aborted(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        orphan = (4711, 3)
        fixture.partition("orders").writer.append(batch_of(orphan, b"lost"))
        assert await marker(client, orphan, 0) == [0]
        partition = fixture.partition("orders")
        assert partition.state.open_transactions() == []
        ((state,),) = [row.active_producers for row in await describe_producers(client, 0)]
        assert (state.producer_id, state.producer_epoch) == (4711, 4)
        assert (state.coordinator_epoch, state.current_txn_start_offset) == (LEADER_EPOCH, -1)
        assert await listed(client) == {}


async def test_B13_data_that_the_ledger_does_not_know_of_is_aborted_with_its_transactional_id(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0)
        assert (await end(client, pair, commit=True)).error_code == 0
        await fixture.partition("orders").wait_committed(1)
        fixture.partition("orders", 2).writer.append(batch_of(pair, b"hanging"))
        assert await marker(client, pair, 2) == [0]
        assert fixture.partition("orders", 2).state.open_transactions() == []
        (state,) = await describe(client, "t")
        assert (state.transaction_state, state.producer_epoch) == ("CompleteAbort", pair[1] + 1)


async def test_C30_C31_an_abort_by_an_old_epoch_or_coordinator_is_refused(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0)
        assert (await end(client, pair, commit=False)).error_code == 0
        again = await init(client, "t", producer_id=pair[0], producer_epoch=pair[1])
        newer = (int(again.producer_id), int(again.producer_epoch))
        assert newer == (pair[0], pair[1] + 1)
        assert await join(client, newer, 0) == [0]
        assert await produce(client, batch_of(newer, b"a")) == 0
        assert await marker(client, pair, 0, coordinator_epoch=LEADER_EPOCH) == [BAD_EPOCH]
        assert await marker(client, newer, 0, coordinator_epoch=0) == [COORDINATOR_FENCED]
        # An epoch that nobody was given yet is not believed either.
        future = (newer[0], newer[1] + 1)
        assert await marker(client, future, 0, coordinator_epoch=LEADER_EPOCH) == [BAD_EPOCH]
        assert fixture.partition("orders").state.open_transactions() != []
        assert await marker(client, newer, 0, coordinator_epoch=LEADER_EPOCH) == [0]


async def test_B13_nobody_commits_by_a_marker_and_nothing_open_is_success(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0)
        assert await produce(client, batch_of(pair, b"a")) == 0
        assert await marker(client, pair, 0, 7, commit=True) == [INVALID_REQUEST, UNKNOWN_TOPIC]
        assert await marker(client, pair, 1, 7) == [0, UNKNOWN_TOPIC]
        before = fixture.partition("orders").log_end_offset
        assert await marker(client, (99, 0), 0) == [0]
        assert fixture.partition("orders").log_end_offset == before
        assert (await end(client, pair, commit=True)).error_code == 0


async def test_several_markers_are_answered_one_by_one(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        markers = [
            {"producer_id": number, "producer_epoch": 0, "transaction_result": False,
             "topics": [{"name": "orders", "partition_indexes": [0]}], "coordinator_epoch": 0}
            for number in (5, 6)
        ]  # fmt: skip
        answer = await client.call(WRITE_TXN_MARKERS, 1, {"markers": markers})
        assert [result.producer_id for result in answer.markers] == [5, 6]
        assert (await client.call(WRITE_TXN_MARKERS, 1, {"markers": []})).markers == ()


# --- AddPartitionsToTxn v4, v5 --------------------------------------------------------------------


def asked_of(
    name: str, pair: tuple[int, int], *indexes: int, verify: bool, topic: str = "orders"
) -> dict[str, Any]:
    return {
        "transactional_id": name, "producer_id": pair[0], "producer_epoch": pair[1],
        "verify_only": verify, "topics": [{"name": topic, "partitions": list(indexes)}],
    }  # fmt: skip


async def added(client: RawClient, version: int, *asked: dict[str, Any]) -> dict[str, list[int]]:
    answer = await client.call(24, version, {"transactions": list(asked)})
    assert answer.error_code == 0
    return {
        result.transactional_id: [
            int(row.partition_error_code)
            for topic in result.topic_results
            for row in topic.results_by_partition
        ]
        for result in answer.results_by_transaction
    }


@pytest.mark.parametrize(("version", "missing"), [(4, INVALID_TXN_STATE), (5, ABORTABLE)])
async def test_C26_C27_a_batch_of_verifications_is_answered_per_transaction_and_partition(
    tmp_path: Path, version: int, missing: int
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        pair = await begin(client, 0, name="a")
        other = await begin(client, 1, name="b")
        errors = await added(
            client,
            version,
            asked_of("a", pair, 0, 2, verify=True),
            asked_of("b", (other[0] + 50, 0), 1, verify=True),
            asked_of("nobody", pair, 0, verify=True),
            asked_of("", pair, 0, verify=True),
        )
        assert errors == {
            "a": [0, missing], "b": [BAD_MAPPING], "nobody": [BAD_MAPPING], "": [INVALID_REQUEST],
        }  # fmt: skip
        stale = asked_of("b", (other[0], other[1] - 1), 1, verify=True)
        assert await added(client, version, stale) == {"b": [FENCED]}
        # Looking added nothing.
        (state,) = await describe(client, "a")
        assert [set(topic.partitions) for topic in state.topics] == [{0}]


@pytest.mark.parametrize("version", [4, 5])
async def test_C26_a_batch_of_adds_succeeds_and_fails_by_transaction(
    tmp_path: Path, version: int
) -> None:
    async with txn_broker(tmp_path) as (fixture, txn):
        client = await fixture.connect()
        given = await init(client, "a")
        pair = (int(given.producer_id), int(given.producer_epoch))
        other = await begin(client, 1, name="b")
        errors = await added(
            client,
            version,
            asked_of("a", pair, 0, 2, verify=False),
            asked_of("b", other, 1, 9, verify=False),
            asked_of("nobody", pair, 0, verify=False),
        )
        assert errors == {
            "a": [0, 0], "b": [NOT_ATTEMPTED, UNKNOWN_TOPIC], "nobody": [BAD_MAPPING]
        }  # fmt: skip
        for index in (0, 2):
            tp = fixture.partition("orders", index).tp
            assert (
                txn.clients.verify("a", ProducerId(pair[0]), ProducerEpoch(pair[1]), tp).name
                == "OK"
            )
        ledger = asked_of("b", other, 0, verify=False, topic=TRANSACTION_LEDGER)
        assert await added(client, version, ledger) == {"b": [29]}


async def test_add_partitions_in_a_region_that_cannot_reach_the_acting_one(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("the primary region is away")
        answer = await client.call(24, 5, {"transactions": [asked_of("t", (1, 0), 0, verify=True)]})
        assert (answer.error_code, answer.results_by_transaction) == (15, ())


# --- InitProducerId v6 ----------------------------------------------------------------------------


async def test_KIP939_two_phase_commit_is_refused_as_where_it_is_not_enabled(
    tmp_path: Path,
) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn):
        client = await fixture.connect()
        refused = await init(client, "t", 6, enable2_pc=True)
        assert (refused.error_code, refused.producer_id) == (NOT_AUTHORIZED, -1)
        both = await init(client, "t", 6, enable2_pc=True, keep_prepared_txn=True)
        assert both.error_code == NOT_AUTHORIZED
        kept = await init(client, "t", 6, keep_prepared_txn=True)
        assert (kept.error_code, kept.producer_epoch) == (UNSUPPORTED, -1)
        (state,) = await describe(client, "t")
        assert state.error_code == ID_NOT_FOUND  # nothing was created by a refused request
        plain = await init(client, "t", 6)
        assert (plain.error_code, plain.producer_epoch) == (0, 0)
        assert (plain.ongoing_txn_producer_id, plain.ongoing_txn_producer_epoch) == (-1, -1)
        assert (await init(client, "", 6, enable2_pc=True)).error_code == INVALID_REQUEST
        assert (await init(client, None, 6, enable2_pc=True)).error_code == 0


# --- telemetry ------------------------------------------------------------------------------------

ZERO, SOMEONE = None, UUID(int=7)


async def test_KIP714_no_metric_is_asked_for_and_the_client_is_named(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        fixture.region.acting = False  # answered by every region for itself
        first = await client.call(71, 0, {"client_instance_id": ZERO})
        assert (first.error_code, first.requested_metrics) == (0, ())
        assert first.client_instance_id not in (None, UUID(int=0))
        again = await client.call(71, 0, {"client_instance_id": SOMEONE})
        assert again.client_instance_id == SOMEONE
        # librdkafka multiplies by 1000 in 32 bits: more would turn into a storm of requests.
        interval_ms = again.push_interval.total_seconds() * 1000
        assert 300_000 <= interval_ms < 2**31 / 1000


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, 0),
        ({"terminating": True}, 0),
        ({"client_instance_id": ZERO}, INVALID_REQUEST),
        ({"subscription_id": 5}, 117),
        ({"compression_type": 9}, 76),
        ({"metrics": bytes(1024 * 1024 + 1)}, 118),
    ],
)
async def test_KIP714_what_is_pushed_is_checked_and_dropped(
    tmp_path: Path, changes: dict[str, Any], error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        given = await client.call(71, 0, {"client_instance_id": SOMEONE})
        push = {
            "client_instance_id": SOMEONE, "subscription_id": given.subscription_id,
            "terminating": False, "compression_type": 0, "metrics": b"x",
        }  # fmt: skip
        assert (await client.call(72, 0, push | changes)).error_code == error


# --- in a mirror region ---------------------------------------------------------------------------


async def test_a_mirror_forwards_every_one_of_them(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, _txn), mirror_of(fixture) as (port, _region):
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        pair = await begin(client, 0)
        assert await produce(client, batch_of(pair, b"a")) == 0
        ((state,),) = [row.active_producers for row in await describe_producers(client, 0)]
        assert (state.producer_id, state.current_txn_start_offset) == (pair[0], 0)
        assert await listed(client, 2, transactional_id_pattern="t") == {"t": "Ongoing"}
        verified = await added(client, 5, asked_of("t", pair, 0, 1, verify=True))
        assert verified == {"t": [0, ABORTABLE]}
        assert (await init(client, "t", 6, enable2_pc=True)).error_code == NOT_AUTHORIZED
        assert await marker(client, pair, 0) == [0]
        (described,) = await describe(client, "t")
        assert described.transaction_state == "CompleteAbort"
        assert fixture.partition("orders").state.open_transactions() == []
        client.writer.close()
        await client.writer.wait_closed()


async def test_INV_S6_nobody_locks_a_transactional_producer_out_of_a_partition_beforehand(
    tmp_path: Path,
) -> None:
    """1. Who may write to a topic has an id of its own. 2. It writes under those that come next. 3. One of them is given out."""
    async with txn_broker(tmp_path) as (fixture, _), asyncio.timeout(30):
        client = await fixture.connect()
        names = (f"other-{number}" for number in range(100))
        name = next(
            name for name in names if ledger_shard(name, SHARDS) == ledger_shard("t", SHARDS)
        )
        own, plain = await init(client), await init(client, None)
        for given, error in ((own, INVALID_TXN_STATE), (plain, 0)):
            batch = batch_of((given.producer_id + 1, 32_766), b"v", transactional=False)
            assert await produce(client, batch, name=None) == error
        pair = await begin(client, 0, name=name)
        assert pair[0] == own.producer_id + 1
        assert await produce(client, batch_of(pair, b"v"), name=name) == 0
        assert (await end(client, pair, commit=True, name=name)).error_code == 0
