"""Members that process in transactions: what they write, and the offset of what they read, go in together (KIP-447).

One transactional id for each member, and its generation or epoch in TxnOffsetCommit: what fences a member fences its
transaction. TV1, as in `swarm.processor`. After any failure the producer begins anew, and the position is asked again.
"""

from collections.abc import Sequence
from typing import Any, Final

from typing_extensions import override

from chaos.judges.groups import GroupCommit
from idempotency.identity import ProducerPair, SequenceNumber
from region_broker.records.batches import Origin, Record, build_batch
from tests.simulation.kafka_client import Connection, Refused, patiently
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.swarm.processor import ADD_OFFSETS, TXN_OFFSET_COMMIT
from tests.simulation.swarm.workloads.members import UNKNOWN, ClassicMember, Member, ModernMember
from tests.simulation.swarm.workloads.setting import now_s

REST_S: Final = 0.05
DONE: Final = b"done "


class ExactMember(Member):
    """Commits offsets in transactions, with what it made of the records."""

    output = ""
    """The topic that it writes to, with the partitions of the one that it reads."""
    _producer: ProducerPair | None = None

    @override
    def gave_up(self) -> None:
        super().gave_up()
        self._forget()

    @override
    async def run(self) -> None:
        await super().run()
        await self.fence()

    @override
    async def step(self, connection: Connection) -> None:
        if (
            self._producer is None
        ):  # which ends what was left open, before anybody waits for its offsets
            self._producer = await connection.init_producer_id(self.name)
            self._sequences = dict[int, int]()
        await super().step(connection)

    def _forget(self) -> None:
        self._producer = None
        self.positions = dict.fromkeys(self.positions, UNKNOWN)

    @override
    async def finish(
        self, connection: Connection, partition: int, _values: Sequence[bytes], offset: int
    ) -> None:
        try:
            await self._transaction(connection, partition, _values, offset)
        except Refused:
            self._forget()
            raise

    async def _transaction(
        self, connection: Connection, partition: int, values: Sequence[bytes], offset: int
    ) -> None:
        producer = self._producer
        assert producer is not None
        await patiently(
            lambda: connection.add_partitions(self.name, producer, self.output, [partition]),
            rest_s=REST_S,
        )
        sequence = self._sequences.get(partition, 0)
        records = [
            Record(None, DONE + value, timestamp_ms=LoopClock().wall_ms()) for value in values
        ]
        batch = build_batch(
            records, origin=Origin(*producer, SequenceNumber(sequence), transactional=True)
        )
        await connection.produce(self.output, {partition: batch}, transactional_id=self.name)
        self._sequences[partition] = sequence + len(records)
        sent_s = now_s()
        await self._stage(connection, producer, partition, offset)
        await connection.end_txn(self.name, producer, commit=True, tv2=False)
        self.commits.append(
            GroupCommit(self.label, partition, offset, sent_s, now_s(), self.region)
        )

    async def _stage(
        self, connection: Connection, producer: ProducerPair, partition: int, offset: int
    ) -> None:
        who: dict[str, Any] = {
            "transactional_id": self.name, "producer_id": producer[0], "producer_epoch": producer[1],
            "group_id": self.group,
        }  # fmt: skip
        added = await connection.call(ADD_OFFSETS, 3, who)
        if added.error_code.value:
            raise Refused("AddOffsetsToTxn", added.error_code)
        row = {"partition_index": partition, "committed_offset": offset,
               "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip
        answer = await connection.call(
            TXN_OFFSET_COMMIT, 3,
            {**who, "generation_id": self.epoch, "member_id": self.member_id, "group_instance_id": None,
             "topics": [{"name": self.topic, "partitions": [row]}]},
        )  # fmt: skip
        code = answer.topics[0].partitions[0].error_code
        if code.value:
            raise Refused("TxnOffsetCommit", code)

    _sequences: dict[int, int]


class ExactClassicMember(ExactMember, ClassicMember):
    """In a classic group."""


class ExactModernMember(ExactMember, ModernMember):
    """In a group of KIP-848."""
