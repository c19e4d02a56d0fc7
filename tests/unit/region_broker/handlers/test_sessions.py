"""What a login does to its connection, step by step (INV-SSE1, INV-LGI2, INV-LGI3); and limits of what it may ask for."""

import asyncio
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from kio.schema.errors import ErrorCode

from region_broker.handlers.sasl.create_delegation_token import (
    RENEWERS_MAX,
    handle_create_delegation_token,
)
from region_broker.handlers.sasl.sasl_authenticate import handle_sasl_authenticate
from region_broker.handlers.sasl.sasl_handshake import handle_sasl_handshake
from region_broker.handlers.sasl.sessions import choose, let_in
from region_broker.handlers.sasl.token_requests import SECRET_BYTES_MAX, Tokens, token_of
from region_broker.security.access import Access, DelegationToken
from region_broker.security.identity import Identity
from region_broker.security.sasl.desk import TOKEN_RULES, LoginDesk
from region_broker.security.sasl.login import AUTHENTICATE_KEY, Login, Proved, Stage
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.tokens import TokenSecret
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.server import CloseConnection
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

ALICE = Identity("User:alice", "h", "PLAIN")


class Desk:
    """Lets Alice in for a minute; or refuses, and holds the answer back."""

    def __init__(self) -> None:
        self.holds, self.let_go = 0, asyncio.Event()

    def begin(self, _mechanism: str, _host: str) -> Any:
        return object()

    def identity_of(self, _login: Login, _proved: Proved, _host: str) -> tuple[Identity, int]:
        return ALICE, 60_000

    async def step(self, login: Login, _host: str, _message: bytes) -> Any:
        raise LoginRefused(login.mechanism, "the password is wrong")

    def tell(self, _peer: str, _refused: LoginRefused) -> None:
        return

    async def hold_back(self, _host: str, *, is_judged: bool) -> None:
        assert is_judged
        self.holds += 1
        await self.let_go.wait()


def context(state: ConnectionState, desk: Any = None) -> Any:
    services = MagicMock(clock=ManualClock(), logins=desk)
    return SimpleNamespace(
        connection_state=state, services=services, host="h", peer="h:1", is_forwarded=False, api_key=AUTHENTICATE_KEY,
        version=2, correlation_id=1, identity=ALICE,
    )  # fmt: skip


async def test_another_login_takes_the_end_of_the_former_session_back() -> None:
    """Else the end of the first session shuts the second one; and a timer outlives its connection."""
    state = ConnectionState(must_log_in=True, login=Login(Stage.CHOSEN, "PLAIN"))
    desk = cast("LoginDesk", Desk())
    assert let_in(context(state), desk, Proved("User:alice")) == 60_000
    assert (state.identity, state.must_log_in, state.login.stage) == (ALICE, False, Stage.KNOWN)
    first, ended = state.login.ends, list[str]()

    def ends() -> None:
        ended.append("first")
        first()

    state.login.ends = ends
    ctx = context(state)
    ctx.services.clock.pass_ms(5_000)
    choose(ctx, desk, "PLAIN")
    now_ms = ctx.services.clock.monotonic_ms()
    assert (state.must_log_in, state.must_log_in_since_ms) == (True, now_ms), "shut meanwhile"
    assert let_in(ctx, desk, Proved("User:alice")) == 60_000
    assert ended == ["first"]
    assert state.login.logged_in_ms == now_ms
    second = MagicMock()
    state.login.ends()
    state.login.ends = second
    state.end()
    second.assert_called_once_with()


async def test_nothing_is_judged_on_a_connection_whose_refusal_waits() -> None:
    """INV-SAT2: else one connection guesses on while its first answer is held back."""
    desk = Desk()
    state = ConnectionState(must_log_in=True, login=Login(Stage.CHOSEN, "PLAIN", object()))  # type: ignore[arg-type]
    ctx, asked = context(state, desk), SimpleNamespace(auth_bytes=b"x")
    async with asyncio.TaskGroup() as tasks:
        refused = tasks.create_task(_closed(handle_sasl_authenticate(ctx, asked)))
        await until(lambda: desk.holds == 1, "its answer is held back")
        async with asyncio.timeout(5):
            await _closed(handle_sasl_authenticate(ctx, asked))
        assert desk.holds == 1, "out of order, and not judged"
        desk.let_go.set()
    assert refused.done()


async def _closed(answer: Any) -> None:
    with pytest.raises(CloseConnection):
        await answer


async def test_who_need_not_log_in_begins_no_login() -> None:
    state = ConnectionState(must_log_in=False, is_encrypted=True)
    asked = SimpleNamespace(mechanism="PLAIN")
    answer = await handle_sasl_handshake(context(state, MagicMock()), asked)
    assert answer["error_code"] is ErrorCode.illegal_sasl_state


async def test_a_token_has_so_many_renewers_and_its_secret_so_many_bytes() -> None:
    secret = TokenSecret(bytes(32))
    settings = SimpleNamespace(token_secret=secret, token_rules=TOKEN_RULES)
    desk = SimpleNamespace(settings=settings)
    ctx = context(ConnectionState(), desk)
    renewers = [
        SimpleNamespace(principal_type="User", principal_name=f"u{n}")
        for n in range(RENEWERS_MAX + 1)
    ]
    asked = SimpleNamespace(renewers=renewers, max_lifetime=timedelta(0))
    answer = await handle_create_delegation_token(ctx, asked)
    assert answer["error_code"] is ErrorCode.invalid_principal_type
    row = DelegationToken("id", "User:a", "User:a", (), 1, 2, 3)
    access = Access(tokens=(row,))
    tokens = Tokens(secret, TOKEN_RULES)
    assert await token_of(access, tokens, secret.hmac_of("id")) == row
    compared = MagicMock(is_of=MagicMock(return_value=True))
    long = bytes(SECRET_BYTES_MAX + 1)
    assert await token_of(access, Tokens(compared, TOKEN_RULES), long) is None
    compared.is_of.assert_not_called()
