"""EndTxn (26), versions 0-5.

v2: PRODUCER_FENCED.  v4: TRANSACTION_ABORTABLE.  v5: TV2, the epoch is bumped and returned (KIP-890, C20).
"""

from typing import Any, Final

from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.handlers.txn_errors import ErrorVersions

ERRORS: Final = ErrorVersions(producer_fenced_since=2, abortable_since=4)
_TV2_SINCE: Final = 5


async def handle_end_txn(ctx: RequestContext, request: Any) -> Fields:
    """Commit or abort; answered when the decision is durable (C19)."""
    outcome = await ctx.services.txn.end_txn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        bool(request.committed),
        2 if ctx.version >= _TV2_SINCE else 1,
        sender=ctx.sender,
    )
    return {
        "error_code": ERRORS.error_of(outcome.verdict, ctx.version),
        "producer_id": outcome.producer_id,
        "producer_epoch": outcome.producer_epoch,
    }


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(
    key=26,
    name="EndTxn",
    versions=range(6),
    handle=handle_end_txn,
    forward=True,
    on_error=_on_error,
)
