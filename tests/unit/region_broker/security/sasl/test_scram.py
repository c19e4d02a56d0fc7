"""SCRAM of the server against the example of RFC 7677, against scramp's client, and against who tries to cheat (INV-SCR1, INV-SCR2, INV-SCR3, INV-SCR4, INV-SCR5)."""

import base64
from collections.abc import Callable
from typing import Any

import pytest
import scramp

from region_broker.security.access import ScramKeys
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.scram import ITERATIONS_MIN, ScramServer
from region_broker.security.sasl.scram_keys import (
    Kind,
    keys_in,
    keys_of,
    line_of,
    password_problem,
    played_keys,
    usual,
)

# RFC 7677, section 3.
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SALT = base64.b64decode(b"W22ZaJ0SNY7soEsUEjb6gQ==")
PENCIL = keys_of("user", "SCRAM-SHA-256", b"pencil", SALT, 4096)


def begun(first: bytes = CLIENT_FIRST, keys: ScramKeys = PENCIL) -> ScramServer:
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    server.first(first)
    server.challenge(keys, is_real=True)
    return server


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    assert server.first(CLIENT_FIRST).user == "user"
    assert server.challenge(PENCIL, is_real=True) == SERVER_FIRST
    assert server.final(CLIENT_FINAL) == SERVER_FINAL


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "a,b=c", "zoë"])
def test_scramp_logs_in_and_believes_the_server(mechanism: str, user: str) -> None:
    keys = keys_of(user, mechanism, "pässword".encode(), b"salty" * 3, 5000)
    client = scramp.ScramClient([mechanism], user, "pässword")
    server = ScramServer(mechanism, "servernonce")
    assert server.first(client.get_client_first().encode()).user == user
    client.set_server_first(server.challenge(keys, is_real=True).decode())
    client.set_server_final(server.final(client.get_client_final().encode()).decode())


@pytest.mark.parametrize(
    ("header", "bound"),
    [
        (b"n,,", b"n,a=user,"),
        (b"n,a=user,", b"n,,"),
        (b"y,,", b"n,,"),
        (b"n,,", b"n,, "),
        (b"n,,", b""),
    ],
)
def test_INV_SCR2_the_last_message_binds_the_first_ones_header_byte_by_byte(
    header: bytes, bound: bytes
) -> None:
    """RFC 5802, 5.1: `c` holds the header as it was sent; else somebody between may have changed it."""
    last = CLIENT_FINAL.replace(b"c=biws", b"c=" + base64.b64encode(bound))
    with pytest.raises(LoginRefused, match="channel binding is not that"):
        begun(header + CLIENT_FIRST[3:]).final(last)


@pytest.mark.parametrize(
    ("extension", "why"),
    [(b",m=must", "mandatory"), (b",x=1,m=must", "mandatory"), (b",nonsense", "malformed")],
)
def test_what_a_last_message_asks_for_beside_is_judged(extension: bytes, why: str) -> None:
    """RFC 5802, 5.1: who sees `m` MUST fail, wherever it stands."""
    with pytest.raises(LoginRefused, match=why):
        begun().final(CLIENT_FINAL.replace(b",p=", extension + b",p="))


def test_scramp_with_a_wrong_password_is_refused() -> None:
    client = scramp.ScramClient(["SCRAM-SHA-256"], "user", "pen")
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    server.first(client.get_client_first().encode())
    client.set_server_first(server.challenge(PENCIL, is_real=True).decode())
    with pytest.raises(LoginRefused, match="password is wrong"):
        server.final(client.get_client_final().encode())


def test_the_keys_are_those_that_scramp_makes() -> None:
    made = scramp.ScramMechanism("SCRAM-SHA-512").make_auth_info(
        "pencil", iteration_count=4096, salt=SALT
    )
    keys = keys_of("user", "SCRAM-SHA-512", b"pencil", SALT, 4096)
    assert (keys.stored_key, keys.server_key) == (made[1], made[2])


