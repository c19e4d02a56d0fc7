"""`/v1/verdict` and `/v1/transactions`: what became of a transaction, which ones there are, ending one.

All are answered by the primary region alone; any other says who acts (409, with `region` and `url`). An abort must be
sent as application/json, so no web page can order one by a plain form.

    GET  /v1/verdict?topic=orders&partition=3&offset=1200[&region_epoch=8][&producer_id=70&producer_epoch=2]
    GET  /v1/transactions[?transactional_id=payments-7]
    GET  /v1/transactions/open             by partition, with those that no transactional id knows
    POST /v1/transactions/abort            {"transactional_id": "payments-7"}, or
                                           {"topic": "orders", "partition": 3, "start_offset": 1200}

INV-HTR1  lists of transactions are judged and written in pieces, and others are served in between: there may be tens of thousands, with as many
          partitions each

Not here: where a verdict comes from (the service handed in).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec
import orjson
from aiohttp import hdrs, web

from idempotency.identity import (
    ProducerEpoch,
    ProducerId,
    ProducerPair,
    RegionEpoch,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord
from idempotency.partition_state import OpenTxn
from region_broker.http_api.doors import IDENTITY, SEES_TOPIC
from region_broker.http_api.problems import answer, problem
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_JSON: Final = "application/json"
_HOW_TO_ABORT: Final = (
    'send {"transactional_id": "..."}, or {"topic": "...", "partition": 0, "start_offset": 0}'
)


class Given(Protocol):
    """A verdict."""

    @property
    def verdict(self) -> str:
        """Return committed, aborted, lost or open."""
        ...

    @property
    def why(self) -> str:
        """Return the reason, for people."""
        ...


class Opened(Protocol):
    """A transaction with data in a partition and no marker."""

    @property
    def tp(self) -> TopicPartition:
        """Return where it is open."""
        ...

    @property
    def found(self) -> OpenTxn:
        """Return what the partition knows of it."""
        ...

    @property
    def transactional_id(self) -> str:
        """Return whose it is, empty if nobody knows it."""
        ...


class Verdicts(Protocol):
    """The verdict service; refuses with an exception that has `status`, `code`, `region`, `url` and `retry_after_s`."""

    @property
    def refusal(self) -> type[Exception]:
        """Return the exception of refused questions."""
        ...

    def check_acting(self) -> None:
        """Raise `refusal` where this region does not act."""
        ...

    async def verdict(
        self, topic: str, partition: int, offset: int, region_epoch: RegionEpoch | None, *,
        pair: ProducerPair | None = None, asker: str = "",
    ) -> Given:  # fmt: skip
        """Say what became of the record at `offset`, which `pair` wrote, to `asker`; raises `refusal`."""
        ...


class Transactions(Protocol):
    """What the transaction coordinator has (`region.transaction_desk`)."""

    def listing(self) -> Iterable[TransactionRecord]:
        """Return the ledger's records, one per transactional id; raises the refusal of `Verdicts`."""
        ...

    def describe(self, transactional_id: str) -> TransactionRecord | None:
        """Return the record of one transactional id; raises the refusal of `Verdicts`."""
        ...


class Desk(Protocol):
    """Open transactions by partition, and ending one (`region.transaction_desk`)."""

    async def open_transactions(self) -> Sequence[Opened]:
        """Return what is open in every partition; raises the refusal of `Verdicts`."""
        ...

    async def abort_id(self, transactional_id: str) -> None:
        """Abort what the id has open."""
        ...

    async def abort_at(self, topic: str, partition: int, start_offset: int) -> None:
        """Abort what begins at an offset."""
        ...


class AbortOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of an abort: the id, or where the transaction begins."""

    transactional_id: str | None = None
    topic: str | None = None
    partition: int | None = None
    start_offset: int | None = None


def add_abort_routes(app: web.Application, verdicts: Verdicts, desk: Desk) -> None:
    """Add what is open by partition, and ending it."""

    async def opened(_request: web.Request) -> web.Response:
        try:
            found = await desk.open_transactions()
        except verdicts.refusal as refused:
            return _refused(refused)
        rows = await each_yielding(found, _open_row, CooperativeYield())
        return answer({"open": rows})

    async def abort(request: web.Request) -> web.Response:
        if request.content_type != _JSON:
            return problem(415, "not-json", f"send the order as {_JSON}")
        try:
            order = msgspec.json.decode(await request.read(), type=AbortOrder)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return problem(400, "bad-order", f"{error}; {_HOW_TO_ABORT}")
        place = (order.topic, order.partition, order.start_offset)
        try:
            if order.transactional_id is not None and place == (None, None, None):
                await desk.abort_id(order.transactional_id)
            elif order.transactional_id is None and None not in place:
                topic, partition, start_offset = place
                assert topic is not None
                assert partition is not None
                assert start_offset is not None
                await desk.abort_at(topic, partition, start_offset)
            else:
                return problem(400, "bad-order", _HOW_TO_ABORT)
        except verdicts.refusal as refused:
            return _refused(refused)
        return answer({"aborted": True})

    app.router.add_get("/v1/transactions/open", opened)
    app.router.add_post("/v1/transactions/abort", abort)


def _open_row(each: Opened) -> orjson.Fragment:
    row = {
        "topic": each.tp.topic,
        "partition": each.tp.partition,
        "start_offset": each.found.first_offset,
        "producer_id": each.found.producer_id,
        "producer_epoch": each.found.producer_epoch,
        "last_timestamp_ms": each.found.last_timestamp_ms,
        "transactional_id": each.transactional_id,
    }
    return orjson.Fragment(orjson.dumps(row))


def add_transaction_routes(
    app: web.Application,
    verdicts: Verdicts,
    transactions: Transactions,
    now_ms: Callable[[], int],
) -> None:
    """Add verdicts and the listing, which says this node's time beside its times (`now_ms`: wall time)."""

    async def verdict(request: web.Request) -> web.Response:
        query = request.query
        try:
            topic, epoch = query["topic"], query.get("region_epoch")
            partition, offset = int(query["partition"]), int(query["offset"])
            region_epoch = None if epoch is None else RegionEpoch(int(epoch))
            pair = _pair_of(query)
        except (KeyError, ValueError) as error:
            detail = (
                "give topic, partition and offset, and where they are known region_epoch, and producer_id with"
                f" producer_epoch: {type(error).__name__} {error}"
            )
            return problem(400, "bad-query", detail)
        try:
            asker = request.get(IDENTITY)
            given = await verdicts.verdict(
                topic,
                partition,
                offset,
                region_epoch,
                pair=pair,
                asker="" if asker is None else asker.principal,
            )
        except verdicts.refusal as refused:
            return _refused(refused)
        by_producer = pair is not None  # a version that did not know of it says nothing
        return answer({"verdict": given.verdict, "why": given.why, "by_producer": by_producer})

    async def listing(request: web.Request) -> web.Response:
        try:
            found = _asked_for(transactions, request.query.get("transactional_id"))
        except verdicts.refusal as refused:
            return _refused(refused)
        sees = request.get(SEES_TOPIC, _everything)
        rows, yielding = [], CooperativeYield()
        for record in found:
            await yielding.row()
            rows.append(await _row(record, sees, yielding))
        return answer({"now_ms": now_ms(), "transactions": rows})

    app.router.add_get("/v1/verdict", verdict)
    app.router.add_get("/v1/transactions", listing)


def _pair_of(query: Mapping[str, str]) -> ProducerPair | None:
    """Return the pair that a question names, or None; raises KeyError, ValueError."""
    if "producer_id" not in query and "producer_epoch" not in query:
        return None
    return ProducerId(int(query["producer_id"])), ProducerEpoch(int(query["producer_epoch"]))


def _asked_for(transactions: Transactions, wanted: str | None) -> Iterable[TransactionRecord]:
    """Return all records, or that of one transactional id: looked up, not searched."""
    if wanted is None:
        return transactions.listing()
    found = transactions.describe(wanted)
    return () if found is None else (found,)


def _refused(refused: Exception) -> web.Response:
    status, code = getattr(refused, "status", 500), getattr(refused, "code", "refused")
    region, url = getattr(refused, "region", ""), getattr(refused, "url", "")
    who = {"region": region, "url": url} if region else {}
    response = problem(status, code, str(refused), **who)
    if (retry_after_s := getattr(refused, "retry_after_s", None)) is not None:
        response.headers[hdrs.RETRY_AFTER] = str(retry_after_s)
    return response


def _everything(_topic: str) -> bool:
    """Nobody is at the door."""
    return True


async def _row(
    record: TransactionRecord, sees: Callable[[str], bool], yielding: CooperativeYield
) -> orjson.Fragment:
    partitions = []
    for tp in record.partitions:
        await yielding.row()
        if sees(tp.topic):  # INV-HND4
            partitions.append(str(tp))
    row = {
        "transactional_id": record.transactional_id,
        "state": record.status.name.lower(),
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "previous_producer_id": record.previous_producer_id,
        "last_producer_epoch": record.last_producer_epoch,
        "partitions": partitions,
        "timeout_ms": record.timeout_ms,
        "started_ms": record.start_ms,
        "updated_ms": record.last_update_ms,
        "region_epoch": record.region_epoch,
    }
    return orjson.Fragment(orjson.dumps(row))
