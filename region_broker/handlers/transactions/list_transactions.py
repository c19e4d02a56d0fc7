"""ListTransactions (66), versions 0-2 (KIP-664).  v1: by duration (KIP-994).  v2: by pattern (KIP-1152).

INV-HLT1 a pattern is matched with what who asks may see alone, in a thread, and one at a time: many keep no thread from who else needs one
Source: TransactionStateManager.scala `listTransactionStates`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.ledger_records import TransactionRecord
from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import sees
from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import STATE_NAMES, error_number
from region_broker.ports.unbroken import to_its_end
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield
from txn_coordinator.verdicts import TxnVerdict

_KNOWN_STATES: Final = frozenset(STATE_NAMES.values())


async def handle_list_transactions(ctx: RequestContext, request: Any) -> Fields:
    """Return the transactional ids that pass every filter; states that do not exist are named."""
    check_count("ListTransactions", len(request.state_filters) + len(request.producer_id_filters))
    unknown = [name for name in request.state_filters if name not in _KNOWN_STATES]
    found = ctx.services.txn_admin.listing()
    if isinstance(found, TxnVerdict):
        return _answer(error_number(found), unknown)
    included = _filter(request, ctx.services.clock.wall_ms())
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        regex = TopicRegex(pattern) if pattern else None
    except RegexRefused:
        return _answer(ErrorCode.invalid_regular_expression, unknown)
    yielding, chosen = CooperativeYield(), []
    for record in found:
        await yielding.row()
        name = record.transactional_id
        if included(record) and sees(ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
            chosen.append(record)
    if regex is not None and chosen:
        # Linear per id, but ids may be long and many: not on the event loop.
        async with ctx.services.patterns_turn:
            chosen = await to_its_end(asyncio.to_thread(_matching, regex, chosen))
    return _answer(0, unknown, [_row(record) for record in chosen])


def _row(record: TransactionRecord) -> Fields:
    return {
        "transactional_id": record.transactional_id, "producer_id": record.producer_id,
        "transaction_state": STATE_NAMES[record.status],
    }  # fmt: skip


def _matching(regex: TopicRegex, records: list[TransactionRecord]) -> list[TransactionRecord]:
    return [record for record in records if regex.matches(record.transactional_id)]


def _filter(request: Any, now_ms: int) -> Callable[[TransactionRecord], bool]:
    states = frozenset(request.state_filters)
    producer_ids = frozenset(request.producer_id_filters)
    duration_ms = int(getattr(request, "duration_filter", -1))

    def included(record: TransactionRecord) -> bool:
        if producer_ids and record.producer_id not in producer_ids:
            return False
        if states and STATE_NAMES[record.status] not in states:
            return False
        return duration_ms < 0 or now_ms - record.start_ms > duration_ms

    return included


def _answer(error_code: int, unknown: list[str], rows: list[Fields] | None = None) -> Fields:
    return {
        "error_code": error_code,
        "unknown_state_filters": unknown,
        "transaction_states": rows or [],
    }


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return _answer(error_code, [])


API: Final = Api(
    key=66,
    name="ListTransactions",
    versions=range(3),
    handle=handle_list_transactions,
    forward=True,
    lists=always,
    on_error=_on_error,
)
