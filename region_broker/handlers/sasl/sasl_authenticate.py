"""SaslAuthenticate (36), versions 0-2: one message of a login, and the answer to it (KIP-152).  v1: how long the session lasts (KIP-368).

A login that fails is answered SASL_AUTHENTICATION_FAILED after a while, and the connection closes; so it does behind a message that is out
of order before the login (ILLEGAL_SASL_STATE). Source: SaslServerAuthenticator.java.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.closing import closing_answer
from region_broker.handlers.sasl.refusing import tell_refused
from region_broker.handlers.sasl.sessions import let_in
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, user
from region_broker.security.sasl.desk import LoginDesk
from region_broker.security.sasl.login import AUTHENTICATE_KEY
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.wire.server import CloseConnection

_OUT_OF_ORDER: Final = (
    "SaslAuthenticate came without a SaslHandshake before it, or while another one was being judged"
)
_ILLEGAL: Final[Fields] = {
    "error_code": ErrorCode.illegal_sasl_state, "error_message": _OUT_OF_ORDER, "auth_bytes": b"", "session_lifetime": 0,
}  # fmt: skip


async def handle_sasl_authenticate(ctx: RequestContext, request: Any) -> Fields:
    """Go on with the login."""
    desk, state = ctx.services.logins, ctx.connection_state
    if desk is None or ctx.is_forwarded or not state.must_log_in:
        return _ILLEGAL
    if not state.login.may(AUTHENTICATE_KEY):
        raise closing_answer(ctx, _ILLEGAL, _OUT_OF_ORDER)
    try:
        outcome = await desk.step(state.login, ctx.host, bytes(request.auth_bytes))
        session_ms = 0 if outcome.proved is None else let_in(ctx, desk, outcome.proved)
    except LoginRefused as refused:
        await _count(ctx, desk, refused)
        raise _refusal(ctx, refused) from refused
    if outcome.refused is not None:  # INV-SBL1
        await _count(ctx, desk, outcome.refused)
        state.login.is_busy = False  # one more message is awaited
    if outcome.proved is not None:
        ctx.services.metrics.logins.labels(state.login.mechanism, "accepted").inc()
        ctx.services.audit.login(ctx.identity, right=True)
    return {
        "error_code": ErrorCode.none, "error_message": None, "auth_bytes": outcome.answer, "session_lifetime": session_ms,
    }  # fmt: skip


async def _count(ctx: RequestContext, desk: LoginDesk, refused: LoginRefused) -> None:
    """Tell everybody who counts refusals, once for a login, and return when the client may be told."""
    login = ctx.connection_state.login
    login.is_busy = True  # nothing more is judged on this connection
    if login.is_refused:
        return
    login.is_refused = True
    who = user(refused.tried) if refused.tried else ANONYMOUS_PRINCIPAL
    tell_refused(ctx, desk, Identity(who, ctx.host, login.mechanism), refused)
    await desk.hold_back(ctx.host, is_judged=refused.is_judged)


def _refusal(ctx: RequestContext, refused: LoginRefused) -> CloseConnection:
    """Return what ends the connection."""
    fields = {
        "error_code": ErrorCode.sasl_authentication_failed, "error_message": refused.said, "auth_bytes": b"", "session_lifetime": 0,
    }  # fmt: skip
    return closing_answer(ctx, fields, f"its login failed: {refused}", is_told=True)


API: Final = Api(AUTHENTICATE_KEY, "SaslAuthenticate", range(3), handle_sasl_authenticate)
