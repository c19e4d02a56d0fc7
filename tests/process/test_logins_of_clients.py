"""Clients of others log in by every mechanism that they have, and are refused with wrong credentials: confluent-kafka, aiokafka, kafka-python, kcat."""

import asyncio
import contextlib
import json
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError as AioError
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from joserfc import jws
from joserfc.jwk import ECKey, KeySet
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as PureError
from kafka.net.sasl.oauth import AbstractTokenProvider as PureTokenProvider

from region_broker.ports.system.clock import SystemClock
from region_broker.security.sasl.bearer import BearerRules
from region_broker.security.sasl.bearer_login import BearerJudge
from region_broker.security.sasl.desk import LoginSettings
from region_broker.security.sasl.jwks import KeySource
from region_broker.security.sasl.scram_keys import keys_of
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.waiting import until

pytestmark = [pytest.mark.process, pytest.mark.slow]
PASSWORDS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")
BEARER = "OAUTHBEARER"
EC = ECKey.generate_key("P-256", {"kid": "ec"})
CALL_S = 3.0
CLOCK = SystemClock()


async def issued_keys() -> bytes:
    return json.dumps(KeySet([EC]).as_dict(private=False)).encode()


def settings(**changed: Any) -> LoginSettings:
    users = {
        ("alice", mechanism): keys_of("alice", mechanism, b"s,e=cret", b"salty" * 4, 4096)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    }
    rules = BearerRules(
        issuer="i", audience="a", algorithms=("ES256",), principal_claim="sub", skew_ms=0
    )
    judge = BearerJudge(rules, KeySource(issued_keys, CLOCK, 60_000), CLOCK)
    return LoginSettings(
        mechanisms=(*PASSWORDS, BEARER), failed_delay_ms=20, file_users=users, bearers=judge, **changed
    )  # fmt: skip


@asynccontextmanager
async def port(folder: Path, **changed: Any) -> AsyncIterator[WireFixture]:
    async with wire_fixture(folder, logins=settings(**changed), is_encrypted=True) as fixture:
        await fixture.topic("orders")
        yield fixture


def token(lasts_s: int = 60, **changed: Any) -> str:
    claims = {"iss": "i", "aud": "a", "sub": "alice", "exp": CLOCK.wall_ms() // 1_000 + lasts_s}
    return jws.serialize_compact(
        {"alg": "ES256", "kid": "ec"}, json.dumps(claims | changed), EC, ["ES256"]
    )


class AioToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, text: str) -> None:
        self.text = text

    async def token(self) -> str:
        return self.text


class PureToken(PureTokenProvider):  # type: ignore[misc]  # nor has kafka-python
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def token(self) -> str:
        return self.text


# A client lists topics as a user, with a password or a token; None: it was refused.
Lists = Callable[[str, str, str, str], list[str] | None]


def by_confluent(bootstrap: str, mechanism: str, user: str, secret: str) -> list[str] | None:
    refused: list[str] = []
    more: dict[str, Any] = {"sasl.username": user, "sasl.password": secret}
    if mechanism == BEARER:
        more = {"oauth_cb": lambda _config: (secret, CLOCK.wall_ms() / 1_000 + 60)}
    config: dict[str, Any] = {
            "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism, "log_level": 0,
            "error_cb": lambda error: refused.append(error.name()) if error.code() == KafkaError._AUTHENTICATION else None,
            **more,
        }  # fmt: skip
    client = AdminClient(config)
    ends_s = time.monotonic() + CALL_S
    while not refused and time.monotonic() < ends_s:
        client.poll(0.05)
        with contextlib.suppress(KafkaException):
            return sorted(client.list_topics(timeout=0.2).topics)
    assert refused
    return None


