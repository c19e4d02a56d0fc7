"""Logins on a Kafka port: what is served before, how they fail, how sessions end (INV-LGI1, INV-LGI2,
INV-LGI3, INV-SDK1, INV-SDK2, INV-SDK3, INV-SSE1, INV-SSL1, INV-TKR1, INV-DTK1, INV-DTK2)."""

import asyncio
import base64
import gc
import hashlib
import hmac
import json
import logging
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import scramp
from joserfc import jws
from joserfc.jwk import ECKey, KeySet
from kio.schema.errors import ErrorCode

from region_broker.controller.access_commands import ChangeAccess
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl import create_delegation_token
from region_broker.limits import CHANGE_ATTEMPTS
from region_broker.ports.system.chance import SystemChance
from region_broker.security.access import (
    NO_ACCESS,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.audit.events import Kind
from region_broker.security.authorizer import AclAuthorizer
from region_broker.security.sasl.bearer import BearerRules
from region_broker.security.sasl.bearer_login import BearerJudge
from region_broker.security.sasl.desk import LoginDesk, LoginSettings
from region_broker.security.sasl.jwks import KeySource
from region_broker.security.sasl.login import (
    AGAIN_AFTER_MS,
    FRAME_BYTES_MAX,
    LOGIN_TIMEOUT_MS,
    NEXT,
    Stage,
)
from region_broker.security.sasl.scram_keys import keys_of
from region_broker.security.sasl.tokens import TokenSecret
from region_broker.wire.connection import Connection
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.listening import Listening
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.kafka_port import RawClient, WireFixture, frame_of, wire_fixture
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until
from tests.unit.region_broker.handlers.test_not_led_here import FORWARDED, REFUSED

SCRAM = "SCRAM-SHA-256"
PASSWORD = "open-sesame-9c4e"
ALICE_IN_PLAIN = f"\0alice\0{PASSWORD}".encode()
ALL = {"topics": None, "allow_auto_topic_creation": False}
USERS = {
    (name, mechanism): keys_of(name, mechanism, PASSWORD.encode(), b"salty" * 4, 4096)
    for name in ("alice", "carol")
    for mechanism in (SCRAM, "SCRAM-SHA-512")
}
SETTINGS = LoginSettings(
    mechanisms=(SCRAM, "SCRAM-SHA-512", "PLAIN"), failed_delay_ms=0, file_users=USERS
)


@asynccontextmanager
async def port(
    folder: Path, settings: LoginSettings = SETTINGS, **more: Any
) -> AsyncIterator[WireFixture]:
    async with wire_fixture(folder, logins=settings, is_encrypted=True, **more) as fixture:
        yield fixture


async def shake(client: RawClient, mechanism: str = SCRAM) -> Any:
    return await client.call(17, 1, {"mechanism": mechanism})


async def say(client: RawClient, message: bytes) -> Any:
    return await client.call(36, 2, {"auth_bytes": message})


async def scram(client: RawClient, user: str = "alice", password: str = PASSWORD) -> Any:
    """Log in by SCRAM behind a handshake; return the last answer."""
    asked = scramp.ScramClient([SCRAM], user, password)
    first = await say(client, asked.get_client_first().encode())
    assert first.error_code is ErrorCode.none
    asked.set_server_first(first.auth_bytes.decode())
    answer = await say(client, asked.get_client_final().encode())
    if answer.error_code is ErrorCode.none:
        asked.set_server_final(answer.auth_bytes.decode())
    return answer


async def log_in(client: RawClient, **who: str) -> Any:
    assert (await shake(client)).error_code is ErrorCode.none
    return await scram(client, **who)


async def works(client: RawClient) -> bool:
    answer = await client.call(3, 4, ALL)
    return len(answer.brokers) == 1


async def test_who_has_logged_in_is_served_and_is_somebody(tmp_path: Path) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        assert (await client.call(18, 3, {"client_software_name": "x", "client_software_version": "1"})).error_code is ErrorCode.none  # fmt: skip
        answer = await shake(client)
        assert list(answer.mechanisms) == [SCRAM, "SCRAM-SHA-512", "PLAIN"]
        assert (await scram(client)).error_code is ErrorCode.none
        assert await works(client)
        [link] = fixture.server._links
        identity = link.core.peer.state.identity
        assert (identity.principal, identity.host, identity.mechanism) == ("User:alice", "127.0.0.1", SCRAM)  # fmt: skip


ASKED: dict[int, Any] = {3: ALL, **{key: row[1] for key, row in REFUSED.items()}, **FORWARDED}


@pytest.mark.parametrize("key", [0, 3, 8, 19, 20, 22, 38, 51])
async def test_nothing_but_a_login_is_served_before_it(tmp_path: Path, key: int) -> None:
    """CVE class: requests before authentication."""
    version = 4 if key == 3 else all_apis().by_key[key].versions[-1]
    async with port(tmp_path) as fixture:
        for begun in (False, True):
            client = await fixture.connect()
            if begun:
                await shake(client)
            client.send(key, version, ASKED[key])
            assert await asyncio.wait_for(client.closed(), 10)


async def test_INV_LGI4_what_is_asked_before_a_login_is_a_refusal_in_the_trail(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with port(tmp_path, replace(BOUNDED, max_reauth_ms=100), clock=clock) as fixture:
        trail = fixture.services.audit = ToldTrail()
        asking, of_no_api = await fixture.connect(), await fixture.connect()
        asking.send(3, 4, ALL)
        assert await asking.closed()
        of_no_api.send_raw(struct.pack(">ihhih", 10, 77, 0, 1, -1))
        assert await of_no_api.closed()
        ended = await fixture.connect()
        await log_in(ended)
        state = list(fixture.server._links)[-1].core.peer.state
        await until(lambda: state.must_log_in)
        ended.send(3, 4, ALL)
        assert await ended.closed()
    told = [each for each in trail.told if each.kind is Kind.REFUSAL]
    assert {each.actor.host for each in told} == {"127.0.0.1"}
    assert [(each.actor.principal, each.operation, each.reason) for each in told] == [
        ("User:ANONYMOUS", "request", "not-logged-in"), ("User:ANONYMOUS", "request", "not-logged-in"),
        ("User:alice", "Metadata", "session-ended"),
    ]  # fmt: skip


async def test_a_request_behind_a_login_that_is_not_decided_ends_the_connection(
    tmp_path: Path,
) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        await shake(client, "PLAIN")
        client.send(36, 2, {"auth_bytes": ALICE_IN_PLAIN})
        client.send(3, 4, ALL)
        rest = await asyncio.wait_for(client.reader.read(), 10)
        assert b"127.0.0.1" not in rest  # no broker was told


async def test_large_requests_come_only_behind_a_login(tmp_path: Path) -> None:
    """CVE-2022-34917."""
    async with port(tmp_path) as fixture:
        stranger, known = await fixture.connect(), await fixture.connect()
        stranger.send_raw(struct.pack(">i", FRAME_BYTES_MAX + 1))
        assert await stranger.closed()
        await log_in(known)
        names = [{"name": f"{n:0200}"} for n in range(FRAME_BYTES_MAX // 100)]
        frame = frame_of(3, 4, {**ALL, "topics": names})
        assert len(frame) > FRAME_BYTES_MAX
        known.send_raw(struct.pack(">i", len(frame)) + frame)
        assert len(await known.receive_raw()) > FRAME_BYTES_MAX


async def test_who_does_not_log_in_is_cut_off_and_who_has_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, clock=clock) as fixture:
        silent, known = await fixture.connect(), await fixture.connect()
        await shake(silent)
        await log_in(known)
        clock.pass_ms(LOGIN_TIMEOUT_MS + 1)
        assert await asyncio.wait_for(silent.closed(), 10)
        assert await works(known)


async def test_INV_WS8_nobody_is_cut_off_for_a_login_that_was_held(tmp_path: Path) -> None:
    """1. A node becomes one of several: requests are held. 2. Who has not logged in sends a login, which is left unread, for more
    than the time that it has. 3. Requests are held no more. So it was with sessions that ended meanwhile."""
    clock = ManualClock()
    settings = replace(SETTINGS, max_reauth_ms=50)
    async with port(tmp_path, settings, clock=clock) as fixture:
        stranger, known = await fixture.connect(), await fixture.connect()
        await log_in(known)
        states = [link.core.peer.state for link in fixture.server._links]
        assert [each.login.identity is None for each in states] == [True, False]
        fixture.server.hold()
        await until(lambda: states[1].must_log_in)
        clock.pass_ms(LOGIN_TIMEOUT_MS + 1)
        stranger.send(17, 1, {"mechanism": SCRAM})
        fixture.server.release()
        clock.pass_ms(1_000)
        await stranger.receive(17, 1)
        assert (await scram(stranger)).error_code is ErrorCode.none
        assert (await log_in(known)).error_code is ErrorCode.none
        clock.pass_ms(LOGIN_TIMEOUT_MS + 1)
        silent = await fixture.connect()
        await shake(silent)
        clock.pass_ms(LOGIN_TIMEOUT_MS + 1)
        assert await asyncio.wait_for(silent.closed(), 10)


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("nobody", PASSWORD), ("nobody", "x")]
)
@pytest.mark.parametrize("mechanism", [SCRAM, "PLAIN"])
async def test_wrong_password_and_unknown_user_are_told_the_same(
    tmp_path: Path, mechanism: str, user: str, password: str
) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        await shake(client, mechanism)
        if mechanism == "PLAIN":
            answer = await say(client, f"\0{user}\0{password}".encode())
        else:
            answer = await scram(client, user, password)
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert answer.error_message == (
            f"Authentication failed: the user name or the credentials are wrong ({mechanism})"
        )
        assert answer.auth_bytes == b""
        assert await client.closed()


async def test_as_much_is_computed_for_who_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CVE class: timing of user lookup. Counted, not timed."""
    calls: list[tuple[str, int, int]] = []
    real = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        calls.append((name, len(salt), iterations))
        return real(name, password, salt, iterations)

    async with port(tmp_path) as fixture:
        monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
        for user in ("alice", "nobody"):
            client = await fixture.connect()
            await shake(client, "PLAIN")
            await say(client, f"\0{user}\0wrong".encode())
        assert calls == [("sha512", 20, 4096)] * 2


def shown(settings: LoginSettings, birth: str, user: str) -> bytes:
    """Return the salt that a node, which has just started, shows for a user."""
    desk = LoginDesk(
        settings, lambda: NO_ACCESS, ManualClock(), SystemChance(), shared=lambda: birth
    )
    return desk.keys_for(SCRAM, user)[0].salt


@pytest.mark.parametrize(
    "settings",
    [SETTINGS, replace(SETTINGS, token_secret=TokenSecret(b"s" * 32))],
    ids=["by the birth of the cluster", "by the secret of its tokens"],
)
def test_INV_SDK4_two_nodes_show_the_same_for_who_is_not_there(settings: LoginSettings) -> None:
    """CVE class: users found by what differs. Mallory asks two nodes, or one twice with a start in between, for the same name."""
    birth = "5" * 32
    assert shown(settings, birth, "nobody") == shown(settings, birth, "nobody")
    assert shown(settings, birth, "nobody") != shown(settings, birth, "nobody2")
    assert shown(settings, birth, "alice") == USERS["alice", SCRAM].salt
    elsewhere = replace(settings, token_secret=settings.token_secret and TokenSecret(b"t" * 32))
    assert shown(elsewhere, "6" * 32, "nobody") != shown(settings, birth, "nobody")


async def test_plain_needs_tls(tmp_path: Path) -> None:
    """CVE class: PLAIN over clear text. It is refused before the client has sent a password."""
    async with wire_fixture(tmp_path, logins=SETTINGS) as fixture:
        client = await fixture.connect()
        answer = await shake(client, "PLAIN")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert list(answer.mechanisms) == [SCRAM, "SCRAM-SHA-512"]
        assert await client.closed()


def test_a_connection_is_encrypted_where_its_listener_speaks_tls() -> None:
    """INV-SDK1."""
    stream: Any = SimpleNamespace(peer="127.0.0.1:5", certificate=None)
    tls: Any = object()
    assert Listening(tls=tls, must_log_in=True).state_of(stream).is_encrypted
    assert not Listening(must_log_in=True).state_of(stream).is_encrypted


async def test_an_unknown_mechanism_is_told_what_is_offered(tmp_path: Path) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await shake(client, "GSSAPI")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert SCRAM in answer.mechanisms
        assert await client.closed()


async def test_bare_tokens_are_refused(tmp_path: Path) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        answer = await client.call(17, 0, {"mechanism": "PLAIN"})
        assert answer.error_code is ErrorCode.unsupported_version
        assert await client.closed()


async def test_messages_out_of_order_are_refused(tmp_path: Path) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        assert (await say(client, b"x")).error_code is ErrorCode.illegal_sasl_state
        assert await client.closed()
        client = await fixture.connect()
        await shake(client)
        assert (await shake(client)).error_code is ErrorCode.illegal_sasl_state
        client = await fixture.connect()
        await log_in(client)
        assert (await say(client, b"x")).error_code is ErrorCode.illegal_sasl_state
        assert await works(client)


async def test_a_second_message_while_one_is_judged_ends_the_connection(tmp_path: Path) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        await shake(client, "PLAIN")
        for _ in range(2):
            client.send(36, 2, {"auth_bytes": ALICE_IN_PLAIN})
        await asyncio.wait_for(client.reader.read(), 10)
        assert client.reader.at_eof()


async def test_where_nobody_logs_in_a_login_is_out_of_place(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        assert (await shake(client)).error_code is ErrorCode.illegal_sasl_state
        assert (await say(client, b"x")).error_code is ErrorCode.illegal_sasl_state
        assert await works(client)


async def test_keys_in_the_metadata_go_before_those_of_the_file(tmp_path: Path) -> None:
    """INV-SUF1."""
    async with port(tmp_path) as fixture:
        keys = keys_of("alice", SCRAM, b"newer", b"pepper" * 4, 4096)
        await fixture.services.metadata.change_access(AccessChange(keys_put=(keys,)))
        client = await fixture.connect()
        assert (await log_in(client)).error_code is ErrorCode.sasl_authentication_failed
        client = await fixture.connect()
        assert (await log_in(client, password="newer")).error_code is ErrorCode.none
        client = await fixture.connect()
        await shake(client, "PLAIN")  # the file has stronger keys of the older password
        answer = await say(client, ALICE_IN_PLAIN)
        assert answer.error_code is ErrorCode.sasl_authentication_failed


async def test_a_failure_is_held_back_and_others_are_not(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = LoginSettings(mechanisms=(SCRAM,), failed_delay_ms=100, file_users=USERS)
    async with port(tmp_path, settings, clock=clock) as fixture:
        wrong, good = await fixture.connect(), await fixture.connect()
        await shake(wrong)
        async with asyncio.TaskGroup() as tasks:
            refused = tasks.create_task(scram(wrong, password="wrong"))
            await until(lambda: len(clock.sleepers) > 1)  # the sweeper, and this one
            await log_in(good)
            assert await works(good)
            assert not refused.done()
            clock.pass_ms(100)
        assert refused.result().error_code is ErrorCode.sasl_authentication_failed


async def test_INV_SAT1_nothing_is_judged_behind_a_refusal_that_is_held_back(
    tmp_path: Path,
) -> None:
    """Else one connection tries passwords as fast as it likes, and the right one lets it in before the first refusal is told."""
    clock = ManualClock()
    settings = LoginSettings(mechanisms=("PLAIN",), failed_delay_ms=100, file_users=USERS)
    async with port(tmp_path, settings, clock=clock) as fixture:
        counted = fixture.services.metrics.logins
        client = await fixture.connect()
        await shake(client, "PLAIN")
        client.send(36, 2, {"auth_bytes": b"\0alice\0wrong"})
        await until(lambda: len(clock.sleepers) > 1)  # the sweeper, and this one
        client.send(36, 2, {"auth_bytes": ALICE_IN_PLAIN})
        assert await asyncio.wait_for(client.reader.read(), 10) == b""
        assert client.reader.at_eof()
        clock.pass_ms(100)
        assert counted.labels("PLAIN", "accepted")._value.get() == 0
        assert counted.labels("PLAIN", "refused")._value.get() == 1


# --- sessions that end, and logins on the same connection (KIP-368) --------------------------------


BOUNDED = LoginSettings(
    mechanisms=(SCRAM, "SCRAM-SHA-512"), max_reauth_ms=60_000, failed_delay_ms=0, file_users=USERS
)


async def test_a_session_tells_its_length_and_goes_on_by_another_login(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, BOUNDED, clock=clock) as fixture:
        client = await fixture.connect()
        answer = await log_in(client)
        assert answer.session_lifetime.total_seconds() == 60
        assert (await shake(client)).error_code is ErrorCode.illegal_sasl_state  # too soon
        clock.pass_ms(AGAIN_AFTER_MS)
        assert (await log_in(client)).error_code is ErrorCode.none
        assert await works(client)


async def test_a_session_that_has_ended_serves_nothing_but_a_login(tmp_path: Path) -> None:
    """INV-LGI3."""
    clock = ManualClock()
    short = replace(BOUNDED, max_reauth_ms=100)
    async with port(tmp_path, short, clock=clock) as fixture:
        ended, again = await fixture.connect(), await fixture.connect()
        await log_in(ended)
        await log_in(again)
        links = list(fixture.server._links)
        await until(lambda: all(link.core.peer.state.must_log_in for link in links))
        clock.pass_ms(AGAIN_AFTER_MS)
        assert (await log_in(again)).error_code is ErrorCode.none
        assert await works(again)
        ended.send(3, 4, ALL)
        assert await ended.closed()


async def test_nobody_becomes_somebody_else_on_a_connection(tmp_path: Path) -> None:
    """CVE class: re-authentication as another principal (INV-LGI2)."""
    clock = ManualClock()
    async with port(tmp_path, BOUNDED, clock=clock) as fixture:
        client = await fixture.connect()
        await log_in(client)
        clock.pass_ms(AGAIN_AFTER_MS)
        answer = await log_in(client, user="carol")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert "principals" in answer.error_message
        assert await client.closed()


async def test_a_session_goes_on_by_the_same_mechanism(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, BOUNDED, clock=clock) as fixture:
        client = await fixture.connect()
        await log_in(client)
        clock.pass_ms(AGAIN_AFTER_MS)
        answer = await shake(client, "SCRAM-SHA-512")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert await client.closed()


async def test_what_comes_within_a_second_login_ends_the_connection(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, BOUNDED, clock=clock) as fixture:
        client = await fixture.connect()
        await log_in(client)
        clock.pass_ms(AGAIN_AFTER_MS)
        await shake(client)
        client.send(3, 4, ALL)
        assert await client.closed()


def test_the_table_of_stages_has_all_of_them() -> None:
    assert {stage for stage, _ in NEXT} == set(Stage) == {*NEXT.values(), Stage.STRANGER}


async def test_a_flood_of_wrong_logins_leaves_others_served(tmp_path: Path) -> None:
    """100 wrong logins of one address, and work of another one's turn comes in between (INV-SDK2)."""
    settings = replace(SETTINGS, failed_delay_ms=50)
    async with port(tmp_path, settings) as fixture:
        flood = [await fixture.connect() for _ in range(100)]
        for client in flood:
            await shake(client, "PLAIN")
            client.send(36, 2, {"auth_bytes": b"\0alice\0wrong"})
        good = await fixture.connect()
        await log_in(good)
        assert await works(good)
        served: Callable[[], bool] = lambda: fixture.server.connection_count == 1  # noqa: E731
        for client in flood:
            assert (await client.receive(36, 2))[1].error_code is ErrorCode.sasl_authentication_failed  # fmt: skip
        await until(served)


def connections_kept() -> int:
    return sum(type(each) in (Connection, ConnectionState) for each in gc.get_objects())


async def test_INV_PN7_connections_that_have_ended_are_freed_without_the_cycle_collector(
    tmp_path: Path,
) -> None:
    async with port(tmp_path) as fixture:
        gc.collect()
        before = connections_kept()
        gc.disable()
        logging.disable()  # pytest keeps each record, and the error in it
        try:
            right, wrong, bad = [await fixture.connect() for _ in range(3)]
            await log_in(right)
            assert await works(right)
            assert connections_kept() > before
            right.writer.close()
            await shake(wrong, "PLAIN")
            await say(wrong, b"\0alice\0wrong")
            assert await wrong.closed()
            await shake(bad)
            bad.send_raw(b"\x7f\xff\xff\xff")
            assert await bad.closed()
            await until(lambda: connections_kept() == before, looks=100)
        finally:
            logging.disable(logging.NOTSET)
            gc.enable()


# --- tokens of OAUTHBEARER -------------------------------------------------------------------------


RULES = BearerRules(
    issuer="i", audience="a", algorithms=("ES256",), principal_claim="sub", skew_ms=0
)
EC = ECKey.generate_key("P-256", {"kid": "ec"})


async def issued_keys() -> bytes:
    return json.dumps(KeySet([EC]).as_dict(private=False)).encode()


def bearing(clock: ManualClock) -> LoginSettings:
    source = KeySource(issued_keys, clock, 60_000)
    judge = BearerJudge(RULES, source, clock)
    return LoginSettings(mechanisms=("OAUTHBEARER",), failed_delay_ms=0, bearers=judge)


def bearer(clock: ManualClock, lasts_ms: int = 60_000, **changed: Any) -> bytes:
    claims = {"iss": "i", "aud": "a", "sub": "alice", "exp": (clock.wall_ms() + lasts_ms) / 1_000}
    text = jws.serialize_compact(
        {"alg": "ES256", "kid": "ec"}, json.dumps(claims | changed), EC, ["ES256"]
    )
    return f"n,,\x01auth=Bearer {text}\x01\x01".encode()


async def test_a_token_lets_in_for_as_long_as_it_lasts(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, bearing(clock), clock=clock) as fixture:
        client = await fixture.connect()
        await shake(client, "OAUTHBEARER")
        answer = await say(client, bearer(clock))
        assert answer.error_code is ErrorCode.none
        assert answer.session_lifetime.total_seconds() == 60
        assert await works(client)
        clock.pass_ms(AGAIN_AFTER_MS)
        await shake(client, "OAUTHBEARER")  # its end is near: the client brings a newer one
        assert (await say(client, bearer(clock, 90_000))).session_lifetime.total_seconds() == 90


async def test_the_end_of_a_token_ends_its_session(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, bearing(clock), clock=clock) as fixture:
        client = await fixture.connect()
        await shake(client, "OAUTHBEARER")
        await say(client, bearer(clock, 100))
        [link] = fixture.server._links
        await until(lambda: link.core.peer.state.must_log_in)
        client.send(3, 4, ALL)
        assert await client.closed()


def requests_kept() -> int:
    return sum(type(each) is RequestContext for each in gc.get_objects())


async def test_a_session_holds_nothing_of_the_request_that_began_it(tmp_path: Path) -> None:
    """Its timer held the context of that request, and with it the frame: 16 kB of token for as long as the token is good."""
    clock = ManualClock()
    async with port(tmp_path, bearing(clock), clock=clock) as fixture:
        fixture.services.audit = ToldTrail()  # a request that is recorded says so in its context
        client = await fixture.connect()
        await shake(client, "OAUTHBEARER")
        assert (await say(client, bearer(clock))).error_code is ErrorCode.none
        await until(lambda: gc.collect() >= 0 and requests_kept() == 0, looks=20)


async def test_INV_PN7_sessions_that_have_an_end_and_tokens_that_are_refused_are_freed_too(
    tmp_path: Path,
) -> None:
    clock = ManualClock()
    async with port(tmp_path, bearing(clock), clock=clock) as fixture:
        gc.collect()
        before = connections_kept()
        gc.disable()
        logging.disable()  # pytest keeps each record, and the error in it
        try:
            right, wrong = await fixture.connect(), await fixture.connect()
            await shake(right, "OAUTHBEARER")
            assert (await say(right, bearer(clock))).error_code is ErrorCode.none
            right.writer.close()
            await shake(wrong, "OAUTHBEARER")
            await say(wrong, bearer(clock, iss="other"))
            await say(wrong, b"\x01")
            assert await wrong.closed()
            await until(lambda: connections_kept() == before, looks=100)
        finally:
            logging.disable(logging.NOTSET)
            gc.enable()


@pytest.mark.parametrize("changed", [{"exp": 1}, {"iss": "other"}, {"aud": "other"}])
async def test_a_token_that_is_not_right_is_told_as_the_rfc_has_it(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    """RFC 7628, 3.2.3: a challenge, the client's answer to it, the end."""
    clock = ManualClock()
    async with port(tmp_path, bearing(clock), clock=clock) as fixture:
        client = await fixture.connect()
        await shake(client, "OAUTHBEARER")
        answer = await say(client, bearer(clock, **changed))
        assert (answer.error_code, answer.auth_bytes) == (
            ErrorCode.none,
            b'{"status":"invalid_token"}',
        )
        answer = await say(client, b"\x01")
        assert answer.error_code is ErrorCode.sasl_authentication_failed
        assert await client.closed()


async def test_INV_SBL1_a_refused_token_counts_once_though_the_client_says_no_more(
    tmp_path: Path,
) -> None:
    """franz-go leaves at the challenge (`pkg/sasl/oauth`); Java, librdkafka and RFC 7628 answer it."""
    clock = ManualClock()
    settings = replace(bearing(clock), failed_delay_ms=100)
    async with port(tmp_path, settings, clock=clock) as fixture:
        trail = fixture.services.audit = ToldTrail()
        refused = fixture.services.metrics.logins.labels("OAUTHBEARER", "refused")._value
        for count, says_more in enumerate((False, True), 1):
            client = await fixture.connect()
            await shake(client, "OAUTHBEARER")
            async with asyncio.TaskGroup() as tasks:
                challenge = tasks.create_task(say(client, bearer(clock, iss="other")))
                await until(lambda: len(clock.sleepers) > 1)  # the sweeper, and this one
                assert not challenge.done()
                clock.pass_ms(100)
            if says_more:
                answer = await say(client, b"\x01")
                assert answer.error_code is ErrorCode.sasl_authentication_failed
                assert await client.closed()
            else:
                client.writer.close()
            assert refused.get() == count
            assert [each.kind for each in trail.told] == ["login"] * count


async def test_tokens_need_tls_as_passwords_do(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path, logins=bearing(ManualClock())) as fixture:
        client = await fixture.connect()
        answer = await shake(client, "OAUTHBEARER")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism


# --- delegation tokens -----------------------------------------------------------------------------


TOKENS = replace(SETTINGS, token_secret=TokenSecret(b"x" * 32))
DAY_MS = 24 * 3_600_000


async def by_token(client: RawClient, made: Any) -> Any:
    """Log in by a delegation token as Kafka's client does (RFC 5802 with an extension); return the last answer."""
    assert (await shake(client)).error_code is ErrorCode.none
    bare = f"n={made.token_id},r=nonce,tokenauth=true"
    first = await say(client, f"n,,{bare}".encode())
    assert first.error_code is ErrorCode.none
    told = dict(part.split("=", 1) for part in first.auth_bytes.decode().split(","))
    password, salt = base64.b64encode(made.hmac), base64.b64decode(told["s"])
    salted = hashlib.pbkdf2_hmac("sha256", password, salt, int(told["i"]))
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    unproved = f"c=biws,r={told['r']}"
    signed = f"{bare},{first.auth_bytes.decode()},{unproved}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), signed, "sha256")
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True)))
    return await say(client, f"{unproved},p={proof.decode()}".encode())


