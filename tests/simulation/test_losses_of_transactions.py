"""A region is lost with a consume-transform-produce transaction in it: what is told of its records and of its group.

Protocol level: the requests of a client of either generation, sent to two whole nodes.
"""

from pathlib import Path

import pytest

from geo_replicator.counted_losses import Losses
from geo_replicator.tail import LostOffsets
from idempotency.identity import ProducerPair
from tests.simulation.kafka_client import Connection, Refused, batch_of, patiently
from tests.simulation.region_pair import Pair, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
ADD_OFFSETS, TXN_OFFSET_COMMIT = 25, 28
TOPIC, GROUP, NAME = "orders", "readers", "app"


class Processor:
    """A client of one generation: what it takes from `in` it writes to TOPIC, with the group's offset in the same transaction."""

    def __init__(self, connection: Connection, producer: ProducerPair, *, tv2: bool) -> None:
        self._connection = connection
        self._tv2 = tv2
        self._sequence = 0
        self.producer = producer

    async def write(self, offset: int) -> None:
        """Write a record, and stage `offset`."""
        connection = self._connection
        batch = batch_of(b"made", self.producer, self._sequence, transactional=True)
        if not self._tv2:
            await patiently(lambda: connection.add_partitions(NAME, self.producer, TOPIC, [0]))
        await patiently(
            lambda: connection.produce(TOPIC, {0: batch}, transactional_id=NAME, tv2=self._tv2)
        )
        self._sequence += 1
        who = {"transactional_id": NAME, "producer_id": self.producer[0], "producer_epoch": self.producer[1],
               "group_id": GROUP}  # fmt: skip
        if not self._tv2:
            added = await connection.call(ADD_OFFSETS, 3, who)
            assert not added.error_code.value, added
        row = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1,
               "committed_metadata": ""}  # fmt: skip
        answer = await connection.call(
            TXN_OFFSET_COMMIT, 5 if self._tv2 else 3,
            {**who, "generation_id": -1, "member_id": "", "group_instance_id": None,
             "topics": [{"name": TOPIC, "partitions": [row]}]},
        )  # fmt: skip
        ((part,),) = [topic.partitions for topic in answer.topics]
        if part.error_code.value:
            raise Refused("TxnOffsetCommit", part.error_code)

    async def commit(self) -> None:
        """Commit; a TV2 client goes on with the next epoch, and its sequences begin anew (KIP-890)."""
        before = self.producer
        self.producer = await self._connection.end_txn(NAME, before, commit=True, tv2=self._tv2)
        if self.producer != before:
            self._sequence = 0


async def processor(pair: Pair, *, tv2: bool) -> Processor:
    connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
    return Processor(connection, await connection.init_producer_id(NAME), tv2=tv2)


async def losses_of_eu(pair: Pair) -> Losses:
    """Lose eu, let us act, and let eu return; return what eu then says it lost."""
    await pair.eu.kill()
    await pair.fail_over()
    pair.fabric.heal("eu", "us")
    await pair.eu.start()
    await pair.until(lambda: pair.eu.node.role.mirrors, "the primary mirrors")
    (losses,) = await pair.eu.node.operations.losses()
    return losses


@pytest.mark.parametrize("tv2", [True, False])
async def test_INV_LO2_what_a_lost_transaction_committed_of_a_group_is_named_and_its_records_are_committed(
    tmp_path: Path, tv2: bool
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        pair.fabric.cut("eu", "us")
        client = await processor(pair, tv2=tv2)
        written_as = client.producer
        await client.write(42)
        await client.commit()
        losses = await losses_of_eu(pair)
        (lost,) = losses.transactions
        (found,) = losses.records
        assert (found.committed, found.record_count) == (True, 1)
        assert written_as == (lost.producer_id, lost.producer_epoch)
        assert written_as == (found.producer_id, found.producer_epoch)
        assert losses.offsets == (
            LostOffsets(group_id=GROUP, topic=TOPIC, partition=0, commit_count=1, last_offset=42),
        )
        assert losses.offset_commit_count == 1
        assert losses.unexplained == ()


async def test_INV_LO2_what_is_open_behind_a_lost_commit_of_a_TV2_client_is_not_told_as_committed(
    tmp_path: Path,
) -> None:
    """It has the epoch that the commit's ledger record has."""
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        pair.fabric.cut("eu", "us")
        client = await processor(pair, tv2=True)
        await client.write(42)
        await client.commit()
        await client.write(99)
        losses = await losses_of_eu(pair)
        assert [(each.committed, each.record_count) for each in losses.records] == [
            (True, 1), (False, 1)
        ]  # fmt: skip
        assert [(each.commit_count, each.last_offset) for each in losses.offsets] == [(1, 42)]
        assert [each.transactional_id for each in losses.transactions] == [NAME]


async def test_INV_LO2_a_statement_names_what_was_copied_of_a_TV2_clients_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        reached = pair.us.node.tidemarks.claim()
        monkeypatch.setattr(pair.us.node.tidemarks, "claim", lambda: reached)
        client = await processor(pair, tv2=True)
        await client.write(42)
        await client.commit()
        await client.write(99)
        log = pair.us.partition(TOPIC, 0)
        await pair.until(lambda: log.log_end_offset == 3, "two records and a marker are copied")
        stated = await pair.us.node.operations.statement()
        assert [each.transactional_id for each in stated.transactions] == [NAME]
        assert [(each.commit_count, each.last_offset) for each in stated.offsets] == [(1, 42)]