def by_kafka_python(bootstrap: str, mechanism: str, user: str, secret: str) -> list[str] | None:
    more: dict[str, Any] = {"sasl_plain_username": user, "sasl_plain_password": secret}
    if mechanism == BEARER:
        more = {"sasl_oauth_token_provider": PureToken(secret)}
    try:
        with KafkaAdminClient(
            bootstrap_servers=bootstrap, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism,
            bootstrap_timeout_ms=1_000, **more,
        ) as client:  # fmt: skip
            return sorted(client.list_topics())
    except PureError:
        return None


def by_aiokafka(bootstrap: str, mechanism: str, user: str, secret: str) -> list[str] | None:
    async def lists() -> list[str] | None:
        more: dict[str, Any] = {"sasl_plain_username": user, "sasl_plain_password": secret}
        if mechanism == BEARER:
            more = {"sasl_oauth_token_provider": AioToken(secret)}
        client = AIOKafkaAdminClient(
            bootstrap_servers=bootstrap, security_protocol="SASL_PLAINTEXT", sasl_mechanism=mechanism, **more
        )  # fmt: skip
        try:
            await client.start()
            return sorted(await client.list_topics())
        except AioError:
            return None
        finally:
            await client.close()

    return asyncio.run(lists())


def by_kcat(bootstrap: str, mechanism: str, user: str, secret: str) -> list[str] | None:
    done = subprocess.run(
        ["kcat", "-b", bootstrap, "-L", "-J", "-m", "2", "-X", "security.protocol=SASL_PLAINTEXT", "-X", f"sasl.mechanism={mechanism}",
         "-X", f"sasl.username={user}", "-X", f"sasl.password={secret}"],
        capture_output=True, text=True, check=False, timeout=20,
    )  # fmt: skip
    return None if done.returncode else [row["topic"] for row in json.loads(done.stdout)["topics"]]


CLIENTS: dict[str, Lists] = {
    "confluent": by_confluent, "kafka-python": by_kafka_python, "aiokafka": by_aiokafka, "kcat": by_kcat,
}  # fmt: skip


def cases() -> Iterator[Any]:
    for name in CLIENTS:
        for mechanism in (*PASSWORDS, BEARER):
            if (name, mechanism) != (
                "kcat",
                BEARER,
            ):  # it takes tokens from an issuer's address only
                yield pytest.param(name, mechanism, id=f"{name} {mechanism}")


@pytest.mark.parametrize(("name", "mechanism"), list(cases()))
async def test_right_and_wrong_credentials(tmp_path: Path, name: str, mechanism: str) -> None:
    async with port(tmp_path) as fixture:
        bootstrap, lists = f"127.0.0.1:{fixture.server.port}", CLIENTS[name]
        right, wrong = ("alice", "s,e=cret"), [("alice", "wrong"), ("nobody", "s,e=cret")]
        if mechanism == BEARER:
            right = ("", token())
            wrong = [("", token(-1)), ("", token(iss="other"))]
        assert await asyncio.to_thread(lists, bootstrap, mechanism, *right) == ["orders"]
        for who in wrong if name in {"aiokafka", "confluent"} else wrong[:1]:
            assert await asyncio.to_thread(lists, bootstrap, mechanism, *who) is None


async def test_librdkafka_logs_in_again_before_its_session_ends(tmp_path: Path) -> None:
    """KIP-368, on one connection."""
    async with port(tmp_path, max_reauth_ms=2_000) as fixture:
        client = AdminClient(
            {
                "bootstrap.servers": f"127.0.0.1:{fixture.server.port}", "security.protocol": "SASL_PLAINTEXT", "log_level": 0,
                "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "s,e=cret",
            }
        )  # fmt: skip
        await asyncio.to_thread(client.list_topics, timeout=CALL_S)
        first: dict[object, int] = {}

        def is_again() -> bool:
            """Whether one that is open has logged in later than when it was seen first."""
            now = {link: link.core.peer.state.login.logged_in_ms for link in fixture.server._links}
            return any(at and first.setdefault(link, at) != at for link, at in now.items())

        await until(is_again)
        await asyncio.to_thread(client.list_topics, timeout=CALL_S)
