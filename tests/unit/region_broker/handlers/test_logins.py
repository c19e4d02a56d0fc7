"""Logins on a Kafka port: what is served before, how they fail, how sessions end (INV-LGI1 to INV-LGI3, INV-SDK1 to INV-SDK3, INV-SSE1)."""

import asyncio
import hashlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scramp
from kio.schema.errors import ErrorCode

from region_broker.security.access import AccessChange
from region_broker.security.sasl.desk import LoginSettings
from region_broker.security.sasl.login import (
    AGAIN_AFTER_MS,
    FRAME_BYTES_MAX,
    LOGIN_TIMEOUT_MS,
    NEXT,
    Stage,
)
from region_broker.security.sasl.scram_keys import keys_of
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.kafka_port import RawClient, WireFixture, frame_of, wire_fixture
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

SCRAM = "SCRAM-SHA-256"
ALL = {"topics": None, "allow_auto_topic_creation": False}
USERS = {
    (name, mechanism): keys_of(name, mechanism, b"secret", b"salty" * 4, 4096)
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


async def scram(client: RawClient, user: str = "alice", password: str = "secret") -> Any:
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


@pytest.mark.parametrize("key", [0, 1, 3, 10, 19, 22, 38, 51])
async def test_nothing_but_a_login_is_served_before_it(tmp_path: Path, key: int) -> None:
    """CVE class: requests before authentication."""
    async with port(tmp_path) as fixture:
        for begun in (False, True):
            client = await fixture.connect()
            if begun:
                await shake(client)
            version = {0: 9, 1: 12, 3: 9, 10: 4, 19: 7, 22: 4, 38: 3, 51: 0}[key]
            client.send_raw(
                struct.pack(">i", 12) + struct.pack(">hhih", key, version, 1, -1) + b"\0\0"
            )
            assert await client.closed()


async def test_a_request_behind_a_login_that_is_not_decided_ends_the_connection(
    tmp_path: Path,
) -> None:
    async with port(tmp_path) as fixture:
        client = await fixture.connect()
        await shake(client, "PLAIN")
        client.send(36, 2, {"auth_bytes": b"\0alice\0secret"})
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


@pytest.mark.parametrize(
    ("user", "password"), [("alice", "wrong"), ("nobody", "secret"), ("nobody", "x")]
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


async def test_plain_needs_tls(tmp_path: Path) -> None:
    """CVE class: PLAIN over clear text. It is refused before the client has sent a password."""
    async with wire_fixture(tmp_path, logins=SETTINGS) as fixture:
        client = await fixture.connect()
        answer = await shake(client, "PLAIN")
        assert answer.error_code is ErrorCode.unsupported_sasl_mechanism
        assert list(answer.mechanisms) == [SCRAM, "SCRAM-SHA-512"]
        assert await client.closed()


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
            client.send(36, 2, {"auth_bytes": b"\0alice\0secret"})
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
        answer = await say(client, b"\0alice\0secret")
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
        assert (await login(await fixture.connect(), "secret")).error_code is ErrorCode.none
    wrong, right = trail.told
    assert (wrong.kind, wrong.outcome, wrong.actor.mechanism, wrong.actor.host) == ("login", "refused", mechanism, "127.0.0.1")  # fmt: skip
    assert "alice" in wrong.reason
    assert (right.actor.principal, right.outcome) == ("User:alice", "done")
    assert "hunter2" not in repr(trail.told)
    assert "secret" not in repr(trail.told)
