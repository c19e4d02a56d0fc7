"""SaslHandshake (17), versions 0-1: the mechanism of the login that follows (KIP-43), or of another one on the same connection (KIP-368).

v1: what follows are SaslAuthenticate requests (KIP-152). Behind version 0 bare tokens would follow, which are no requests: it is answered
UNSUPPORTED_VERSION, and the connection closes. It is offered because librdkafka takes a node without it for one without logins.
Out of order, and where nobody logs in, ILLEGAL_SASL_STATE, as Kafka answers; a mechanism that is not offered ends the connection behind
UNSUPPORTED_SASL_MECHANISM. Source: SaslServerAuthenticator.java, KafkaApis.scala `handleSaslHandshakeRequest`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.closing import closing_answer
from region_broker.handlers.sasl.refusing import tell_refused
from region_broker.handlers.sasl.sessions import choose
from region_broker.security.sasl.desk import LoginDesk
from region_broker.security.sasl.login import AGAIN_AFTER_MS, HANDSHAKE_KEY, Stage
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.wire.connection_state import ConnectionState

_BARE_TOKENS: Final = "the client would send bare tokens (SaslHandshake 0), which are not taken: it must know SaslHandshake 1 and SaslAuthenticate"


async def handle_sasl_handshake(ctx: RequestContext, request: Any) -> Fields:
    """Begin an exchange, or say what is offered."""
    desk, state = ctx.services.logins, ctx.connection_state
    if desk is None or ctx.is_forwarded or not _may_begin(state):
        return _fields(ErrorCode.illegal_sasl_state, ())
    if _is_too_soon(ctx, desk):
        return _fields(ErrorCode.illegal_sasl_state, ())
    if ctx.version == 0:
        raise closing_answer(ctx, _fields(ErrorCode.unsupported_version, ()), _BARE_TOKENS)
    offered = desk.mechanisms(is_encrypted=state.is_encrypted)
    mechanism = str(request.mechanism)
    if mechanism not in offered:
        why = _why_not(desk, mechanism, offered)
        raise closing_answer(ctx, _fields(ErrorCode.unsupported_sasl_mechanism, offered), why)
    login = state.login
    if login.stage is Stage.KNOWN and login.mechanism != mechanism:  # INV-LGI2
        why = f"a session that began by {login.mechanism} cannot go on by {mechanism[:64]}"
        raise closing_answer(ctx, _fields(ErrorCode.unsupported_sasl_mechanism, (login.mechanism,)), why)  # fmt: skip
    choose(ctx, desk, mechanism)
    return _fields(ErrorCode.none, offered)


def _may_begin(state: ConnectionState) -> bool:
    """Return whether a login may begin here now."""
    login = state.login
    return login.may(HANDSHAKE_KEY) and (state.must_log_in or login.stage is Stage.KNOWN)


def _is_too_soon(ctx: RequestContext, desk: LoginDesk) -> bool:
    """Return whether another login comes at once behind the last one of the same connection, and tell of it (INV-LGI5)."""
    login = ctx.connection_state.login
    now_ms = ctx.services.clock.monotonic_ms()
    if login.identity is None or now_ms >= login.logged_in_ms + AGAIN_AFTER_MS:
        return False
    why = f"{login.identity.principal} has logged in less than {AGAIN_AFTER_MS} ms ago"
    tell_refused(ctx, desk, login.identity, LoginRefused(login.mechanism, why))
    return True


def _why_not(desk: LoginDesk, mechanism: str, offered: tuple[str, ...]) -> str:
    if mechanism in desk.settings.mechanisms:
        return f"{mechanism} is for connections over TLS only: what it sends can be used by whoever hears it"
    return f"the client asked for {mechanism[:64]!r}, and offered are {', '.join(offered) or 'none on this connection'}"


def _fields(error: ErrorCode, mechanisms: tuple[str, ...]) -> Fields:
    return {"error_code": error, "mechanisms": mechanisms}


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return _fields(ErrorCode(error_code), ())


API: Final = Api(
    HANDSHAKE_KEY, "SaslHandshake", range(2), handle_sasl_handshake, on_error=_on_error
)
