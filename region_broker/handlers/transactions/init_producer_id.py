"""InitProducerId (22), versions 0-6.

v3: resume with the pair held so far (KIP-360).  v4: PRODUCER_FENCED.  v5: TRANSACTION_ABORTABLE.
v6: two-phase commit (KIP-939), which is refused as a Kafka refuses it whose
`transaction.two.phase.commit.enable` is false: TRANSACTIONAL_ID_AUTHORIZATION_FAILED for Enable2Pc, and
UNSUPPORTED_VERSION for KeepPreparedTxn.
Source: TransactionCoordinator.scala `handleInitProducerId` (4.1).
"""

from datetime import timedelta
from typing import Any, Final

from kio.schema.errors import ErrorCode

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import (
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    UNSUPPORTED_VERSION,
    ErrorVersions,
)

_SENDS_TO_THE_COORDINATOR: Final = frozenset(
    {ErrorCode.coordinator_not_available, ErrorCode.not_coordinator}
)
ERRORS: Final = ErrorVersions(producer_fenced_since=4, abortable_since=5)


async def handle_init_producer_id(ctx: RequestContext, request: Any) -> Fields:
    """Give out a producer id and epoch, fencing whoever had the transactional id."""
    refusal = _two_phase_refusal(request)
    if refusal:
        return _on_error(ctx, request, refusal)
    outcome = await ctx.services.txn.init_producer_id(
        request.transactional_id,
        request.transaction_timeout // timedelta(milliseconds=1),
        getattr(request, "producer_id", NO_PRODUCER_ID),
        getattr(request, "producer_epoch", NO_PRODUCER_EPOCH),
    )
    return {
        "error_code": ERRORS.error_of(outcome.verdict, ctx.version),
        "producer_id": outcome.producer_id,
        "producer_epoch": outcome.producer_epoch,
    }


def _two_phase_refusal(request: Any) -> int:
    """Return why a request for two-phase commit is refused, 0 if it asks for none.

    Without a transactional id the flags mean nothing: Kafka hands out a producer id before it looks.
    """
    if not request.transactional_id:
        return 0
    if getattr(request, "enable2_pc", False):
        return TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return UNSUPPORTED_VERSION if getattr(request, "keep_prepared_txn", False) else 0


def _not_now(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    """Return an error for which there is nobody to ask, so that it is asked again.

    Without a transactional id there is no coordinator: the Java client would look for that of nothing, and fail for good
    (TransactionManager.java `InitProducerIdHandler`).
    """
    if request.transactional_id is None and error_code in _SENDS_TO_THE_COORDINATOR:
        error_code = ErrorCode.coordinator_load_in_progress
    return _on_error(_ctx, request, error_code)


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "producer_id": -1, "producer_epoch": -1}


API: Final = Api(
    key=22,
    name="InitProducerId",
    versions=range(7),
    handle=handle_init_producer_id,
    forward=True,
    on_error=_not_now,
)
