"""Tokens of OAUTHBEARER: what lets in, and every way of cheating with one that is known by a name (INV-OAU1, INV-OAU2, INV-OAU3, INV-OAU4, INV-OAU5)."""

import base64
import hmac
import json
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from joserfc import jws
from joserfc.jwk import ECKey, KeySet, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from region_broker.security.sasl.bearer import (
    ALGORITHMS,
    TOKEN_BYTES_MAX,
    BearerRules,
    JudgedToken,
    fits_kind,
    judged,
    read_bearer,
)
from region_broker.security.sasl.jwks import NotFetched, keys_in
from region_broker.security.sasl.refusals import LoginRefused

NOW_MS = 1_800_000_000_000
RSA = RSAKey.generate_key(2048, {"kid": "rsa"})
EC = ECKey.generate_key("P-256", {"kid": "ec"})
ED = OKPKey.generate_key("Ed25519", {"kid": "ed"})
KEYS = keys_in(json.dumps(KeySet([RSA, EC, ED]).as_dict(private=False)).encode())
RULES = BearerRules(
    issuer="https://issuer", audience="tidemark", algorithms=("RS256", "PS256", "ES256", "Ed25519"),
    principal_claim="sub", skew_ms=30_000,
)  # fmt: skip
CLAIMS: dict[str, Any] = {
    "iss": "https://issuer", "aud": "tidemark", "sub": "alice", "exp": NOW_MS // 1000 + 60,
}  # fmt: skip


def token(key: Any = RSA, algorithm: str = "RS256", claims: Any = CLAIMS, **header: Any) -> str:
    head = {"alg": algorithm, "kid": key.kid, **header}
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jws.serialize_compact(
        {name: value for name, value in head.items() if value is not None},
        json.dumps(claims), key, registry=registry,
    )  # fmt: skip


def message(text: str, authzid: str = "") -> bytes:
    named = f"a={authzid}" if authzid else ""
    return f"n,{named},\x01auth=Bearer {text}\x01host=x\x01\x01".encode()


def judge(text: str, rules: BearerRules = RULES, authzid: str = "") -> JudgedToken:
    return judged(read_bearer(message(text, authzid)), KEYS, rules, NOW_MS)


def encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize(
    ("key", "algorithm"), [(RSA, "RS256"), (RSA, "PS256"), (EC, "ES256"), (ED, "Ed25519")]
)
def test_a_token_lets_in_whom_it_names_until_it_ends(key: Any, algorithm: str) -> None:
    assert judge(token(key, algorithm), authzid="alice") == JudgedToken("alice", NOW_MS + 90_000)
    several = CLAIMS | {"aud": ["other", "tidemark"], "nbf": NOW_MS // 1000 + 29}
    assert judge(token(key, algorithm, several)).principal_name == "alice"


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"iss": "https://other"}, "issuer"),
        ({"iss": None}, "issuer"),
        ({"aud": "other"}, "audience"),
        ({"aud": None}, "audience"),
        ({"aud": ["tidemarks"]}, "audience"),
        ({"aud": {"tidemark": 1}}, "audience"),
        ({"exp": NOW_MS // 1000 - 30}, "ended"),
        ({"exp": None}, "no end"),
        ({"exp": "9999999999"}, "no end"),
        ({"exp": True}, "no end"),
        ({"exp": 1e300}, "no end"),
        ({"nbf": NOW_MS // 1000 + 31}, "not count yet"),
        ({"nbf": "x"}, "not count yet"),
        ({"nbf": True}, "not count yet"),
        ({"sub": None}, "names nobody"),
        ({"sub": ""}, "names nobody"),
        ({"sub": "a\nb"}, "names nobody"),
        ({"sub": ["alice"]}, "names nobody"),
    ],
)
def test_claims_that_are_not_right_are_refused(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(LoginRefused, match=why):
        judge(token(claims=CLAIMS | changed))


@pytest.mark.parametrize("name", ["iss", "aud", "exp", "sub"])
def test_a_claim_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(LoginRefused):
        judge(token(claims={each: value for each, value in CLAIMS.items() if each != name}))


def test_claims_that_are_no_object_are_refused() -> None:
    with pytest.raises(LoginRefused, match="no object"):
        judge(token(claims=["alice"]))


def test_a_token_without_a_signature_is_refused() -> None:
    """CVE class: JWT alg none."""
    for algorithm in ("none", "None", "NONE", "", None, ["RS256"]):
        forged = f"{encoded({'alg': algorithm})}.{encoded(CLAIMS)}.{encoded('x')}"
        with pytest.raises(LoginRefused, match="algorithm"):
            judge(forged)
    with pytest.raises(LoginRefused, match="three parts"):
        read_bearer(message(f"{encoded({'alg': 'none'})}.{encoded(CLAIMS)}."))


def test_a_public_key_is_no_password() -> None:
    """CVE class: JWT algorithm confusion, HS256 by the text of the public key."""
    pem = RSA.public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    signed = f"{encoded({'alg': 'HS256', 'kid': 'rsa'})}.{encoded(CLAIMS)}"
    proof = base64.urlsafe_b64encode(hmac.digest(pem, signed.encode(), "sha256")).rstrip(b"=")
    with pytest.raises(LoginRefused, match="algorithm"):
        judge(f"{signed}.{proof.decode()}")
    assert not any(name.startswith("HS") for name in ALGORITHMS)


def test_an_algorithm_that_is_not_configured_or_not_of_the_key_is_refused() -> None:
    with pytest.raises(LoginRefused, match="algorithm"):
        judge(token(RSA, "RS512"))
    head = {"alg": "ES256", "kid": "rsa"}
    with pytest.raises(LoginRefused, match="no key"):
        judge(f"{encoded(head)}.{encoded(CLAIMS)}.AAAA")


def test_unknown_crit_is_refused() -> None:
    """CVE-2026-32597; known ones, too."""
    good = token().split(".")
    for crit in (["exp"], ["b64"], [], "x", None):
        head = encoded({"alg": "RS256", "kid": "rsa", "crit": crit})
        with pytest.raises(LoginRefused, match="crit"):
            judge(".".join([head, *good[1:]]))


@pytest.mark.parametrize(
    "kid", ["../../dev/null", "https://evil/keys", "' OR 1=1", "x" * 5000, "", 7, None, ["rsa"]]
)
def test_kid_is_a_name_and_nothing_else(kid: Any) -> None:
    """CVE class: kid injection."""
    head = encoded({"alg": "RS256", "kid": kid})
    with pytest.raises(LoginRefused, match="no key"):
        judge(".".join([head, *token().split(".")[1:]]))


def test_a_kid_that_is_no_name_fits_no_key_without_one() -> None:
    """An issuer that names no key: what a header says then is looked for, and not there."""
    fields = {name: value for name, value in RSA.as_dict(private=False).items() if name != "kid"}
    nameless = keys_in(json.dumps({"keys": [fields]}).encode())
    head = encoded({"alg": "RS256", "kid": 7})
    with pytest.raises(LoginRefused, match="no key"):
        judged(
            read_bearer(message(".".join([head, *token().split(".")[1:]]))), nameless, RULES, NOW_MS
        )


def test_a_token_for_ever_counts_for_a_year() -> None:
    """A session is told in milliseconds of 64 bits, and ended by a timer: neither takes any number."""
    far = judge(token(claims=CLAIMS | {"exp": 2**52}))
    assert far.until_wall_ms == NOW_MS + 366 * 24 * 3_600_000


def test_keys_and_addresses_in_a_header_are_not_used() -> None:
    """CVE class: SSRF and forged keys by `jwk`, `jku`, `x5u`: only the signature of a fetched key counts."""
    own = RSAKey.generate_key(2048, {"kid": "rsa"})
    public = own.as_dict(private=False)
    forged = token(own, jwk=public, jku="https://evil/keys", x5u="https://evil/cert")
    with pytest.raises(LoginRefused, match="signature"):
        judge(forged)


def test_without_a_kid_one_key_must_fit() -> None:
    assert judge(token(EC, "ES256", kid=None)).principal_name == "alice"
    both = [*KEYS, ECKey.generate_key("P-256")]
    with pytest.raises(LoginRefused, match="more than one"):
        judged(read_bearer(message(token(EC, "ES256", kid=None))), both, RULES, NOW_MS)


def test_a_key_that_is_for_something_else_is_not_used() -> None:
    """RFC 7517: `use` and `alg` of a key; RFC 7518: ES256 is of P-256 alone."""
    for other in (
        ECKey.generate_key("P-384", {"kid": "ec"}),
        ECKey.generate_key("P-256", {"kid": "ec", "use": "enc"}),
        ECKey.generate_key("P-256", {"kid": "ec", "alg": "ES384"}),
    ):
        assert not fits_kind(other, "ES256")
    assert fits_kind(ECKey.generate_key("P-256", {"use": "sig", "alg": "ES256"}), "ES256")


@pytest.mark.parametrize("depth", [10, 900, 990, 1_000, 1_010, 1_020, 3_000])
def test_INV_OAU6_a_header_of_any_depth_is_refused_as_any_other(depth: int) -> None:
    """What Python's own reader of JSON cannot descend was an error of the node, with a traceback for each attempt, and no refused login."""
    head = json.dumps({"alg": "RS256", "kid": "rsa"})[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"  # fmt: skip
    first = base64.urlsafe_b64encode(head.encode()).rstrip(b"=").decode()
    with pytest.raises(LoginRefused, match="is refused"):
        judge(".".join([first, *token().split(".")[1:]]))


def test_another_signature_is_refused() -> None:
    head, _, proof = token().split(".")
    with pytest.raises(LoginRefused, match="signature"):
        judge(f"{head}.{encoded(CLAIMS | {'sub': 'root'})}.{proof}")


def test_another_authorization_identity_is_refused() -> None:
    with pytest.raises(LoginRefused, match="authorization identity"):
        judge(token(), authzid="root")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"n,,",
        b"n,,\x01auth=Bearer a.b.c\x01",
        b"n,,\x01auth=Bearer e30.b.c\x01host=x",
        b"n,,\x01auth=Bearer e30.b.c\x01host=x\x01port=1",
        b"n,,\x01auth=Bearer e30.b.c\x01host=x\x01",
        b"n,,\x01auth=Basic a.b.c\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"y,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,,\x01auth=Bearer a.b\x01\x01",
        b"n,,\x01auth=Bearer \xff.b.c\x01\x01",
        b"n,,\x01auth=Bearer W10.b.c\x01\x01",
        b"n,,\x01auth=Bearer " + b"a" * TOKEN_BYTES_MAX + b".b.c\x01\x01",
        b"x" * 30_000,
        b"n,,\x01auth=Bearer e30.b." + b"c" * TOKEN_BYTES_MAX + b"\x01\x01",
        b"n,,\x01auth=Bearer e30.b.c\x01host=" + b"x" * 30_000 + b"\x01\x01",
    ],
)
def test_messages_that_are_not_right_are_refused(text: bytes) -> None:
    with pytest.raises(LoginRefused):
        read_bearer(text)


def test_a_set_of_keys_is_taken_without_those_that_are_not_for_this() -> None:
    numbers = rsa.generate_private_key(65537, 1024).public_key().public_numbers()
    modulus = base64.urlsafe_b64encode(numbers.n.to_bytes(128, "big")).rstrip(b"=").decode()
    weak = {"kty": "RSA", "n": modulus, "e": "AQAB", "kid": "weak"}
    secret = {"kty": "oct", "k": "AAAA", "kid": "s"}
    content = json.dumps({"keys": [weak, secret, {"kty": "x"}, 7, EC.as_dict(private=False)]})
    assert [key.kid for key in keys_in(content.encode())] == ["ec"]
    for wrong in (b"", b"[]", b"{}", b'{"keys":7}', b'{"keys":[]}', json.dumps({"keys": [secret] * 200}).encode(), json.dumps({"keys": [EC.as_dict(private=False)] * 101}).encode()):  # fmt: skip
        with pytest.raises(NotFetched):
            keys_in(wrong)


def test_a_token_is_not_shown() -> None:
    assert repr(read_bearer(message(token()))) == "Bearer()"
    with pytest.raises(LoginRefused) as refused:
        judge(token(claims=CLAIMS | {"iss": "x"}))
    assert token().split(".")[1] not in str(refused.value)
