"""What a login does to its connection: closed to all else meanwhile, open behind it, closed again when the session ends (KIP-368).

INV-SSE1  a connection speaks for somebody from the step on in which that was proved, and in that step it is let in
Not here: what proves it (`security.sasl.desk`), who else is turned away meanwhile (`dispatch.dispatcher`).
"""

import asyncio
from collections.abc import Callable
from contextvars import Context

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.sasl.desk import LoginDesk
from region_broker.security.sasl.login import (
    AUTHENTICATE_KEY,
    HANDSHAKE_KEY,
    NEXT,
    Proved,
    Stage,
)
from region_broker.wire.connection_state import ConnectionState


def choose(ctx: RequestContext, desk: LoginDesk, mechanism: str) -> None:
    """Begin an exchange by `mechanism`; nothing else is served until its end."""
    state = ctx.connection_state
    login = state.login
    login.stage = NEXT[login.stage, HANDSHAKE_KEY]
    login.mechanism = mechanism
    login.exchange = desk.begin(mechanism, ctx.host)
    if login.stage is Stage.CHOSEN_AGAIN:
        _shut(state, ctx.services.clock.monotonic_ms())


def let_in(ctx: RequestContext, desk: LoginDesk, proved: Proved) -> int:
    """Let whom an exchange has proved in; return for how many ms, 0: for ever. Raises `LoginRefused`."""
    state, now_ms = ctx.connection_state, ctx.services.clock.monotonic_ms()
    login = state.login
    identity, session_ms = desk.identity_of(login, proved, ctx.host)
    login.stage = NEXT[login.stage, AUTHENTICATE_KEY]
    login.exchange = None
    login.logged_in_ms = now_ms
    is_first, login.identity = login.identity is None, identity
    state.identity, state.must_log_in = identity, False
    if is_first:
        state.on_first_login()
        state.on_end(login.end)
    login.ends()
    login.ends = _ending(ctx, session_ms)
    return session_ms


def _ending(ctx: RequestContext, session_ms: int) -> Callable[[], None]:
    """Have the session end after `session_ms`, 0: never; return what takes that back."""
    if not session_ms:
        return lambda: None
    state, clock = ctx.connection_state, ctx.services.clock
    # A context of its own: for as long as the session lasts that of this request would hold its frame, with the token in it.
    timer = asyncio.get_running_loop().call_later(
        session_ms / 1_000, lambda: _shut(state, clock.monotonic_ms()), context=Context()
    )
    return timer.cancel


def _shut(state: ConnectionState, now_ms: int) -> None:
    """Serve nothing but a login from now on (INV-LGI3)."""
    state.must_log_in = True
    state.must_log_in_since_ms = now_ms
