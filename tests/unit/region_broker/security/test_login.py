"""How a client says who it is: what librdkafka and HTTP are told, and what nobody is ever shown."""

import base64
import json
import traceback
from typing import Any

import pytest
from confluent_kafka import Consumer

from region_broker.client import (
    LoginRefused,
    Producer,
    ReadCommittedConsumer,
    TransactionalProducer,
)
from region_broker.client.errors import Unreachable
from region_broker.client.timeouts import Timeouts
from region_broker.client.verdicts import VerdictClient
from region_broker.security.login import NO_SECURITY, Security, is_this_machine

SECRETS = ("open-sesame", "tmt_secret")
FULL = Security(ca="ca.pem", user="alice", password=SECRETS[0], http_token=SECRETS[1])


def test_INV_LGN1_no_secret_is_shown() -> None:
    shown = [repr(FULL), str(FULL), f"{FULL!r}", f"{[FULL]}"]
    with pytest.raises(LoginRefused) as refused:
        FULL.http_headers("http://example.org:9093/v1/region")
    shown += traceback.format_exception(refused.value)
    with pytest.raises(LoginRefused) as refused:
        Security(user="", password=SECRETS[0])
    shown += [str(refused.value)]
    for made in (
        Producer(bootstrap="h:1", security=FULL),
        TransactionalProducer(bootstrap="h:1", transactional_id="t", security=FULL),
        ReadCommittedConsumer(["t"], bootstrap="h:1", group_id="g", security=FULL),
        VerdictClient("http://h:1", security=FULL),
    ):
        shown.append(repr(made))
    assert not [text for text in shown for secret in SECRETS if secret in text]


@pytest.mark.parametrize(
    ("security", "told"),
    [
        (NO_SECURITY, {}),
        (Security(protocol="PLAINTEXT"), {}),
        (Security(ca="ca.pem"), {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"}),
        (Security(certificate="c", key="k"),
         {"security.protocol": "SSL", "ssl.certificate.location": "c", "ssl.key.location": "k"}),
        (Security(user="u", password="p"),
         {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "u", "sasl.password": "p"}),
        (Security(user="u", password="p", mechanism="SCRAM-SHA-256", protocol="SASL_PLAINTEXT", ca="unused"),
         {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "u", "sasl.password": "p"}),
    ],
)  # fmt: skip
def test_INV_LGN2_librdkafka_is_told(security: Security, told: dict[str, Any]) -> None:
    assert security.kafka_config() == told


def test_librdkafka_knows_every_name_that_it_is_told() -> None:
    for security in (
        Security(user="u", password="p"),
        Security(user="u", password="p", mechanism="PLAIN"),
    ):
        Consumer(
            {
                "group.id": "g",
                "bootstrap.servers": "127.0.0.1:1",
                "log_level": 0,
                **security.kafka_config(),
            }
        ).close()


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"user": "u"}, "no password"),
        ({"password": "p"}, "no user"),
        ({"certificate": "c"}, "no key"),
        ({"key": "k"}, "no certificate"),
        ({"user": "u", "password": "p", "mechanism": "GSSAPI"}, "is none of"),
        ({"protocol": "TLS"}, "is none of"),
        ({"user": "u", "password": "p", "mechanism": "PLAIN", "protocol": "SASL_PLAINTEXT"}, "PLAIN sends"),
        ({"http_token": "a\r\nX-Evil: 1"}, "control characters"),
        ({"user": "a\n", "password": "p"}, "control characters"),
    ],
)  # fmt: skip
def test_parts_that_do_not_go_together_are_refused(parts: dict[str, Any], says: str) -> None:
    with pytest.raises(LoginRefused, match=says):
        Security(**parts)


def test_INV_LGN2_over_http_secrets_go_to_https_and_to_this_machine() -> None:
    basic = (
        "Basic " + base64.b64encode("älice:p:q".encode()).decode()
    )  # RFC 7617: in UTF-8, the first colon divides
    user = Security(user="älice", password="p:q")
    for url in (
        "https://example.org/x",
        "http://127.0.0.1:9093/x",
        "http://[::1]:9093",
        "http://localhost:9093",
    ):
        assert user.http_headers(url) == {"Authorization": basic}
        assert FULL.http_headers(url) == {"Authorization": "Bearer tmt_secret"}
    for url in (
        "http://example.org",
        "http://10.0.0.1:9093",
        "http://127.0.0.1.example.org",
        "http://localhost.example.org",
        "htps://example.org",  # a slip of the pen is no TLS
        "//example.org",
    ):
        with pytest.raises(LoginRefused, match="give an https address"):
            user.http_headers(url)
        assert NO_SECURITY.http_headers(url) == {}
    assert not is_this_machine("")


async def test_verdicts_are_asked_with_the_token_and_say_why_where_it_cannot_be_sent() -> None:
    asked = VerdictClient("http://example.invalid:9093", 0.1, FULL)
    with pytest.raises(Unreachable, match="give an https address") as refused:
        await asked._acting()
    assert SECRETS[1] not in str(refused.value)


async def test_the_clients_keep_secrets_out_of_their_errors() -> None:
    quick = Timeouts(connect_s=0.1)
    producer = Producer(
        bootstrap="127.0.0.1:1", security=Security(user="u", password=SECRETS[0]), timeouts=quick
    )
    with pytest.raises(Unreachable) as refused:
        await producer.start()
    assert SECRETS[0] not in json.dumps(traceback.format_exception(refused.value))


def test_a_token_that_is_none_is_named_before_it_is_sent_and_not_shown() -> None:
    """No header holds these, and `http.client` ends with an error that names no file."""
    for token in ("tmt_s\u00e9cret", "\ufefftmt_secret"):
        with pytest.raises(LoginRefused, match="characters that no token has") as refused:
            Security(http_token=token).http_headers("https://eu1.example.org:9093")
        assert "cret" not in str(refused.value)