async def make(client: RawClient, **asked: Any) -> Any:
    """Ask for a delegation token."""
    fields = {"renewers": [], "max_lifetime": -1, "owner_principal_type": None, "owner_principal_name": None}  # fmt: skip
    return await client.call(38, 3, fields | asked)


def users(*names: str) -> list[dict[str, str]]:
    return [{"principal_type": "User", "principal_name": name} for name in names]


async def owned(client: RawClient, owners: Any = None) -> list[str]:
    answer = await client.call(41, 3, {"owners": owners})
    assert answer.error_code is ErrorCode.none
    return [row.token_id for row in answer.tokens]


async def test_a_token_stands_for_its_owner_until_it_expires(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, TOKENS, clock=clock) as fixture:
        alice, carol, other = [await fixture.connect() for _ in range(3)]
        await log_in(alice)
        await log_in(carol, user="carol")
        made = await make(alice, renewers=users("carol"))
        assert made.error_code is ErrorCode.none
        assert (made.principal_name, made.token_requester_principal_name) == ("alice", "alice")
        assert (made.expiry_timestamp - made.issue_timestamp).total_seconds() * 1_000 == DAY_MS
        assert (made.max_timestamp - made.issue_timestamp).total_seconds() * 1_000 == 7 * DAY_MS
        assert await owned(alice) == await owned(carol) == [made.token_id]
        # Kafka's filterToken: a token is asked for by its owner, by who requested it, and by each who may renew it.
        for asked in ("alice", "carol"):
            assert await owned(carol, users(asked)) == await owned(alice, users(asked)) == [made.token_id]  # fmt: skip
        assert await owned(carol, users("root")) == await owned(carol, []) == []
        answer = await by_token(other, made)
        assert answer.error_code is ErrorCode.none
        assert answer.session_lifetime.total_seconds() * 1_000 == DAY_MS
        state = list(fixture.server._links)[2].core.peer.state
        assert (state.identity.principal, state.identity.token_id) == ("User:alice", made.token_id)
        assert (await make(other)).error_code is ErrorCode.delegation_token_request_not_allowed
        renewed = await carol.call(39, 2, {"hmac": made.hmac, "renew_period": 30 * DAY_MS})
        assert renewed.error_code is ErrorCode.none
        assert renewed.expiry_timestamp == made.max_timestamp
        clock.pass_ms(7 * DAY_MS)
        late = await fixture.connect()
        assert (await by_token(late, made)).error_code is ErrorCode.sasl_authentication_failed


