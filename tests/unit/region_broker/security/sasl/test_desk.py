"""The desk by itself: what it refuses unjudged, and what it looks up (INV-SDK2, INV-SAT2)."""

import asyncio
import hashlib
import threading
from collections import Counter

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.access import NO_ACCESS, Access, DelegationToken, ScramKeys
from region_broker.security.identity import Identity
from region_broker.security.sasl import attempts
from region_broker.security.sasl import desk as desk_module
from region_broker.security.sasl.desk import PROVING_MAX, LoginDesk, LoginSettings, Proving
from region_broker.security.sasl.login import AUTHENTICATE_KEY, Login, Outcome, Proved, Stage
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.scram_keys import Kind, played_keys
from region_broker.security.sasl.tokens import TokenSecret
from tests.fixtures.scram_users import access_of, rfc_keys, scram_keys
from tests.fixtures.waiting import until

FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"


class Held:
    """A clock whose sleeps end when they are let go."""

    def __init__(self) -> None:
        self.sleeping = self.now_ms = 0
        self.let_go = asyncio.Event()

    def monotonic_ms(self) -> int:
        return self.now_ms

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


async def test_INV_SAT2_logins_that_came_together_are_judged_while_few_refusals_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them were: nobody waited as they came, and each then waited for its turn."""
    monkeypatch.setattr(attempts, "WAITING_MAX", 3)
    clock, judged, unjudged = Held(), list[bool](), list[bool]()
    settings = LoginSettings(mechanisms=("PLAIN",))
    access = access_of(rfc_keys())
    desk = LoginDesk(settings, lambda: access, clock, SystemChance())

    async def guess() -> None:
        login = begun(desk, "10.0.0.1", "PLAIN")
        with pytest.raises(LoginRefused) as refused:
            await desk.step(login, "10.0.0.1", b"\0user\0wrong")
        is_judged = refused.value.is_judged
        (judged if is_judged else unjudged).append(is_judged)
        await desk.hold_back("10.0.0.1", is_judged=is_judged)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(guess())
        await until(lambda: clock.sleeping == 20, "all are refused")
        assert (len(judged), len(unjudged)) == (3, 17)
        assert desk._attempts.is_full("10.0.0.1")
        clock.let_go.set()
    assert not desk._attempts.is_full("10.0.0.1")
    first = await desk.step(begun(desk, "10.0.0.1", "PLAIN"), "10.0.0.1", b"\0user\0pencil")
    assert first.proved is not None


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


@pytest.mark.parametrize(
    ("left_ms", "session_ms"), [(10_000, 10_000), (90_000, 60_000), (0, 60_000)]
)
def test_INV_LGI3_a_session_ends_with_what_proved_it_or_sooner(
    left_ms: int, session_ms: int
) -> None:
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256",), max_reauth_ms=60_000)
    desk = LoginDesk(settings, lambda: NO_ACCESS, Held(), SystemChance())
    proved = Proved("User:alice", Held().wall_ms() + left_ms if left_ms else 0)
    login = Login(Stage.CHOSEN, "SCRAM-SHA-256")
    assert desk.identity_of(login, proved, "h")[1] == session_ms


def test_INV_SDK3_keys_of_nobody_are_made_for_who_is_there_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []
    real = played_keys

    def counted(secret: bytes, name: str, kind: Kind) -> ScramKeys:
        made.append(name)
        return real(secret, name, kind)

    monkeypatch.setattr(desk_module, "played_keys", counted)
    desk = desk_with(Held(), access_of(rfc_keys()))
    for name in ("user", "nobody"):
        desk.keys_for("SCRAM-SHA-256", name)
        desk.keys_for_password(name)
    assert made == ["user", "user", "nobody", "nobody"]


def test_INV_SDK4_nodes_with_one_secret_of_tokens_show_the_same_for_who_is_not_there() -> None:
    """Also where they share nothing else, or have not heard of it yet."""
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256",), token_secret=TokenSecret(bytes(32)))
    desks = [
        LoginDesk(settings, lambda: NO_ACCESS, Held(), SystemChance(), shared=str),
        LoginDesk(settings, lambda: NO_ACCESS, Held(), SystemChance(), shared=lambda: "born"),
    ]
    assert len({desk.keys_for("SCRAM-SHA-256", "nobody")[0].salt for desk in desks}) == 1


async def test_plain_lets_nobody_in_by_keys_that_are_nobodys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = desk_with(Held(), NO_ACCESS)
    for is_real in (True, False):
        monkeypatch.setattr(
            desk, "keys_for_password", lambda _name, is_real=is_real: (rfc_keys(), is_real)
        )
        login = begun(desk, "h", "PLAIN")
        if is_real:
            assert (await desk.step(login, "h", b"\0user\0pencil")).proved == Proved("User:user")
            continue
        with pytest.raises(LoginRefused, match="no such user"):
            await desk.step(login, "h", b"\0user\0pencil")


async def test_INV_SDK2_keys_are_made_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[int] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, secret: bytes, salt: bytes, iterations: int) -> bytes:
        threads.append(threading.get_ident())
        return real(name, secret, salt, iterations)

    desk = desk_with(Held(), NO_ACCESS)
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    keys = await desk.token_keys("h", "SCRAM-SHA-256", "id")
    assert not await desk.password_fits("h", keys, b"wrong")
    assert len(threads) == 2
    assert threading.get_ident() not in threads


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


async def test_INV_SDK2_few_work_at_once_and_of_one_address_one() -> None:
    proving, working, let_go = Proving(), list[str](), asyncio.Event()
    most: Counter[str] = Counter()

    async def work(host: str) -> None:
        async with proving.turn(host):
            working.append(host)
            most["all"] = max(most["all"], len(working))
            most[host] = max(most[host], working.count(host))
            await let_go.wait()
            await asyncio.sleep(0)
            working.remove(host)

    async with asyncio.TaskGroup() as tasks:
        for host in ("a", "a", "a", "b", "c"):
            tasks.create_task(work(host))
        await until(lambda: len(working) == PROVING_MAX, "as many as may work")
        assert sorted(working) == ["a", "b"], "addresses take turns"
        let_go.set()
    assert most == {"all": PROVING_MAX, "a": 1, "b": 1, "c": 1}
    assert not proving._turns._asking, "nothing is remembered"


def test_a_storm_of_failures_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock = Held()
    desk, refused = desk_with(clock, NO_ACCESS), LoginRefused("PLAIN", "the password is wrong")
    for _ in range(10):
        desk.tell("10.0.0.1:5", refused)
    clock.now_ms = 1_000
    desk.tell("10.0.0.1:5", refused)
    told = [row.getMessage() for row in caplog.records]
    assert ["(0 more" in told[0], "(9 more" in told[1], len(told)] == [True, True, 2]


def test_INV_SKY1_who_is_not_there_looks_as_users_do_now() -> None:
    access = [access_of(rfc_keys())]
    settings = LoginSettings(mechanisms=("SCRAM-SHA-256",))
    desk = LoginDesk(settings, lambda: access[0], Held(), SystemChance())
    assert desk.keys_for("SCRAM-SHA-256", "nobody")[0].iterations == 4096
    row = scram_keys("user", "pencil", iterations=8192)
    access[0] = Access(number=1, keys=(row,))
    assert desk.keys_for("SCRAM-SHA-256", "nobody")[0].iterations == 8192


async def test_INV_DTK3_keys_of_a_token_are_nobodys_where_no_secret_is_known() -> None:
    """Two nodes without the secret of tokens show two salts, and each always its own."""
    one, other = desk_with(Held(), NO_ACCESS), desk_with(Held(), NO_ACCESS)
    made = [await desk.token_keys("h", "SCRAM-SHA-256", "id") for desk in (one, one, other)]
    assert made[0] == made[1]
    assert made[0].salt != made[2].salt
