"""DescribeTransactions (65), versions 0-0 (KIP-664): the state of transactional ids.

Source: TransactionCoordinator.scala `handleDescribeTransactions`.
"""

from typing import Any, Final

from idempotency.ledger_records import TransactionRecord
from region_broker.handlers.dispatch.answer_budget import TOO_LARGE, check_count, described
from region_broker.handlers.dispatch.authorizing import may, sees
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import (
    STATE_NAMES,
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID_NOT_FOUND,
    error_number,
)
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, look_up_rows
from txn_coordinator.verdicts import TxnVerdict


async def handle_describe_transactions(ctx: RequestContext, request: Any) -> Fields:
    """Return the state of each transactional id asked for."""
    names = request.transactional_ids
    check_count("DescribeTransactions", len(names))

    async def describe(name: str, yielding: CooperativeYield) -> Fields:
        await yielding.row(look_up_rows(name))
        return _state(ctx, name)

    return {"transaction_states": await described(ctx, names, describe, _too_large)}


def _state(ctx: RequestContext, name: str) -> Fields:
    if not may(ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
        return _refused(name, TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    found = ctx.services.txn_admin.describe(name)
    if found is None:
        return _refused(name, TRANSACTIONAL_ID_NOT_FOUND)
    if isinstance(found, TxnVerdict):
        return _refused(name, error_number(found))
    return {
        "error_code": 0,
        "transactional_id": name,
        "transaction_state": STATE_NAMES[found.status],
        "transaction_timeout": found.timeout_ms,
        "transaction_start_time": found.start_ms,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "topics": _topics(ctx, found),
    }


def _topics(ctx: RequestContext, record: TransactionRecord) -> list[Fields]:
    topics: dict[str, list[int]] = {}
    for tp in record.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return [
        {"topic": name, "partitions": numbers}
        for name, numbers in topics.items()
        if sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name)
    ]


def _too_large(name: str) -> Fields:
    return _refused(name, TOO_LARGE)


def _refused(name: str, error_code: int) -> Fields:
    """Return Kafka's empty state: numbers are 0 there, by the schema's defaults."""
    return {
        "error_code": error_code,
        "transactional_id": name,
        "transaction_state": "",
        "transaction_timeout": 0,
        "transaction_start_time": 0,
        "producer_id": 0,
        "producer_epoch": 0,
        "topics": [],
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "transaction_states": [_refused(name, error_code) for name in request.transactional_ids]
    }


API: Final = Api(
    key=65,
    name="DescribeTransactions",
    versions=range(1),
    handle=handle_describe_transactions,
    forward=True,
    describes=True,
    on_error=_on_error,
)
