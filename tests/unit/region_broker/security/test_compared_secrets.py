"""Secrets are compared in constant time, and those of nobody are compared, too (INV-HTK2, INV-SCR5).

Time itself is not measured here: what is asked is whether the comparison is Python's constant one, and how often it is made.
"""

import hmac
from contextlib import nullcontext

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.http_tokens import HttpTokens, Role, file_of, made_token
from region_broker.security.sasl.refusals import LoginRefused
from region_broker.security.sasl.scram import ScramServer
from region_broker.security.sasl.scram_keys import fits, played_keys, usual
from region_broker.security.sasl.tokens import TokenSecret
from tests.fixtures.scram_users import PROOF, rfc_keys

compare_digest = hmac.compare_digest


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, bytes]]:
    """Return what was compared since."""
    seen: list[tuple[bytes, bytes]] = []

    def noted(one: bytes, other: bytes) -> bool:
        seen.append((one, other))
        return compare_digest(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    return seen


def test_a_token_of_the_http_port_is_compared_whether_it_is_known_or_not(
    compared: list[tuple[bytes, bytes]],
) -> None:
    token, row = made_token("ops", Role.OPERATOR, SystemChance(), 5)
    tokens = HttpTokens(lambda: file_of([row]), lambda _why: None)
    tokens.look()
    other = "0" if token[4] != "0" else "1"
    for text in (token, f"{token[:-1]}{'A' if token[-1] != 'A' else 'Q'}", f"tmt_{other}{token[5:]}", "nonsense"):  # fmt: skip
        compared.clear()
        tokens.row_of(text, 1)
        assert [len(each) for pair in compared for each in pair] == [32, 32], text


def test_a_proof_and_a_nonce_are_compared_whether_somebody_is_there_or_not(
    compared: list[tuple[bytes, bytes]],
) -> None:
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    final = f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode()
    nobody = played_keys(b"secret", "user", usual([], "SCRAM-SHA-256"))
    for keys, is_real in ((rfc_keys(), True), (nobody, False)):
        compared.clear()
        server = ScramServer("SCRAM-SHA-256", "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
        server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
        server.challenge(keys, is_real=is_real)
        with nullcontext() if is_real else pytest.raises(LoginRefused):
            server.final(final)
        assert compared[0][0] == nonce.encode()
        assert compared[-1][1] == keys.stored_key
    assert len(PROOF) == len(compared[-1][0])


def test_a_password_and_the_secret_of_a_delegation_token_are_compared_so(
    compared: list[tuple[bytes, bytes]],
) -> None:
    assert fits(rfc_keys(), b"pencil")
    assert compared.pop() == (rfc_keys().stored_key, rfc_keys().stored_key)
    secret = TokenSecret(bytes(32))
    assert not secret.is_of("id", b"wrong")
    assert compared.pop() == (secret.hmac_of("id"), b"wrong")