def test_extensions_of_kafka_are_read_and_others_ignored() -> None:
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    first = server.first(b"n,,n=user,r=abc,tokenauth=true,x=1")
    assert first.extensions == {"tokenauth": "true", "x": "1"}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,m=must,n=user,r=abc", "mandatory"),
        (b"n,,n=user,r=abc,m=must", "mandatory"),
        (b"n,,n=us=er,r=abc", "stray"),
        (b"n,,n=,r=abc", "name is none"),
        (b"n,,n=user,r=", "nonce"),
        (b"n,,n=user,r=a b", "nonce"),
        (b"n,,r=abc,n=user", "begin with a name"),
        (b"n,x,n=user,r=abc", "gs2"),
        (b"n=user,r=abc", "gs2"),
        (b"x,,n=user,r=abc", "gs2"),
        (b"n,,n=user,r=abc,nonsense", "extension is malformed"),
        (b"", "gs2"),
        (b"n,,n=\xff,r=abc", "UTF-8"),
        (b"n,,n=user,r=" + b"a" * 5000, "bytes"),
        (b"n,,n=us\x00er,r=abc", "name is none"),
        (b"n,,n=" + b"u" * 250 + b",r=abc", "longer than any"),
        (
            b"n,,n=" + "\ufdfa".encode() * 1_300 + b",r=abc",
            "longer than any",
        ),  # 18 letters each by NFKC
    ],
)
def test_a_first_message_that_is_not_right_is_refused(message: bytes, why: str) -> None:
    with pytest.raises(LoginRefused, match=why):
        ScramServer("SCRAM-SHA-256", SERVER_NONCE).first(message)


def test_y_of_a_client_that_could_bind_is_taken() -> None:
    assert ScramServer("SCRAM-SHA-256", SERVER_NONCE).first(b"y,,n=user,r=abc").gs2_header == "y,,"


def test_cve_2017_12610_another_authorization_identity_is_refused() -> None:
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    with pytest.raises(LoginRefused, match="authorization identity"):
        server.first(b"n,a=admin,n=user,r=abc")
    assert server.first(b"n,a=user,n=user,r=abc").gs2_header == "n,a=user,"


NONCE = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


@pytest.mark.parametrize(
    "nonce",
    [
        b"r=rOprNGfwEbeRWgbNEkqO",
        b"r=%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        b"r=" + b"x" * 50,
        NONCE + b"x",
        b"r=",
        b"r=other" + NONCE[2:],
    ],
)
def test_cve_2024_56128_another_nonce_is_refused(nonce: bytes) -> None:
    with pytest.raises(LoginRefused, match="nonce is not"):
        begun().final(CLIENT_FINAL.replace(NONCE, nonce))


def test_a_channel_binding_other_than_the_first_ones_is_refused() -> None:
    for binding in (b"c=eSws", b"c=", b"c=bi", b"x=biws", b"c=bi!ws"):  # "y,,", nothing, no base64
        with pytest.raises(LoginRefused, match=r"binding|base64"):
            begun().final(CLIENT_FINAL.replace(b"c=biws", binding))


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"p=dHzb", b"p=dHzc"),
        lambda text: text[: text.index(b",p=")],
        lambda text: text[: text.index(b",p=")] + b",p=",
        lambda text: text[: text.index(b",p=")] + b",p=AAAA",
        lambda text: text.replace(b",p=", b",x=1,p="),
    ],
)
def test_another_proof_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(LoginRefused):
        begun().final(change(CLIENT_FINAL))


def test_keys_with_too_few_iterations_are_not_used() -> None:
    weak = keys_of("user", "SCRAM-SHA-256", b"pencil", SALT, ITERATIONS_MIN - 1)
    with pytest.raises(LoginRefused, match="iterations"):
        begun(keys=weak)


def test_keys_of_nobody_never_let_anybody_in() -> None:
    server = ScramServer("SCRAM-SHA-256", SERVER_NONCE)
    server.first(CLIENT_FIRST)
    assert server.challenge(PENCIL, is_real=False) == SERVER_FIRST
    with pytest.raises(LoginRefused, match="no such user"):
        server.final(CLIENT_FINAL)  # the proof is right


