"""EndTxn (26), versions 0-5.

v2: PRODUCER_FENCED.  v4: TRANSACTION_ABORTABLE.  v5: TV2, the epoch is bumped and returned (KIP-890, C20).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields, Finish, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.transactions.errors import ErrorVersions
from region_broker.wire.codec.fast_paths.transactions import END_KEY, EndRequest, end_answer
from txn_coordinator.verdicts import EndOutcome

ERRORS: Final = ErrorVersions(producer_fenced_since=2, abortable_since=4)
_TV2_SINCE: Final = 5


def begin_end_txn(ctx: RequestContext, request: Any, finish: Finish) -> bool:
    """Commit or abort without a task; False if a new producer id must be taken first."""
    if not isinstance(request, EndRequest):
        return False

    def done(outcome: EndOutcome) -> None:
        error_code = ERRORS.error_of(outcome.verdict, ctx.version)
        names = (ErrorCode(error_code).name,) if error_code else ()
        pair = (outcome.producer_id, outcome.producer_epoch)
        finish(Written(end_answer(ctx.version, ctx.correlation_id, error_code, pair), names))

    return ctx.services.txn.begin_end_txn(
        request.transactional_id, request.producer_id, request.producer_epoch,
        commit=request.commit, tv=_generation(ctx), sender=ctx.sender, done=done,
    )  # fmt: skip


def _generation(ctx: RequestContext) -> int:
    return 2 if ctx.version >= _TV2_SINCE else 1


async def handle_end_txn(ctx: RequestContext, request: Any) -> Fields:
    """Commit or abort; answered when the decision is durable (C19)."""
    outcome = await ctx.services.txn.end_txn(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        bool(request.commit if isinstance(request, EndRequest) else request.committed),
        _generation(ctx),
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
    key=END_KEY,
    name="EndTxn",
    versions=range(6),
    handle=handle_end_txn,
    forward=True,
    on_error=_on_error,
    begin=begin_end_txn,
)
