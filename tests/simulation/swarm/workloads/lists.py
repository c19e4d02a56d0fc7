"""List-append transactions: each appends unique values to some lists and reads others, one list a partition.

A client is TV1 or TV2 by chance. It follows the Java client where that is strict (TransactionManager.java of Kafka 4.1):
an answer that is not to be tried again ends the transaction, and the producer begins anew with InitProducerId, which
fences and aborts what was open; under TV2 the pair that EndTxn answers is the one to go on with, sequences from 0.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from typing_extensions import override

from chaos.history import Outcome
from chaos.judges.lists import NEVER, Append, ListHistory, ListRead, ListTxn, judge_lists
from idempotency.identity import ProducerPair
from region_broker.records.batches import Record
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of, patiently
from tests.simulation.swarm.workloads.setting import End, Load, Setting, TopicPlan, Visitor, now_s

TOPIC: Final = "lists"
LISTS: Final = 3
STEPS_MAX: Final = 4
ABORT_SHARE: Final = 0.15
EVERYWHERE: Final = "everywhere"
Entry = tuple[int, str]


class _ListReader(Reader):
    """Reads on from a position of one list."""

    def __init__(self, key: int, position: int) -> None:
        self.shown: list[Entry] = []
        super().__init__(TOPIC, LISTS, committed=True)
        self.positions = {key: position}

    @override
    def keep(self, partition: int, record: Record) -> None:
        self.shown.append((record.offset, (record.value or b"").decode()))


class Appender(Visitor):
    """One transactional id, with one transaction after the other."""

    def __init__(self, setting: Setting, name: str) -> None:
        """Talk to one region, or to all."""
        reach = setting.reach if name == EVERYWHERE else setting.reach.only(name)
        super().__init__(reach, f"appender-{name}", setting.drawn())
        self.rest_s = 2 * setting.pace_s
        self.txns: list[ListTxn] = []
        self.reads: list[ListRead] = []
        self._tv2 = self.chance.random() < 0.5
        self._producer: ProducerPair | None = None
        self._sequences: dict[int, int] = {}
        self._positions: dict[tuple[str, int], int] = {}

    @override
    async def run(self) -> None:
        await super().run()
        await self.fence()

    @override
    def gave_up(self) -> None:
        self._producer = None

    @override
    async def step(self, connection: Connection) -> None:
        if self._producer is None:
            self._producer = await connection.init_producer_id(self.name)
            self._sequences.clear()
        name = f"{self.name}.{len(self.txns)}"
        txn = ListTxn(name, self.region, now_s(), NEVER, NEVER, Outcome.NOT_COMMITTED, ())
        self.txns.append(txn)
        for _ in range(self.chance.randint(1, STEPS_MAX)):
            key = self.chance.randrange(LISTS)
            if self.chance.random() < 0.4:
                await self._read(connection, key)
            else:
                await self._append(connection, key)
        if self.txns[-1].appends:
            await self._end(connection, commit=self.chance.random() >= ABORT_SHARE)

    async def _read(self, connection: Connection, key: int) -> None:
        at, asked_s = (self.region, key), now_s()
        reader = _ListReader(key, self._positions.get(at, 0))
        try:
            await reader.read(connection)
        except Refused as refused:
            if refused.code.name == "offset_out_of_range":
                self._positions.pop(at, None)
            raise
        self.reads.append(
            ListRead(
                self.region, key, asked_s, now_s(), self._positions.get(at, 0), reader.positions[key],
                reader.shown, self.txns[-1].name,
            )
        )  # fmt: skip
        self._positions[at] = reader.positions[key]

    async def _append(self, connection: Connection, key: int) -> None:
        producer, txn = self._producer, self.txns[-1]
        assert producer is not None
        value = f"{txn.name}/{len(txn.appends)}"
        if not self._tv2:
            await patiently(
                lambda: connection.add_partitions(self.name, producer, TOPIC, [key]), rest_s=0.05
            )
        sequence = self._sequences.get(key, 0)
        batch = batch_of(value.encode(), producer, sequence, transactional=True)
        offsets = await patiently(
            lambda: connection.produce(
                TOPIC, {key: batch}, transactional_id=self.name, tv2=self._tv2
            ),
            rest_s=0.05,
        )
        self._sequences[key] = sequence + 1
        append = Append(key, value, offsets[key], now_s())
        self.txns[-1] = replace(txn, appends=(*txn.appends, append))

    async def _end(self, connection: Connection, *, commit: bool) -> None:
        assert self._producer is not None
        if commit:
            self.txns[-1] = replace(self.txns[-1], commit_asked_s=now_s(), outcome=Outcome.UNKNOWN)
        producer = await connection.end_txn(self.name, self._producer, commit=commit, tv2=self._tv2)
        if commit:
            self.txns[-1] = replace(self.txns[-1], ended_s=now_s(), outcome=Outcome.COMMITTED)
        if producer != self._producer:
            self._producer = producer
            self._sequences.clear()

    def committed(self) -> int:
        """Return how many commits were answered."""
        return sum(txn.outcome is Outcome.COMMITTED for txn in self.txns)


class ListsLoad(Load):
    """An appender at each region, and one that talks to all."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `start`."""
        super().__init__(TopicPlan(name=TOPIC, partitions=LISTS))
        self._appenders = [Appender(setting, name) for name in (*setting.reach.regions, EVERYWHERE)]
        self.clients += self._appenders

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {each.name: each.committed() for each in self._appenders}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {each.name: each.last_error for each in self._appenders}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {"reads of lists": sum(len(each.reads) for each in self._appenders)}

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        final: dict[str, dict[int, list[Entry]]] = {}
        for region in end.reach.regions:
            lists: dict[int, list[Entry]] = {key: [] for key in range(LISTS)}
            for key, record in await end.records(region, TOPIC, LISTS):
                lists[key].append((record.offset, (record.value or b"").decode()))
            final[region] = lists
        txns = [txn for each in self._appenders for txn in each.txns]
        reads = [read for each in self._appenders for read in each.reads]
        return judge_lists(ListHistory(TOPIC, txns, reads, final), end.excuse)
