"""OAUTHBEARER (RFC 7628): a JSON Web Token in one message, judged by keys that were fetched beforehand.

INV-OAU1  a token is judged by an algorithm of the configured ones alone, each with its own kind of key: no `none`, no symmetric one,
          whatever its header says (RFC 8725, 3.1)
INV-OAU2  what a header says of keys is a name to look for among the fetched ones (`kid`): no address, path or key in it is ever used
INV-OAU3  a header with `crit` is refused: nothing that it could ask for is known here (CVE-2026-32597)
INV-OAU4  issuer and audience are the configured ones, an end is there and has not passed, a beginning has, each within the skew
INV-OAU5  an authorization identity other than the token's own principal is refused
INV-OAU6  a token that cannot be read is refused as any other, also one that nests deeper than Python's own reader of JSON descends: orjson's goes further
Pure: keys and the time are handed in. Not here: fetching keys (`jwks`), the end of a session (`desk`).
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import orjson
from joserfc import jws
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from region_broker.security.sasl.refusals import LoginRefused

NAME: Final = "OAUTHBEARER"
TOKEN_BYTES_MAX: Final = 16_384
_MESSAGE_BYTES_MAX: Final = TOKEN_BYTES_MAX + 4_096
_PRINCIPAL_LENGTH_MAX: Final = 249
_KID_LENGTH_MAX: Final = 256
_LIFETIME_MAX_MS: Final = 366 * 24 * 3_600_000
_GS2: Final = re.compile(r"n,(?:a=([^,]*))?,")
_COMPACT: Final = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)

Key: TypeAlias = RSAKey | ECKey | OKPKey
ALGORITHMS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {
        "RS256": ("RSA", ""), "RS384": ("RSA", ""), "RS512": ("RSA", ""),
        "PS256": ("RSA", ""), "PS384": ("RSA", ""), "PS512": ("RSA", ""),
        "ES256": ("EC", "P-256"), "ES384": ("EC", "P-384"), "ES512": ("EC", "P-521"),
        "Ed25519": ("OKP", "Ed25519"),
    }
)  # fmt: skip
"""What may be configured: the type and the curve of the keys of each."""


class _Registry(JWSRegistry):
    """joserfc's, for headers as some issuers write them: the whole token is bounded already."""

    max_header_length = TOKEN_BYTES_MAX
    max_payload_length = TOKEN_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BearerRules:
    """What tokens must be like."""

    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    principal_claim: str
    skew_ms: int


@dataclass(frozen=True, slots=True)
class Bearer:
    """What a client's message says; `header`: of the token, not to be believed yet."""

    token: str
    header: Mapping[str, Any]
    authzid: str

    @property
    def kid(self) -> str | None:
        """Return the name of the key (INV-OAU2)."""
        kid = self.header.get("kid")
        return kid if isinstance(kid, str) and len(kid) <= _KID_LENGTH_MAX else None

    def __repr__(self) -> str:
        """Say nothing of the token."""
        return "Bearer()"


@dataclass(frozen=True, slots=True)
class JudgedToken:
    """Whom a token speaks for, and until when, by the wall clock."""

    principal_name: str
    until_wall_ms: int


def read_bearer(message: bytes) -> Bearer:
    """Take a client's message apart (RFC 7628, 3.1); raises `LoginRefused`."""
    if len(message) > _MESSAGE_BYTES_MAX:
        raise _refused(f"the message has {len(message)} bytes, over {_MESSAGE_BYTES_MAX}")
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        raise _refused("the message is no UTF-8") from error
    head, *pairs = text.split("\x01")
    found = _GS2.fullmatch(head)
    if found is None or len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise _refused("the message is not one of RFC 7628")
    values = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    scheme, _, token = values.get("auth", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or len(token) > TOKEN_BYTES_MAX or not _COMPACT.fullmatch(token):
        raise _refused("the message has no token of three parts")
    authzid = (found[1] or "").replace("=2C", ",").replace("=3D", "=")
    return Bearer(token, _header(token.partition(".")[0]), authzid)


def judged(bearer: Bearer, keys: Sequence[Key], rules: BearerRules, now_ms: int) -> JudgedToken:
    """Return whom a token speaks for; raises `LoginRefused`. Takes a tenth of a millisecond."""
    algorithm = bearer.header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in rules.algorithms:  # INV-OAU1
        raise _refused("its algorithm is not one that is configured")
    if "crit" in bearer.header:  # INV-OAU3
        raise _refused("its header asks for extensions (crit)")
    key = _key_for(bearer, algorithm, keys)
    try:
        signed = jws.deserialize_compact(
            bearer.token, key, [algorithm], _Registry(algorithms=[algorithm], strict_check_header=False),
        )  # fmt: skip
        claims = orjson.loads(signed.payload)
    except (JoseError, ValueError, RecursionError) as error:  # INV-OAU6
        raise _refused(f"its signature or its form is wrong ({type(error).__name__})") from error
    if not isinstance(claims, dict):
        raise _refused("its payload is no object")
    token = _checked(claims, rules, now_ms)
    if bearer.authzid and bearer.authzid != token.principal_name:  # INV-OAU5
        raise _refused("the authorization identity is not the token's principal")
    return token


def fits_kind(key: Key, algorithm: str) -> bool:
    """Return whether a key is of the kind that an algorithm wants (INV-OAU1)."""
    kind, curve = ALGORITHMS[algorithm]
    fields = key.as_dict(private=False)
    if key.key_type != kind or (curve and fields.get("crv") != curve):
        return False
    return fields.get("alg") in {None, algorithm} and fields.get("use") in {None, "sig"}


def _key_for(bearer: Bearer, algorithm: str, keys: Sequence[Key]) -> Key:
    fitting = [key for key in keys if fits_kind(key, algorithm)]
    if "kid" in bearer.header:
        fitting = [key for key in fitting if bearer.kid is not None and key.kid == bearer.kid]
    if len(fitting) != 1:
        raise _refused("no key, or more than one, fits what its header says")
    return fitting[0]


def _checked(claims: Mapping[str, Any], rules: BearerRules, now_ms: int) -> JudgedToken:
    """Return whom claims speak for (INV-OAU4)."""
    if claims.get("iss") != rules.issuer:
        raise _refused("its issuer is another one")
    audience = claims.get("aud")
    if rules.audience not in (audience if isinstance(audience, list) else [audience]):
        raise _refused("its audience is another one")
    ends_ms, begins_ms = _ms_of(claims, "exp"), _ms_of(claims, "nbf")
    if ends_ms is None or now_ms >= ends_ms + rules.skew_ms:
        raise _refused("it has no end, or has ended")
    if "nbf" in claims and (begins_ms is None or now_ms < begins_ms - rules.skew_ms):
        raise _refused("it does not count yet")
    name = claims.get(rules.principal_claim)
    if not isinstance(name, str) or not 0 < len(name) <= _PRINCIPAL_LENGTH_MAX or not name.isprintable():  # fmt: skip
        raise _refused(f"its {rules.principal_claim} names nobody")
    return JudgedToken(name, min(ends_ms + rules.skew_ms, now_ms + _LIFETIME_MAX_MS))


def _ms_of(claims: Mapping[str, Any], name: str) -> int | None:
    value = claims.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) >= 2**53:
        return None
    return int(value * 1_000)


def _header(part: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (binascii.Error, ValueError) as error:
        raise _refused("the header of the token is malformed") from error
    if not isinstance(found, dict):
        raise _refused("the header of the token is no object")
    return found


def _refused(why: str) -> LoginRefused:
    return LoginRefused(NAME, f"the token is refused: {why}")