async def test_INV_TKR2_tokens_of_others_are_neither_seen_nor_changed_and_that_is_recorded(
    tmp_path: Path,
) -> None:
    async with port(tmp_path, TOKENS) as fixture:
        trail = fixture.services.audit = ToldTrail()
        alice, carol = await fixture.connect(), await fixture.connect()
        await log_in(alice)
        await log_in(carol, user="carol")
        made = await make(alice)
        assert await owned(carol) == []
        mismatch, unknown = ErrorCode.delegation_token_owner_mismatch, ErrorCode.delegation_token_not_found  # fmt: skip
        asked = {"hmac": made.hmac, "expiry_time_period": -1, "renew_period": 1}
        assert (await carol.call(40, 2, asked)).error_code is mismatch
        assert (await carol.call(39, 2, asked)).error_code is mismatch
        assert [
            (each.actor.principal, each.operation, each.resource_type, each.resource, each.reason)
            for each in trail.told if each.kind is Kind.REFUSAL
        ] == [
            ("User:carol", f"{what}DelegationToken", "DELEGATION_TOKEN", made.token_id, "owner-mismatch")
            for what in ("Expire", "Renew")
        ]  # fmt: skip
        assert (await alice.call(39, 2, asked | {"hmac": b"x" * 64})).error_code is unknown
        assert (await alice.call(39, 2, asked | {"hmac": b"x" * 9_000})).error_code is unknown
        assert (await alice.call(40, 2, asked)).error_code is ErrorCode.none
        assert await owned(alice) == []
        for owner in users("alice"):
            of = {f"owner_{key}": value for key, value in owner.items()}
            refused = await make(carol, **of)
            assert refused.error_code is ErrorCode.delegation_token_authorization_failed
        odd = [{"principal_type": "Group", "principal_name": "x"}]
        assert (await make(alice, renewers=odd)).error_code is ErrorCode.invalid_principal_type
        assert fixture.store.image.access.tokens == ()


