"""A node that loses power while it writes: what it acknowledged is there, once, in order.

A power cut is the hard case of kill -9: of what was not synced any page may be gone. Transactional tellers and an
idempotent producer that repeats what was not answered write throughout.
"""

import asyncio
import random
from pathlib import Path

import pytest

from chaos.checker import check
from chaos.history import Attempt, History, seen
from geo_replicator.failover import Phase
from idempotency.identity import ProducerEpoch, ProducerId, ProducerPair, SequenceNumber
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.region.tidemarks import retention_hold
from tests.fixtures.coordinator_driver import owes_markers
from tests.simulation.bank import ACCOUNTS, TOPIC, Bank, Teller
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
SEEDS = 10
RESTARTS = 3


class Alone(Pair):
    """A cluster of one region."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.chance = random.Random(seed)
        self.fabric = Fabric(random.Random(self.chance.random()))
        chance = random.Random(self.chance.random())
        self.eu = Region("eu", folder / "eu", self.fabric, chance, ("eu",))
        self.regions = {"eu": self.eu}


class Stream:
    """An idempotent producer: value n has sequence n; what is not answered is sent again, in order."""

    def __init__(self, alone: Alone) -> None:
        self._alone = alone
        self._network = alone.fabric.site("client-stream")
        self.answered: list[int] = []
        self.closed = asyncio.Event()

    async def run(self) -> None:
        producer: ProducerPair | None = None
        while not self.closed.is_set():
            try:
                connection = await Connection.open(self._network, self._alone.eu.kafka_port)
                producer = producer or await connection.init_producer_id(None)
                while not self.closed.is_set():
                    await self._send(connection, producer)
            except (OSError, Refused):
                await asyncio.sleep(0.003)

    async def _send(self, connection: Connection, producer: ProducerPair) -> None:
        sequence = len(self.answered)
        batch = batch_of(b"%d" % sequence, producer, sequence, transactional=False)
        self.answered.append((await connection.produce("stream", {0: batch}))[0])


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_nothing_acknowledged_is_lost_with_the_power(seed: int, tmp_path: Path) -> None:
    print(f"seed {seed}")
    alone = Alone(tmp_path, seed)
    await alone.start()
    try:
        await run(alone)
    finally:
        await alone.stop()


async def run(alone: Alone) -> None:
    chance = alone.chance
    bank, stream = Bank(alone), Stream(alone)
    for topic, count in ((TOPIC, ACCOUNTS), ("stream", 1)):
        await alone.eu.node.topics.create_topic(topic, count, {})
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(stream.run())
        for number in range(3):
            teller = Teller(bank, f"teller-{number}", random.Random(chance.random()))
            tasks.create_task(teller.run())
        for _ in range(RESTARTS):
            await progress(alone, bank, stream, chance.randrange(2, 20))
            await alone.eu.kill(power=random.Random(chance.random()))
            await alone.eu.start()
        await progress(alone, bank, stream, 5)
        bank.closed.set()
        stream.closed.set()
    await alone.until(
        lambda: not owes_markers(alone.eu.node.transactions),
        "all markers are written",
    )
    await judge(alone, bank.attempts, stream.answered)


async def progress(alone: Alone, bank: Bank, stream: Stream, count: int) -> None:
    commits, records = bank.committed(0) + count, len(stream.answered) + count
    await alone.until(
        lambda: bank.committed(0) >= commits and len(stream.answered) >= records, "progress"
    )


async def judge(alone: Alone, attempts: list[Attempt], answered: list[int]) -> None:
    connection = await Connection.open(alone.fabric.site("auditor"), alone.eu.kafka_port)
    accounts = Reader(TOPIC, ACCOUNTS, committed=True)
    records = Reader("stream", 1, committed=True)
    for reader in (accounts, records):
        while await reader.read(connection):
            pass
    ordered = sorted(attempts, key=lambda attempt: (attempt.teller, attempt.number))
    final = {"eu": [seen(*each) for each in accounts.records]}
    assert check(History(attempts=ordered, final=final)) == []
    values = [int(value) for _, _, value in records.records]
    assert values == list(range(len(values)))  # once, in order
    assert len(values) >= len(answered)
    assert [offset for _, offset, _ in records.records][: len(answered)] == answered


async def test_T14_retention_waits_for_a_mirror_that_was_away_when_the_primary_restarted(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        small = {"segment.bytes": "4096", "retention.ms": "3600000"}
        await pair.eu.node.topics.create_topic("stream", 1, small)
        network = pair.fabric.site("client")
        connection = await Connection.open(network, pair.eu.kafka_port)
        producer = await connection.init_producer_id(None)

        def record(number: int) -> bytes:  # old enough to be deleted, and as long as a segment
            origin = Origin(
                ProducerId(producer[0]), ProducerEpoch(producer[1]), SequenceNumber(number)
            )
            return build_batch([Record(None, b"x" * 3_000, timestamp_ms=1)], origin=origin)

        await connection.produce("stream", {0: record(0)})
        await pair.until(
            lambda: (
                pair.us.node.storage.partitions.get("stream", 0) is not None
                and pair.us.partition("stream", 0).log_end_offset == 1
            ),
            "the first is copied",
        )
        await pair.us.kill()
        del pair.regions["us"]
        await pair.eu.kill()
        await pair.eu.start()
        connection = await Connection.open(network, pair.eu.kafka_port)
        for number in range(1, 6):
            await connection.produce("stream", {0: record(number)})
        primary = pair.eu.partition("stream", 0)
        await pair.eu.node.maintain()
        assert primary.kept_from <= 1
        pair.regions["us"] = pair.us
        await pair.us.start()
        await pair.until(
            lambda: pair.us.partition("stream", 0).sight.visible_end == 6, "all is copied"
        )
        # Maintenance runs all the time here; it lets go once it sees that the mirror has reached a tidemark over all.
        await pair.until(lambda: primary.kept_from >= 5, "retention goes on")


async def test_INV_RH6_a_region_that_mirrored_for_long_waits_for_the_old_primary_once_it_acts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. us acts for a while, and mirrors eu for longer than a mirror is waited for. 2. eu is lost, and comes back soon."""
    monkeypatch.setattr(retention_hold, "MIRROR_HOLD_MS", 5_000)
    async with region_pair(tmp_path, seed=2) as pair:
        small = {"segment.bytes": "4096", "retention.ms": "3600000"}
        await pair.eu.node.topics.create_topic("stream", 1, small)
        await pair.until(
            lambda: pair.us.node.storage.partitions.get("stream", 0) is not None, "us has it"
        )
        await pair.take_over(planned=True)
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "eu follows us")
        await pair.take_over(planned=True, by=pair.eu)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows eu")
        await asyncio.sleep(10)
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.fail_over()
        network = pair.fabric.site("client")
        connection = await Connection.open(network, pair.us.kafka_port)
        for _ in range(6):  # old enough to be deleted, and as long as a segment
            batch = build_batch([Record(None, b"x" * 3_000, timestamp_ms=1)])
            await connection.produce("stream", {0: batch})
        primary = pair.us.partition("stream", 0)
        await pair.us.node.maintain()
        assert primary.kept_from == 0
        pair.regions["eu"] = pair.eu
        await pair.eu.start()
        await pair.until(
            lambda: pair.eu.partition("stream", 0).sight.visible_end == 6, "all is copied"
        )
        await pair.until(lambda: primary.kept_from >= 5, "retention goes on")