def test_who_is_not_there_looks_as_others_do_and_always_the_same() -> None:
    """INV-SKY1."""
    rows = [keys_of(f"u{n}", "SCRAM-SHA-512", b"x", bytes(24), 8192) for n in range(2)]
    kind = usual([*rows, PENCIL], "SCRAM-SHA-512")
    assert kind == Kind("SCRAM-SHA-512", 8192, 24)
    odd = keys_of("odd", "SCRAM-SHA-512", b"x", bytes(16), 4096)
    assert usual([*rows, odd], "SCRAM-SHA-512") == kind, "as most are"
    assert usual([], "SCRAM-SHA-256") == Kind("SCRAM-SHA-256", 4096, 32)
    played = played_keys(b"secret", "bob", kind)
    assert played == played_keys(b"secret", "bob", kind)
    assert (len(played.salt), played.iterations, len(played.stored_key)) == (24, 8192, 64)
    others = [played_keys(b"secret", "eve", kind), played_keys(b"other", "bob", kind)]
    assert len({row.salt for row in [played, *others]}) == 3


def test_INV_SKY1_nobody_has_a_salt_for_each_mechanism_as_users_have() -> None:
    """Commands and clients draw one for each: who has the same for both would be seen to be nobody."""
    both = [
        played_keys(b"secret", "bob", usual([], name))
        for name in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    ]
    assert both[0].salt != both[1].salt
    for keys in both:
        parts = [keys.salt, keys.stored_key[:32], keys.server_key[:32]]
        assert len(set(parts)) == 3, "what is shown tells nothing of what is not"


KEY_OF_32 = base64.b64encode(bytes(32)).decode()


def test_a_line_of_keys_is_read_as_it_was_written() -> None:
    assert keys_in(line_of(PENCIL)) == PENCIL
    for iterations in (4096, 16384):
        line = f"{'u' * 249} SCRAM-SHA-256 {iterations} AAAA {KEY_OF_32} {KEY_OF_32}"
        assert line_of(keys_in(line)) == line


@pytest.mark.parametrize(
    "line",
    [
        "user SCRAM-SHA-256 4096 AAAA",
        "user SCRAM-SHA-1 4096 AAAA AAAA AAAA",
        "user SCRAM-SHA-256 1 AAAA " + "A" * 43 + "= " + "A" * 43 + "=",
        "user SCRAM-SHA-256 4096 AAAA AAAA AAAA",
        f"user SCRAM-SHA-1 4096 AAAA {KEY_OF_32} {KEY_OF_32}",
        f"user SCRAM-SHA-256 16385 AAAA {KEY_OF_32} {KEY_OF_32}",
        f"user SCRAM-SHA-256 4095 AAAA {KEY_OF_32} {KEY_OF_32}",
        f"user SCRAM-SHA-256 4096 {'AAAA' * 400} {KEY_OF_32} {KEY_OF_32}",
        f"user SCRAM-SHA-256 4096 AAAA {KEY_OF_32} AAAA",
        f"user SCRAM-SHA-256 4096 AAAA AAAA {KEY_OF_32}",
        f"{'u' * 250} SCRAM-SHA-256 4096 AAAA {KEY_OF_32} {KEY_OF_32}",
        "user SCRAM-SHA-256 x AAAA AAAA AAAA",
        "Ⅸ SCRAM-SHA-256 4096 AAAA " + "A" * 43 + "= " + "A" * 43 + "=",
    ],
)
def test_a_line_that_nobody_could_log_in_by_is_refused(line: str) -> None:
    with pytest.raises(
        ValueError, match=r"words|none of|iterations|bytes|base64|SASLprep|characters"
    ):
        keys_in(line)


def test_no_keys_stand_in_what_is_shown_of_them() -> None:
    shown: Any = repr(PENCIL)
    assert base64.b64encode(PENCIL.stored_key).decode() not in shown
    assert repr(PENCIL.stored_key)[2:-1] not in shown


@pytest.mark.parametrize(
    ("password", "named"), [("\ufeffsecret", "U+FEFF"), ("secret\n\n", "U+000A"), ("sec\x00ret", "U+0000")]
)  # fmt: skip
def test_a_character_that_nobody_sees_in_a_password_is_named(password: str, named: str) -> None:
    told = password_problem(password) or ""
    assert named in told
    assert "secret" not in told
    assert password_problem("secret") is None