async def test_tokens_are_for_who_has_logged_in_at_a_node_that_has_a_secret(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path / "open") as fixture:
        client = await fixture.connect()
        assert (await make(client)).error_code is ErrorCode.delegation_token_request_not_allowed
        answer = await client.call(41, 3, {"owners": None})
        assert answer.error_code is ErrorCode.delegation_token_request_not_allowed
    async with port(tmp_path / "closed") as fixture:
        client = await fixture.connect()
        await log_in(client)
        assert (await make(client)).error_code is ErrorCode.delegation_token_auth_disabled


async def test_an_unknown_token_is_told_what_a_wrong_one_is(tmp_path: Path) -> None:
    """INV-DTK3: a token that is not there has keys that the same work makes, and they let nobody in."""
    forged = SimpleNamespace(token_id="forged", hmac=TokenSecret(b"x" * 32).hmac_of("forged"))
    wrong = SimpleNamespace(token_id="forged", hmac=b"x" * 64)
    texts = set()
    async with port(tmp_path, TOKENS) as fixture:
        for made in (forged, wrong):
            client = await fixture.connect()
            answer = await by_token(client, made)
            assert answer.error_code is ErrorCode.sasl_authentication_failed
            texts.add(answer.error_message)
    assert len(texts) == 1


async def test_tokens_that_have_ended_go_when_another_one_is_made(tmp_path: Path) -> None:
    clock = ManualClock()
    async with port(tmp_path, TOKENS, clock=clock) as fixture:
        client = await fixture.connect()
        await log_in(client)
        first = await make(client, max_lifetime=1_000)
        assert first.expiry_timestamp == first.max_timestamp
        clock.pass_ms(1_000)
        second = await make(client)
        assert await owned(client) == [second.token_id]
        asked = {"hmac": second.hmac, "expiry_time_period": 0}
        assert (await client.call(40, 2, asked)).error_code is ErrorCode.none
        assert (await client.call(40, 2, asked)).error_code is ErrorCode.delegation_token_expired


