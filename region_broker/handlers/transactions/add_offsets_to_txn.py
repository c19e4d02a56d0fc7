"""AddOffsetsToTxn (25), versions 0-4.  v2: PRODUCER_FENCED.  v4: TRANSACTION_ABORTABLE."""

from typing import Any, Final

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import ErrorVersions

ERRORS: Final = ErrorVersions(producer_fenced_since=2, abortable_since=4)


async def handle_add_offsets_to_txn(ctx: RequestContext, request: Any) -> Fields:
    """Let the offsets partition of a group join the transaction."""
    verdict = await ctx.services.txn.add_offsets(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        request.group_id,
        sender=ctx.sender,
    )
    return {"error_code": ERRORS.error_of(verdict, ctx.version)}


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code}


API: Final = Api(
    key=25,
    name="AddOffsetsToTxn",
    versions=range(5),
    handle=handle_add_offsets_to_txn,
    forward=True,
    on_error=_on_error,
)
