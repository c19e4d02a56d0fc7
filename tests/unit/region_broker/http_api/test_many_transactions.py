"""Lists of very many transactions over HTTP: nothing is searched, and others are served in between."""

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from aiohttp import ClientSession, web

from idempotency.identity import ProducerEpoch, ProducerId, TopicName, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from region_broker.http_api.app import HttpServer
from region_broker.http_api.routes_transactions import add_transaction_routes
from region_broker.limits import YIELD_ROWS
from region_broker.region.transaction_desk import TransactionDesk
from region_broker.region.verdict_service import VerdictRefused

IDS, PARTITIONS = 8, 500
Result = TypeVar("Result")


class Looked(tuple[TopicPartition, ...]):
    """Partitions of a transaction, through which nobody searches."""

    __slots__ = ()

    def __contains__(self, _tp: object) -> bool:
        raise AssertionError("each is compared with each")


def tps(count: int) -> Looked:
    return Looked(TopicPartition(TopicName("orders"), number) for number in range(count))


def record(number: int, partitions: Looked, status: TxnStatus) -> TransactionRecord:
    return TransactionRecord(
        transactional_id=f"t-{number}", producer_id=ProducerId(number), previous_producer_id=ProducerId(-1),
        next_producer_id=ProducerId(-1), producer_epoch=ProducerEpoch(0), last_producer_epoch=ProducerEpoch(-1),
        timeout_ms=60_000, status=status, partitions=partitions, last_update_ms=1, start_ms=1,
    )  # fmt: skip


class Region:
    """One that acts, with a ledger and partitions."""

    refusal = VerdictRefused

    def __init__(self, records: list[TransactionRecord], open_in: Looked) -> None:
        self.records = records
        self.found = [OpenTxn(each.producer_id, ProducerEpoch(0), 7, 1) for each in records]
        self.open_in = open_in

    def check_acting(self) -> None:
        """It acts."""

    async def verdict(self, *_asked: Any, pair: object = None, asker: str = "") -> Any:
        raise AssertionError("not asked here")

    def listing(self) -> list[TransactionRecord]:
        return self.records

    def describe(self, transactional_id: str) -> TransactionRecord | None:
        assert transactional_id == "t-9"
        return self.records[9]

    def desk(self) -> TransactionDesk:
        state = SimpleNamespace(open_transactions=lambda: list(self.found))
        partitions = [SimpleNamespace(tp=tp, state=state) for tp in self.open_in]
        return TransactionDesk(cast("Any", partitions), cast("Any", self), self)


async def with_turns(work: Awaitable[Result]) -> tuple[Result, int]:
    """Return what comes of work, and how often others had a turn meanwhile."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as group:
        task = group.create_task(others())
        done = await work
        task.cancel()
    return done, turns


async def test_INV_OT4_whose_an_open_transaction_is_is_looked_up_while_others_are_served() -> None:
    """16 ids in one topic of 1,000 partitions held the event loop for 0.34 s."""
    records = [record(number, tps(PARTITIONS), TxnStatus.ONGOING) for number in range(IDS)]
    records[1] = record(1, tps(PARTITIONS - 1), TxnStatus.PREPARE_COMMIT)
    records[2] = record(2, tps(PARTITIONS), TxnStatus.COMPLETE_COMMIT)
    region = Region(records, tps(PARTITIONS))
    found, turns = await with_turns(region.desk().open_transactions())
    assert len(found) == IDS * PARTITIONS
    unknown = [(each.found.producer_id, each.tp.partition) for each in found if not each.transactional_id]  # fmt: skip
    assert unknown == [
        row
        for partition in range(PARTITIONS)
        for row in ([(2, partition)] if partition < PARTITIONS - 1 else [(1, partition), (2, partition)])
    ]  # fmt: skip
    assert {each.transactional_id for each in found if each.found.producer_id == 5} == {"t-5"}
    assert turns >= IDS * PARTITIONS // YIELD_ROWS - 1


async def test_INV_OT4_what_is_shown_is_of_one_moment() -> None:
    """A transaction that begins between two looks would seem to be nobody's, and be aborted as hanging."""
    region = Region([record(n, tps(PARTITIONS), TxnStatus.ONGOING) for n in range(IDS)], tps(PARTITIONS))  # fmt: skip
    async with asyncio.TaskGroup() as group:
        work = group.create_task(region.desk().open_transactions())
        await asyncio.sleep(0)
        region.records[:] = [record(0, tps(1), TxnStatus.COMPLETE_ABORT)]
        region.found.append(OpenTxn(ProducerId(99), ProducerEpoch(0), 8, 1))
    assert all(each.transactional_id for each in work.result())


async def test_INV_HTR1_others_are_served_while_transactions_are_listed() -> None:
    records = [record(number, tps(PARTITIONS), TxnStatus.ONGOING) for number in range(IDS)]
    records += [record(number, tps(0), TxnStatus.EMPTY) for number in range(IDS, 4_000)]
    region = Region(records, tps(0))
    app = web.Application()
    add_transaction_routes(app, region, region, lambda: 1_000)
    server = HttpServer(app)
    host, port = await server.start("127.0.0.1", 0)
    path = f"http://{host}:{port}/v1/transactions"

    async def rows(session: ClientSession, query: str) -> list[dict[str, Any]]:
        async with session.get(path + query) as response:
            body = await response.json()
            return list(body["transactions"])

    async with ClientSession() as session:
        (one,) = await rows(session, "?transactional_id=t-9")
        found, turns = await with_turns(rows(session, ""))
    await server.stop()
    assert [row["transactional_id"] for row in found] == [f"t-{n}" for n in range(4_000)]
    assert found[3]["partitions"] == [f"orders-{n}" for n in range(PARTITIONS)]
    assert one == found[9]
    assert turns >= (4_000 + IDS * PARTITIONS) // YIELD_ROWS - 1
