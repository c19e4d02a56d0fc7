"""The desk by itself: what it refuses unjudged, and what it looks up (INV-SDK2, INV-SAT2)."""

import asyncio

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.access import NO_ACCESS, Access, DelegationToken
from region_broker.security.identity import Identity
from region_broker.security.sasl import attempts
from region_broker.security.sasl.desk import LoginDesk, LoginSettings
from region_broker.security.sasl.login import AUTHENTICATE_KEY, Login, Outcome, Proved, Stage
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.tokens import TokenSecret
from tests.fixtures.scram_users import access_of, rfc_keys
from tests.fixtures.waiting import until

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"


class Held:
    """A clock whose sleeps end when they are let go."""

    def __init__(self) -> None:
        self.sleeping = 0
        self.let_go = asyncio.Event()

    def monotonic_ms(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        assert duration_ms > 0
        self.sleeping += 1
        await self.let_go.wait()


def desk_with(clock: Held, access: Access) -> LoginDesk:
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256", "SCRAM-SHA-512"))
    return LoginDesk(settings, lambda: access, clock, SystemChance())


def begun(desk: LoginDesk, host: str, mechanism: str = "SCRAM-SHA-256") -> Login:
    return Login(Stage.CHOSEN, mechanism, desk.begin(mechanism, host))


async def test_INV_SAT2_an_address_whose_refusals_wait_is_refused_unjudged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts, "WAITING_MAX", 1)
    clock = Held()
    desk = desk_with(clock, access_of(rfc_keys()))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(desk.hold_back("10.0.0.1"))
        await until(lambda: clock.sleeping == 1, "a refusal waits")
        with pytest.raises(LoginRefused, match="too many failed logins"):
            await desk.step(begun(desk, "10.0.0.1"), "10.0.0.1", FIRST)
        assert (await desk.step(begun(desk, "10.0.0.2"), "10.0.0.2", FIRST)).answer
        clock.let_go.set()
    assert (await desk.step(begun(desk, "10.0.0.1"), "10.0.0.1", FIRST)).answer, "it has left"


async def test_nothing_else_is_judged_on_a_connection_while_a_message_is() -> None:
    """INV-LGI1."""
    desk, go = desk_with(Held(), NO_ACCESS), asyncio.Event()

    class Slow:
        async def step(self, message: bytes) -> Outcome:
            await go.wait()
            return Outcome(message)

    login = Login(Stage.CHOSEN, "SCRAM-SHA-256", Slow())
    assert login.may(AUTHENTICATE_KEY)
    async with asyncio.TaskGroup() as tasks:
        step = tasks.create_task(desk.step(login, "10.0.0.1", b"x"))
        await until(lambda: login.is_busy, "it is judged")
        assert not login.may(AUTHENTICATE_KEY)
        go.set()
    assert step.result() == Outcome(b"x")
    assert login.may(AUTHENTICATE_KEY)


def test_what_has_ended_meanwhile_lets_nobody_in() -> None:
    """INV-LGI3."""
    clock = Held()
    desk, login = desk_with(clock, NO_ACCESS), Login(Stage.CHOSEN, "SCRAM-SHA-256")
    alice = Proved("User:alice", clock.wall_ms() + 1)
    assert desk.identity_of(login, alice, "h") == (
        Identity("User:alice", "h", "SCRAM-SHA-256", clock.wall_ms() + 1), 1,
    )  # fmt: skip
    with pytest.raises(LoginRefused, match="has ended"):
        desk.identity_of(login, Proved("User:alice", clock.wall_ms()), "h")
    login.identity = Identity("User:bob")
    with pytest.raises(LoginRefused, match="may not log in again as"):
        desk.identity_of(login, alice, "h")


def test_a_token_counts_until_it_expires_and_where_secrets_of_tokens_are_known() -> None:
    """INV-DTK2."""
    now_ms = Held().wall_ms()
    rows = [
        DelegationToken("live", "User:a", "User:a", (), 1, now_ms + 1, now_ms + 9),
        DelegationToken("expired", "User:a", "User:a", (), 1, now_ms, now_ms + 9),
        DelegationToken("ended", "User:a", "User:a", (), 1, now_ms + 9, now_ms),
    ]
    access = Access(tokens=tuple(rows))
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256",), token_secret=TokenSecret(bytes(32)))
    desk = LoginDesk(settings, lambda: access, Held(), SystemChance())
    assert [desk.live_token(row.token_id) for row in rows] == [rows[0], None, None]
    assert desk.live_token("unknown") is None
    assert desk_with(Held(), access).live_token("live") is None, "this node has no secret of tokens"
