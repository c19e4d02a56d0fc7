"""SCRAM of our commands against the example of RFC 7677, scramp's server, and servers that cheat (INV-SCC1)."""

import base64

import pytest
import scramp

from region_broker.security.sasl.scram_client import ScramClient, ServerNotBelieved

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = NONCE + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SALT = "W22ZaJ0SNY7soEsUEjb6gQ=="
SERVER_FIRST = f"r={SERVER_NONCE},s={SALT},i=4096".encode()
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def begun() -> ScramClient:
    client = ScramClient("SCRAM-SHA-256", "user", "pencil", NONCE)
    assert client.first() == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    return client


def test_the_example_of_rfc_7677() -> None:
    client = begun()
    proof = b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    assert client.final(SERVER_FIRST) == f"c=biws,r={SERVER_NONCE},".encode() + proof
    client.check(SERVER_FINAL)


@pytest.mark.parametrize("user", ["alice", "a,b=c", "zoë"])
def test_the_server_of_scramp_lets_in_and_is_believed(user: str) -> None:
    mechanism = scramp.ScramMechanism("SCRAM-SHA-512")
    keys = mechanism.make_auth_info("pässword", iteration_count=5000, salt=b"salty" * 4)
    server = mechanism.make_server({user: keys}.__getitem__)
    client = ScramClient("SCRAM-SHA-512", user, "pässword", "clientnonce")
    server.set_client_first(client.first().decode())
    server.set_client_final(client.final(server.get_server_first().encode()).decode())
    client.check(server.get_server_final().encode())


@pytest.mark.parametrize(
    "challenge",
    [
        f"r={NONCE},s={SALT},i=4096",
        f"r=other{SERVER_NONCE},s={SALT},i=4096",
        f"r={SERVER_NONCE},s={SALT},i=1",
        f"r={SERVER_NONCE},s={SALT},i=1000000000",
        f"r={SERVER_NONCE},s={SALT},i=many",
        f"r={SERVER_NONCE},s=%,i=4096",
        "e=other-error",
    ],
)
def test_a_challenge_that_is_none_gets_no_proof(challenge: str) -> None:
    with pytest.raises(ServerNotBelieved) as caught:
        begun().final(challenge.encode())
    assert "pencil" not in str(caught.value)


@pytest.mark.parametrize(
    "final", [b"v=" + base64.b64encode(bytes(32)), b"v=", b"", b"\xff", b"e=invalid-proof"]
)
def test_a_server_without_the_keys_is_not_believed(final: bytes) -> None:
    client = begun()
    client.final(SERVER_FIRST)
    with pytest.raises(ServerNotBelieved):
        client.check(final)
    with pytest.raises(ServerNotBelieved):
        begun().check(b"v=")
