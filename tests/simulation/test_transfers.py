"""Transfers between accounts keep their sum at every tidemark, and after a failover at any of them.

Each seed is one life of a pair of regions: tellers on both, links that break, the primary killed, without power or cut
off at a random moment, a failover at whatever tidemark was reached then, and the old region's return. To run
one seed: `pytest tests/simulation/test_transfers.py -k "[17]"`.
"""

import asyncio
import enum
import random
from collections import Counter
from pathlib import Path

import pytest

from chaos.checker import check
from chaos.history import History, Seen, seen
from geo_replicator.failover import CutLogs, Phase, State
from geo_replicator.failover_events import Event
from geo_replicator.lineage import LogKey
from region_broker.node import Node
from region_broker.partitions.partition import Partition
from tests.fixtures.coordinator_driver import owes_markers
from tests.simulation.bank import ACCOUNTS, TOPIC, Bank, Teller
from tests.simulation.cut_judge import kept_at_each, whole
from tests.simulation.kafka_client import DAY_MS, Connection, Reader, Refused
from tests.simulation.mirror_audit import EndsAtEachShow, audit_by_wire, expect_whole
from tests.simulation.region_pair import Pair, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
SEEDS = 16
TELLERS = 3


class Disaster(enum.Enum):
    """What becomes of the primary."""

    KILLED = enum.auto()
    WITHOUT_POWER = enum.auto()
    CUT_OFF_THEN_KILLED = enum.auto()
    CUT_OFF = enum.auto()
    NONE = enum.auto()
    """A planned switch."""


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_transfers_survive(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    chance = random.Random(seed)
    delay_ms_max = chance.choice([0.0, 0.0, 1.0, 3.0])
    async with region_pair(tmp_path, seed, delay_ms_max=delay_ms_max) as pair:
        await Life(pair, chance).run()


class Life:
    """One run."""

    def __init__(self, pair: Pair, chance: random.Random) -> None:
        self.pair, self.chance = pair, chance
        self.bank = Bank(pair)
        self.disaster = chance.choice(list(Disaster))
        self.readers = [Reader(TOPIC, ACCOUNTS, committed=kind) for kind in (True, False)]
        self.tails: dict[LogKey, tuple[int, bytes]] = {}

    async def run(self) -> None:
        await self.pair.create_topic(TOPIC, ACCOUNTS)
        tellers = [
            Teller(self.bank, f"teller-{n}", random.Random(self.chance.random()))
            for n in range(TELLERS)
        ]
        async with asyncio.TaskGroup() as tasks:
            for teller in tellers:
                tasks.create_task(teller.run())
            reading = tasks.create_task(self.read_on_the_mirror())
            auditing = tasks.create_task(audit_by_wire(self.pair))
            ends = EndsAtEachShow(self.pair.us)
            ends.listen()
            await self.trouble()
            await self.disaster_strikes()
            print(f"{ends.judge()} different ends for readers of the mirror")
            auditing.cancel()
            self.note_tails_at_the_cut(self.pair.eu.node)
            shown = [list(reader.records) for reader in self.readers]
            self.judge_every_tidemark()
            await self.pair.take_over(planned=self.disaster is Disaster.NONE)
            self.bank.switched = self.disaster is Disaster.NONE
            await self.commits(1, self.chance.randrange(2, 10))
            await self.primary_returns()
            await self.commits(1, self.bank.committed(1) + 3)
            self.bank.closed.set()
            reading.cancel()
        await self.settle()
        await self.judge(shown)

    async def commits(self, term: int, count: int) -> None:
        await self.pair.until(
            lambda: self.bank.committed(term) >= count, f"{count} commits in term {term}"
        )

    async def trouble(self) -> None:
        """Break the link and set the clocks now and then, until a random number of commits."""
        wanted = self.chance.randrange(3, 40)
        for _ in range(self.chance.randrange(3)):
            for region in self.pair.regions.values():
                region.wall.off_ms = self.chance.choice((0, 2 * DAY_MS))
            await self.commits(0, self.bank.committed(0) + self.chance.randrange(1, 6))
            if self.chance.random() < 0.5:
                self.pair.fabric.drop("eu", "us")
            else:
                self.pair.fabric.cut("eu", "us")
                await self.commits(0, self.bank.committed(0) + self.chance.randrange(1, 4))
                self.pair.fabric.heal("eu", "us")
        await self.commits(0, wanted)
        reached = self.pair.us.node.tidemarks.claim().point.number + self.chance.randrange(6)
        await self.pair.until(
            lambda: self.pair.us.node.tidemarks.claim().point.number >= reached, "tidemarks"
        )

    async def disaster_strikes(self) -> None:
        fabric, eu = self.pair.fabric, self.pair.eu
        if self.disaster in {Disaster.CUT_OFF_THEN_KILLED, Disaster.CUT_OFF}:
            fabric.cut("eu", "us")
            await self.commits(0, self.bank.committed(0) + self.chance.randrange(0, 8))
        if self.disaster is Disaster.WITHOUT_POWER:
            await eu.kill(power=random.Random(self.chance.random()))
        elif self.disaster in {Disaster.KILLED, Disaster.CUT_OFF_THEN_KILLED}:
            await eu.kill()

    async def read_on_the_mirror(self) -> None:
        network = self.pair.fabric.site("client-reader")
        connection: Connection | None = None
        while True:
            try:
                if connection is None:
                    connection = await Connection.open(network, self.pair.us.kafka_port)
                for reader in self.readers:
                    await reader.read(connection, wait_ms=5)
            except (OSError, Refused):
                connection = None
            await asyncio.sleep(0.002)

    def judge_every_tidemark(self) -> None:
        """Rule by rule of T2 and T9, from the mirror's logs: what each tidemark keeps is whole."""
        count = 0
        for tidemark, kept in kept_at_each(self.pair.us, TOPIC):
            count += expect_whole((seen(*each) for each in kept), tidemark.point) > 0
        print(f"{count} tidemarks with transfers")

    async def primary_returns(self) -> None:
        eu, fabric = self.pair.eu, self.pair.fabric
        if self.disaster in {Disaster.CUT_OFF, Disaster.NONE}:
            fabric.heal("eu", "us")
        else:
            fabric.heal("eu", "us")
            eu.on_open = self.note_tails
            await eu.start()
        await self.pair.until(
            lambda: eu.phase is Phase.MIRRORING and eu.node.role.mirrors, "the primary mirrors"
        )

    def note_tails(self, node: Node) -> None:
        """Keep what the old primary has beyond the base that us acts from, before it can cut anything."""
        domain = self.pair.us.node.storage.metadata.image.main_domain
        base = {LogKey.decode(key): offset for key, offset in domain.lineage[-1].positions.items()}
        for partition in node.storage.partitions:
            key = LogKey(partition.topic_id, partition.tp.partition)
            cut = base.get(key, partition.log_start_offset)
            if partition.log_end_offset > cut:
                self.tails[key] = (cut, whole(partition, cut))

    def note_tails_at_the_cut(self, node: Node) -> None:
        """Keep it from a primary that was never down: at the last moment before it cuts its logs."""
        steps = node.failover.steps
        cut = steps.cut

        async def noting(state: State, effect: CutLogs) -> Event | None:
            if not self.tails:
                for partition in node.storage.partitions:
                    await partition.wait_committed(partition.log_end_offset)
                self.note_tails(node)
            return await cut(state, effect)

        steps.cut = noting  # type: ignore[method-assign]

    async def settle(self) -> None:
        """Wait until us has ended every transaction and eu holds and shows all of it."""
        us, eu = self.pair.us, self.pair.eu
        await self.pair.until(
            lambda: not owes_markers(us.node.transactions),
            "all markers are written",
        )
        final = await us.node.role.final_round()
        link = eu.node.tidemarks
        await self.pair.until(
            lambda: link.claim().point >= final, "the primary reaches the last tidemark"
        )
        accounts = [
            (eu.partition(TOPIC, number), us.partition(TOPIC, number)) for number in range(ACCOUNTS)
        ]
        await self.pair.until(
            lambda: all(
                a.sight.last_stable_offset == b.sight.last_stable_offset for a, b in accounts
            ),
            "the primary shows all that us shows",
        )

    async def judge(self, shown: list[list[tuple[int, int, bytes]]]) -> None:
        final = {
            region: await self.read_all(region, committed=True) for region in self.pair.regions
        }
        losses = await self.pair.eu.node.operations.losses()
        listed: Counter[str] = Counter()
        for loss in losses:
            assert loss.unexplained == (), loss
            assert loss.statement is not None
            listed.update(lost.transactional_id for lost in loss.transactions)
        covered, beyond = self.expected_by_the_cut()
        history = History(
            attempts=sorted(self.bank.attempts, key=lambda a: (a.teller, a.number)),
            final=final,
            shown=[seen(*each) for each in shown[0]],
            listed=listed,
            covered=covered,
            beyond=beyond,
        )
        assert check(history) == []
        if self.disaster is Disaster.NONE:
            assert not listed
        everything = await self.read_all("us", committed=False)
        assert {seen(*each) for each in shown[1]} <= set(everything), "a record was taken back"
        self.judge_bytes()
        self.judge_quarantine()

    async def read_all(self, region: str, *, committed: bool) -> list[Seen]:
        network = self.pair.fabric.site("client-auditor")
        connection = await Connection.open(network, self.pair.regions[region].kafka_port)
        reader = Reader(TOPIC, ACCOUNTS, committed=committed)
        while await reader.read(connection):
            pass
        connection.close()
        return [seen(*each) for each in reader.records]

    def expected_by_the_cut(self) -> tuple[frozenset[str], frozenset[str]]:
        """Return which answered commits lie below L of the base for certain, and which above it."""
        if self.disaster is Disaster.NONE:
            return frozenset(self.bank.edges), frozenset()
        us = self.pair.us.node.storage
        entry = us.metadata.image.main_domain.lineage[-1]
        base = {LogKey.decode(key): offset for key, offset in entry.positions.items()}
        ledger = us.metadata.image.topics["__transaction_state"].topic_id
        covered, beyond = set(), set()
        for name, (shard, before, after) in self.bank.edges.items():
            cut = base[LogKey(ledger, shard)]
            if 0 <= after <= cut:
                covered.add(name)
            elif before >= cut:
                beyond.add(name)
        return frozenset(covered), frozenset(beyond)

    def judge_bytes(self) -> None:
        """The old primary is a mirror, byte for byte, but for what either compacted; of what it shows it shows all."""
        for theirs in self.pair.us.node.storage.partitions:
            ours = self.pair.eu.partition(theirs.tp.topic, theirs.tp.partition)
            end = min(ours.high_watermark, theirs.high_watermark)
            start = max(each.log.cleaning.holes_below for each in (ours, theirs))
            assert _bytes(ours, start, end) == _bytes(theirs, start, end), theirs.tp
            if theirs.tp.topic == TOPIC:
                assert ours.high_watermark == theirs.high_watermark
                assert ours.sight.last_stable_offset == theirs.sight.last_stable_offset == end

    def judge_quarantine(self) -> None:
        """Quarantine holds exactly what the old primary had beyond the base."""
        store = self.pair.eu.node.storage.quarantine
        kept = {
            LogKey(tail.topic_id, tail.partition): (tail.first_offset, b"".join(store.chunks(tail)))
            for tail in store.tails()
        }
        assert kept == self.tails


def _bytes(partition: Partition, start: int, end: int) -> bytes:
    return whole(partition, max(start, partition.log_start_offset), end)
