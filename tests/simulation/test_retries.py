"""A producer whose answer was lost asks again at the region that took over: original offset, or appended once.

Protocol level: batches with producer ids and sequences of our own choosing, sent to two whole nodes.
"""

from pathlib import Path

import pytest

from idempotency.identity import ProducerPair
from tests.simulation.cut_judge import batches_of
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of
from tests.simulation.region_pair import Pair, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
TOPIC = "orders"
IN_FLIGHT = 5


async def connect(pair: Pair, region: str) -> Connection:
    return await Connection.open(pair.fabric.site("client"), pair.regions[region].kafka_port)


async def send(connection: Connection, producer: ProducerPair, sequence: int) -> int:
    batch = batch_of(b"value %d" % sequence, producer, sequence, transactional=False)
    return (await connection.produce(TOPIC, {0: batch}))[0]


async def mirrored(pair: Pair, end: int) -> None:
    """Wait until a tidemark over everything below `end` is reached."""
    await pair.until(
        lambda: pair.us.partition(TOPIC, 0).sight.visible_end >= end,
        f"{end} records are shown in us",
    )


@pytest.mark.parametrize("reached", range(IN_FLIGHT + 1))
async def test_G3_what_was_mirrored_keeps_its_offset_and_the_rest_is_appended_once(
    tmp_path: Path, reached: int
) -> None:
    async with region_pair(tmp_path, seed=reached) as pair:
        await pair.create_topic(TOPIC, 1)
        primary = await connect(pair, "eu")
        producer = await primary.init_producer_id(None)
        other = await primary.init_producer_id(None)
        assert await send(primary, other, 0) == 0
        for sequence in range(reached):
            assert await send(primary, producer, sequence) == 1 + sequence
        await mirrored(pair, 1 + reached)
        pair.fabric.cut("eu", "us")
        for sequence in range(reached, IN_FLIGHT):
            assert await send(primary, producer, sequence) == 1 + sequence
        await pair.eu.kill()
        await pair.fail_over()
        taken = await connect(pair, "us")
        assert (
            await send(taken, other, 1) == 1 + reached
        )  # so that offsets differ from the primary's
        expected = [*range(1, 1 + reached), *range(2 + reached, 2 + IN_FLIGHT)]
        # The client has no answer to any of the five, sends all again, loses the answers, and again.
        for _ in range(2):
            found = [await send(taken, producer, sequence) for sequence in range(IN_FLIGHT)]
            assert found == expected
        values = [
            value
            for batch in batches_of(pair.us.partition(TOPIC, 0))
            if batch.producer_id == producer[0]
            for _, value in batch.values
        ]
        assert values == [b"value %d" % sequence for sequence in range(IN_FLIGHT)]