async def test_INV_CDT1_nobody_takes_all_the_room_for_tokens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(create_delegation_token, "TOKENS_OF_ONE_MAX", 2)
    clock = ManualClock()
    async with port(tmp_path, TOKENS, clock=clock) as fixture:
        mallory, alice = await fixture.connect(), await fixture.connect()
        await log_in(mallory, user="carol")
        await log_in(alice)
        long = await make(mallory, renewers=users("x" * 1_025))
        assert long.error_code is ErrorCode.invalid_principal_type, "nor by one of any length"
        many = users(*map(str, range(create_delegation_token.RENEWERS_MAX + 1)))
        assert (await make(mallory, renewers=many)).error_code is ErrorCode.invalid_principal_type
        for _ in range(2):
            assert (await make(mallory, max_lifetime=1_000)).error_code is ErrorCode.none
        assert (await make(mallory)).error_code is ErrorCode.policy_violation
        assert (await make(alice)).error_code is ErrorCode.none
        monkeypatch.setattr(create_delegation_token, "BYTES_OF_ONE_MAX", 1_000)
        named = users(*(f"{at:03}{'x' * 20}" for at in range(50)))
        assert (await make(alice, renewers=named)).error_code is ErrorCode.policy_violation
        clock.pass_ms(1_000)
        assert (await make(mallory)).error_code is ErrorCode.none, (
            "those that have ended count no more"
        )


