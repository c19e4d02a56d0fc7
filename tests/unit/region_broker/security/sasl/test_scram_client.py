"""The client's side of SCRAM: by the example of RFC 7677, against our server, and against servers that are none."""

import base64

import pytest

from region_broker.security.sasl.scram import ScramServer
from region_broker.security.sasl.scram_client import ScramClient, ServerRefused
from region_broker.security.sasl.scram_keys import keys_of

# RFC 7677, section 3.
CHALLENGE = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SIGNED = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", "pencil", "rOprNGfwEbeRWgbNEkqO")


def test_the_exchange_of_rfc_7677() -> None:
    ours = client()
    assert ours.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert ours.final(CHALLENGE) == FINAL
    ours.check(SIGNED)


@pytest.mark.parametrize(
    "challenge",
    [
        CHALLENGE.replace(b"r=rO", b"r=xO"), CHALLENGE.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), CHALLENGE.replace(b"4096", b"1"),
        CHALLENGE.replace(b"4096", b"100000000"), CHALLENGE.replace(b",i=4096", b""), CHALLENGE.replace(b"s=W", b"s=!"), b"", b"\xff", b"e=other-error",
    ],
)  # fmt: skip
def test_INV_SCC1_challenges_that_are_none_prove_nothing(challenge: bytes) -> None:
    with pytest.raises(ServerRefused) as refused:
        client().final(challenge)
    assert "pencil" not in str(refused.value)


@pytest.mark.parametrize(
    "final", [b"", b"v=", b"v=!!", b"v=" + base64.b64encode(bytes(32)), b"e=other-error"]
)
def test_INV_SCC2_a_server_that_cannot_sign_is_not_believed(final: bytes) -> None:
    ours = client()
    ours.final(CHALLENGE)
    with pytest.raises(ServerRefused):
        ours.check(final)
    with pytest.raises(ServerRefused):
        client().check(SIGNED)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_our_server_lets_it_in_under_names_with_signs(mechanism: str) -> None:
    ours = ScramClient(mechanism, "a,b=c", "pässwörd", "abc")
    server = ScramServer(mechanism, "def")
    first = server.first(ours.first())
    assert first.user == "a,b=c"
    keys = keys_of("a,b=c", mechanism, "pässwörd".encode(), b"salt" * 4, 4096)
    challenge = server.challenge(keys, is_real=True)
    ours.check(server.final(ours.final(challenge)))