async def test_T22_one_gap_of_acknowledged_losses_is_accepted_and_no_second_one(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        primary = await connect(pair, "eu")
        producer = await primary.init_producer_id(None)
        assert await send(primary, producer, 0) == 0
        await mirrored(pair, 1)
        pair.fabric.cut("eu", "us")
        assert [await send(primary, producer, sequence) for sequence in (1, 2)] == [1, 2]
        await pair.eu.kill()
        await pair.fail_over()
        taken = await connect(pair, "us")
        # 1 and 2 were acknowledged: the client goes on with 3.
        assert await send(taken, producer, 3) == 1
        with pytest.raises(Refused, match="out_of_order_sequence_number"):
            await send(taken, producer, 5)
        assert await send(taken, producer, 4) == 2
        pair.fabric.heal("eu", "us")
        await pair.eu.start()
        await pair.until(lambda: pair.eu.node.role.mirrors, "the primary mirrors")
        (losses,) = await pair.eu.node.operations.losses()
        lost = [(each.first_sequence, each.last_sequence) for each in losses.records]
        assert lost == [(1, 2)]
        assert losses.plain_record_count == 2


async def commit_unanswered(pair: Pair, name: str, *, tv2: bool) -> ProducerPair:
    """Commit a transaction of two records at the primary; return the producer as its client still knows it."""
    primary = await connect(pair, "eu")
    producer = await primary.init_producer_id(name)
    if not tv2:
        await primary.add_partitions(name, producer, TOPIC, [0, 1])
    for number in (0, 1):
        batch = batch_of(name.encode(), producer, 0, transactional=True)
        await primary.produce(TOPIC, {number: batch}, transactional_id=name, tv2=tv2)
    await primary.end_txn(name, producer, commit=True, tv2=tv2)
    return producer


@pytest.mark.parametrize("tv2", [True, False])
@pytest.mark.parametrize("covered", [True, False])
async def test_T22_a_commit_repeated_at_the_new_region_is_never_answered_wrongly(
    tmp_path: Path, tv2: bool, covered: bool
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 2)
        if not covered:
            pair.fabric.cut("eu", "us")
        producer = await commit_unanswered(pair, "pay", tv2=tv2)
        if covered:
            await pair.until(
                lambda: all(
                    pair.us.partition(TOPIC, n).sight.last_stable_offset >= 2 for n in (0, 1)
                ),
                "the transaction is shown in us",
            )  # fmt: skip
        await pair.eu.kill()
        await pair.fail_over()
        taken = await connect(pair, "us")
        if covered and tv2:
            # The epoch names the transaction (KIP-890): the answer comes from the ledger.
            await taken.end_txn("pay", producer, commit=True, tv2=True)
        else:
            # TV1: a retry for this one and the first EndTxn of a lost next one look the same.
            with pytest.raises(Refused):
                await taken.end_txn("pay", producer, commit=True, tv2=tv2)
        batch = batch_of(b"late", producer, 1, transactional=True)
        with pytest.raises(Refused):  # fenced, lazily
            await taken.produce(TOPIC, {0: batch}, transactional_id="pay", tv2=tv2)
        new = await taken.init_producer_id("pay")
        assert new[0] != producer[0]
        reader = Reader(TOPIC, 2, committed=True)
        await reader.read(taken)
        assert [value for _, _, value in reader.records] == [b"pay"] * (2 if covered else 0)


@pytest.mark.parametrize("mirrored_first", [True, False])
async def test_T22_a_TV2_client_goes_on_with_the_pair_that_its_abort_answers(
    tmp_path: Path, mirrored_first: bool
) -> None:
    """As Java 4 and franz-go do: an abortable error, EndTxn(abort), and the next transaction; no InitProducerId."""
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        primary = await connect(pair, "eu")
        producer = await primary.init_producer_id("app")
        await primary.produce(
            TOPIC, {0: batch_of(b"whole", producer, 0, transactional=True)},
            transactional_id="app", tv2=True,
        )  # fmt: skip
        producer = await primary.end_txn("app", producer, commit=True, tv2=True)
        await pair.until(
            lambda: pair.us.partition(TOPIC, 0).sight.last_stable_offset >= 2, "it is shown"
        )
        if not mirrored_first:
            pair.fabric.cut("eu", "us")
        half = batch_of(b"half", producer, 0, transactional=True)
        await primary.produce(TOPIC, {0: half}, transactional_id="app", tv2=True)
        if mirrored_first:
            await mirrored(pair, 3)
        await pair.eu.kill()
        await pair.fail_over()
        taken = await connect(pair, "us")
        next_half = batch_of(b"half", producer, 1, transactional=True)
        with pytest.raises(Refused, match="transaction_abortable"):
            await taken.produce(TOPIC, {0: next_half}, transactional_id="app", tv2=True)
        producer = await taken.end_txn("app", producer, commit=False, tv2=True)
        again = batch_of(b"again", producer, 0, transactional=True)
        await taken.produce(TOPIC, {0: again}, transactional_id="app", tv2=True)
        await taken.end_txn("app", producer, commit=True, tv2=True)
        reader = Reader(TOPIC, 1, committed=True)
        while [value for _, _, value in reader.records] != [b"whole", b"again"]:
            await reader.read(taken, wait_ms=5)