@asynccontextmanager
async def slow_metadata(fixture: WireFixture, behind: int) -> AsyncIterator[None]:
    """Hold back what is asked of the metadata within, until so many changes wait, which have been judged before."""
    lock = fixture.store._write_lock
    await lock.acquire()
    try:
        yield
        await until(lambda: len(lock._waiters or ()) == behind)
    finally:
        lock.release()


async def test_INV_TKC1_a_token_that_has_gone_does_not_come_back_by_a_renewal_that_was_judged_before(
    tmp_path: Path,
) -> None:
    """Kafka's controller judges and changes in one step: what comes second finds no token. Another node of the region has it go."""
    async with port(tmp_path, TOKENS) as fixture:
        alice, carol, other = [await fixture.connect() for _ in range(3)]
        await log_in(alice)
        await log_in(carol, user="carol")
        made = await make(alice, renewers=users("carol"))
        asked = {"hmac": made.hmac, "renew_period": DAY_MS}
        async with slow_metadata(fixture, 2):
            gone = AccessChange(tokens_removed=(made.token_id,))
            elsewhere = asyncio.get_running_loop().create_task(
                fixture.store.apply(ChangeAccess(gone))
            )
            await until(lambda: len(fixture.store._write_lock._waiters or ()) == 1)
            renewed = asyncio.get_running_loop().create_task(carol.call(39, 2, asked))
        await elsewhere
        assert (await renewed).error_code is ErrorCode.delegation_token_not_found
        assert fixture.store.image.access.tokens == ()
        assert (await by_token(other, made)).error_code is ErrorCode.sasl_authentication_failed


