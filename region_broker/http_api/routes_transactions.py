"""`/v1/verdict` and `/v1/transactions`: what became of a transaction, and which ones there are.

Not here: where a verdict comes from (the service handed in).
"""

from collections.abc import Sequence
from typing import Any, Protocol

from aiohttp import web

from region_broker.http_api.problems import answer, problem


class Verdicts(Protocol):
    """The verdict service; refuses with an exception that has `status` and `code`."""

    @property
    def refusal(self) -> type[Exception]:
        """Return the exception of refused questions."""
        ...

    def verdict(self, topic: str, partition: int, offset: int, region_epoch: int | None) -> Any:
        """Return an object with `verdict` and `why`."""
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
            detail = f"topic, partition, offset and region_epoch are asked for: {error}"
            return problem(400, "bad-query", detail)
        try:
            given = verdicts.verdict(topic, partition, offset, region_epoch)
        except verdicts.refusal as refused:
            status, code = getattr(refused, "status", 500), getattr(refused, "code", "refused")
            return problem(status, code, str(refused))
        return answer({"verdict": given.verdict, "why": given.why})

    async def listing(request: web.Request) -> web.Response:
        wanted = request.query.get("transactional_id")
        rows = [
            _row(record)
            for record in transactions.transactions()
            if wanted is None or record.transactional_id == wanted
        ]
        return answer({"transactions": rows})

    app.router.add_get("/v1/verdict", verdict)
    app.router.add_get("/v1/transactions", listing)


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
