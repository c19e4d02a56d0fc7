"""InitProducerId (22), versions 0-5.

v3: resume with the pair held so far (KIP-360).  v4: PRODUCER_FENCED.  v5: TRANSACTION_ABORTABLE.
"""

from datetime import timedelta
from typing import Any, Final

from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.handlers.txn_errors import ErrorVersions

ERRORS: Final = ErrorVersions(producer_fenced_since=4, abortable_since=5)


async def handle_init_producer_id(ctx: RequestContext, request: Any) -> Fields:
    """Give out a producer id and epoch, fencing whoever had the transactional id."""
    outcome = await ctx.services.txn.init_producer_id(
        request.transactional_id,
        request.transaction_timeout // timedelta(milliseconds=1),
        getattr(request, "producer_id", -1),
        getattr(request, "producer_epoch", -1),
        connection_id=ctx.connection_id,
    )
    return {
        "error_code": ERRORS.error_of(outcome.verdict, ctx.version),
        "producer_id": outcome.producer_id,
        "producer_epoch": outcome.producer_epoch,
    }


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(
    key=22,
    name="InitProducerId",
    versions=range(6),
    handle=handle_init_producer_id,
    forward=True,
    on_error=_on_error,
)
