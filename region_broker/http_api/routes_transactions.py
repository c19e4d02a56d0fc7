"""`/v1/verdict` and `/v1/transactions`: what became of a transaction, and which ones there are.

INV-HV1  both are answered by the acting region alone; any other says who acts (409, with `region` and `url`)

    GET  /v1/verdict?topic=orders&partition=3&offset=1200[&region_epoch=8]
    GET  /v1/transactions[?transactional_id=payments-7]

Not here: where a verdict comes from (the service handed in).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from region_broker.http_api.problems import answer, problem


class Verdicts(Protocol):
    """The verdict service; refuses with an exception that has `status`, `code`, `region` and `url`."""

    @property
    def refusal(self) -> type[Exception]:
        """Return the exception of refused questions."""
        ...

    def check_acting(self) -> None:
        """Raise `refusal` where this region does not act."""
        ...

    async def verdict(
        self, topic: str, partition: int, offset: int, region_epoch: int | None
    ) -> Any:
        """Return an object with `verdict` and `why`; raises `refusal`."""
        ...


class Transactions(Protocol):
    """The transaction coordinator's listing."""

    def transactions(self) -> Sequence[Any]:
        """Return the ledger's records, one per transactional id."""
        ...


def add_transaction_routes(
    app: web.Application, verdicts: Verdicts, transactions: Transactions
) -> None:
    """Add both routes."""

    async def verdict(request: web.Request) -> web.Response:
        query = request.query
        try:
            topic, epoch = query["topic"], query.get("region_epoch")
            partition, offset = int(query["partition"]), int(query["offset"])
            region_epoch = None if epoch is None else int(epoch)
        except (KeyError, ValueError) as error:
            detail = (
                "give topic, partition and offset, and region_epoch where it is known:"
                f" {type(error).__name__} {error}"
            )
            return problem(400, "bad-query", detail)
        try:
            given = await verdicts.verdict(topic, partition, offset, region_epoch)
        except verdicts.refusal as refused:
            return _refused(refused)
        return answer({"verdict": given.verdict, "why": given.why})

    async def listing(request: web.Request) -> web.Response:
        try:
            verdicts.check_acting()
        except verdicts.refusal as refused:
            return _refused(refused)
        wanted = request.query.get("transactional_id")
        rows = [
            _row(record)
            for record in transactions.transactions()
            if wanted is None or record.transactional_id == wanted
        ]
        return answer({"transactions": rows})

    app.router.add_get("/v1/verdict", verdict)
    app.router.add_get("/v1/transactions", listing)


def _refused(refused: Exception) -> web.Response:
    status, code = getattr(refused, "status", 500), getattr(refused, "code", "refused")
    region, url = getattr(refused, "region", ""), getattr(refused, "url", "")
    who = {"region": region, "url": url} if region else {}
    return problem(status, code, str(refused), **who)


def _row(record: Any) -> dict[str, Any]:
    return {
        "transactional_id": record.transactional_id,
        "state": record.status.name.lower(),
        "producer_id": record.producer_id,
        "producer_epoch": record.producer_epoch,
        "partitions": [str(partition) for partition in record.partitions],
        "timeout_ms": record.timeout_ms,
        "started_ms": record.start_ms,
        "updated_ms": record.last_update_ms,
        "region_epoch": record.region_epoch,
    }