async def test_INV_TKC1_changes_of_other_access_that_come_between_hinder_no_renewal(
    tmp_path: Path,
) -> None:
    async with port(tmp_path, TOKENS) as fixture:
        alice = await fixture.connect()
        await log_in(alice)
        made = await make(alice)
        async with slow_metadata(fixture, 2):
            change = AccessChange(keys_put=(USERS["carol", SCRAM],))
            other = asyncio.get_running_loop().create_task(
                fixture.store.apply(ChangeAccess(change))
            )
            await until(lambda: len(fixture.store._write_lock._waiters or ()) == 1)
            asked = {"hmac": made.hmac, "renew_period": 2 * DAY_MS}
            renewed = asyncio.get_running_loop().create_task(alice.call(39, 2, asked))
        await other
        assert (await renewed).error_code is ErrorCode.none
        assert (
            fixture.store.image.access.tokens_by_id[made.token_id].expires_wall_ms
            == (await renewed).expiry_timestamp.timestamp() * 1_000
        )


async def test_INV_CDT1_who_asks_for_tokens_at_once_has_no_more_of_them_and_nobody_is_held_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More at once than a change is ever judged anew."""
    most = CHANGE_ATTEMPTS + 2
    monkeypatch.setattr(create_delegation_token, "TOKENS_OF_ONE_MAX", most)
    async with port(tmp_path, TOKENS) as fixture:
        clients = [await fixture.connect() for _ in range(most + 2)]
        for client in clients:
            await log_in(client)
        asked = [asyncio.get_running_loop().create_task(make(client)) for client in clients]
        errors = [(await each).error_code for each in asked]
        assert sorted(errors) == [ErrorCode.none] * most + [ErrorCode.policy_violation] * 2
        assert len(fixture.store.image.access.tokens) == most


async def test_an_acl_lets_somebody_make_and_see_tokens_of_another(tmp_path: Path) -> None:
    """KIP-373."""

    def allow(operation: Operation) -> AccessChange:
        acl = Acl(
            ResourceType.USER, PatternType.LITERAL, "User:carol", "User:alice", "*", operation, Permission.ALLOW
        )  # fmt: skip
        return AccessChange(acls_added=(acl,))

    async with port(tmp_path, TOKENS) as fixture:
        image = fixture.store
        fixture.services.authorizer = AclAuthorizer(lambda: image.image.access)
        client = await fixture.connect()
        await log_in(client)
        of = {"owner_principal_type": "User", "owner_principal_name": "carol"}
        refused = ErrorCode.delegation_token_authorization_failed
        assert (await make(client, **of)).error_code is refused
        await fixture.services.metadata.change_access(allow(Operation.CREATE_TOKENS))
        made = await make(client, **of)
        assert (made.error_code, made.principal_name) == (ErrorCode.none, "carol")
        other = await fixture.connect()
        await log_in(other, user="carol")
        theirs = await make(other)
        assert await owned(client) == [made.token_id]
        await fixture.services.metadata.change_access(allow(Operation.DESCRIBE_TOKENS))
        assert sorted(await owned(client)) == sorted([made.token_id, theirs.token_id])


@pytest.mark.parametrize("mechanism", [SCRAM, "PLAIN"])
async def test_the_audit_trail_hears_of_each_login_and_of_no_password(
    tmp_path: Path, mechanism: str
) -> None:
    """INV-AUD1: right and wrong, with mechanism and address; the reason names who was tried."""

    async def login(client: RawClient, password: str) -> Any:
        await shake(client, mechanism)
        if mechanism == SCRAM:
            return await scram(client, password=password)
        return await say(client, f"\0alice\0{password}".encode())

    async with port(tmp_path) as fixture:
        trail = fixture.services.audit = ToldTrail()
        assert (await login(await fixture.connect(), "hunter2")).error_code.value != 0
        assert (await login(await fixture.connect(), PASSWORD)).error_code is ErrorCode.none
    wrong, right = trail.told
    assert (wrong.kind, wrong.outcome, wrong.actor.mechanism, wrong.actor.host) == ("login", "refused", mechanism, "127.0.0.1")  # fmt: skip
    assert "alice" in wrong.reason
    assert wrong.actor.principal == "User:alice", "whom it was tried as: nobody has proved it"
    assert (right.actor.principal, right.outcome) == ("User:alice", "done")
    assert "hunter2" not in repr(trail.told)
    assert PASSWORD not in repr(trail.told)
