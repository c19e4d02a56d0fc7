"""ListTransactions (66), versions 0-2 (KIP-664).  v1: by duration (KIP-994).  v2: by pattern (KIP-1152).

INV-HLT1 a pattern is matched with what who asks may see alone, in a thread, and one at a time, in the turn of who asks: many keep no thread from who
         else needs one, and no pattern of somebody else from its turn
INV-HLT2 a pattern takes PATTERN_S_MAX at most, its turn included, of which TURN_S_MAX once that has come, and ends with its client: else one that takes
         hours kept everybody else's from its turn, and its node from its end. Who waits for the turn has neither a place among those that list (INV-HLP1) nor any transaction in hand
Source: TransactionStateManager.scala `listTransactionStates`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.ledger_records import TransactionRecord
from region_broker.groups.modern.patterns.matching import those_in_a_thread
from region_broker.groups.modern.patterns.regex_syntax import RegexRefused
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import sees
from region_broker.handlers.dispatch.patience import while_wanted
from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import STATE_NAMES, error_number
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield
from txn_coordinator.verdicts import TxnVerdict

PATTERN_S_MAX: Final = 30
"""As long as a client waits for an answer, unless it is told otherwise (`request.timeout.ms`). 50,000 ids of forty letters take some two seconds."""
TURN_S_MAX: Final = 10
"""So whoever waits behind one other has his turn, and an answer, in the time that he waits."""
_KNOWN_STATES: Final = frozenset(STATE_NAMES.values())


async def handle_list_transactions(ctx: RequestContext, request: Any) -> Fields:
    """Return the transactional ids that pass every filter; states that do not exist are named."""
    check_count("ListTransactions", len(request.state_filters) + len(request.producer_id_filters))
    unknown = [name for name in request.state_filters if name not in _KNOWN_STATES]
    pattern = getattr(request, "transactional_id_pattern", None)
    try:
        if pattern:
            chosen = await _matching(ctx, request, pattern)
        else:
            chosen = await _chosen(ctx, request)
    except RegexRefused:
        return _answer(ErrorCode.invalid_regular_expression, unknown)
    except TimeoutError:
        return _answer(ErrorCode.request_timed_out, unknown)
    if isinstance(chosen, TxnVerdict):
        return _answer(error_number(chosen), unknown)
    return _answer(0, unknown, [_row(record) for record in chosen])


async def _chosen(ctx: RequestContext, request: Any) -> list[TransactionRecord] | TxnVerdict:
    """Return what passes every filter but the pattern, of what who asks may see."""
    found = ctx.services.txn_admin.listing()
    if isinstance(found, TxnVerdict):
        return found
    included = _filter(request, ctx.services.clock.wall_ms())
    yielding, chosen = CooperativeYield(), []
    for record in found:
        await yielding.row()
        name = record.transactional_id
        if included(record) and sees(ctx, Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
            chosen.append(record)
    return chosen


async def _matching(
    ctx: RequestContext, request: Any, pattern: str
) -> list[TransactionRecord] | TxnVerdict:
    """Return those of `_chosen` that match; raises `TimeoutError` (INV-HLT2), `RegexRefused`."""
    place = ctx.listing
    assert place is not None, "what lists has a place"
    place.leave()
    async with (
        while_wanted(ctx, PATTERN_S_MAX),
        ctx.services.turns.patterns.turn(ctx.asked_by),
        asyncio.timeout(TURN_S_MAX),
    ):
        await place.take()
        regex = TopicRegex(pattern)  # some 150 KB: not while others are before it
        chosen = await _chosen(ctx, request)
        if isinstance(chosen, TxnVerdict) or not chosen:
            return chosen
        # Linear per id, but ids may be long and many: not on the event loop.
        matched = frozenset(
            await those_in_a_thread(regex, [each.transactional_id for each in chosen])
        )
    return [each for each in chosen if each.transactional_id in matched]


def _row(record: TransactionRecord) -> Fields:
    return {
        "transactional_id": record.transactional_id, "producer_id": record.producer_id,
        "transaction_state": STATE_NAMES[record.status],
    }  # fmt: skip


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
