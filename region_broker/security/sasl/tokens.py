"""Delegation tokens (KIP-48): secrets that a node derives, and how long each is good for.

INV-DTK1  the secret of a token is a function of its id and of a secret that all nodes share by a file; it is kept nowhere, and told to whom
          Kafka tells it: who made the token, and who may see it
INV-DTK2  a token ends at its expiry, which a renewal moves, and no renewal moves it beyond its end
INV-DTK3  the same is computed for a token that is not there as for one that is: any id has keys
As in Kafka a token logs in by SCRAM: its id is the user name, its secret in base64 the password, and the extension `tokenauth=true` says so.
Pure. Not here: who may ask for one (`handlers.sasl`), where tokens are kept (`security.access`).
"""

import base64
import hmac
from dataclasses import dataclass
from typing import Final

from region_broker.security.access import DelegationToken, ScramKeys
from region_broker.security.sasl.scram import ITERATIONS_MIN
from region_broker.security.sasl.scram_keys import SALT_BYTES, keys_of

SECRET_BYTES_MIN: Final = 32
EXTENSION: Final = "tokenauth"
_SALT: Final = b"salt\0"


class TokenSecret:
    """What secrets of tokens are derived from; shown nowhere."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        """Derive from `secret`."""
        assert len(secret) >= SECRET_BYTES_MIN, "whoever read it has checked"
        self._secret = secret

    def hmac_of(self, token_id: str) -> bytes:
        """Return the secret of a token (INV-DTK1)."""
        return hmac.digest(self._secret, token_id.encode(), "sha512")

    def is_of(self, token_id: str, secret: bytes) -> bool:
        """Return whether `secret` is that of a token."""
        return hmac.compare_digest(self.hmac_of(token_id), secret)

    def for_nobody(self) -> bytes:
        """Return what keys of users who are not there are made of, at each node that has the secret."""
        return hmac.digest(self._secret, b"keys of nobody", "sha256")

    def keys_of(self, token_id: str, mechanism: str) -> ScramKeys:
        """Return the keys that a token logs in by: the work of a PBKDF2 (INV-DTK3)."""
        salt = hmac.digest(self._secret, _SALT + token_id.encode(), "sha512")[:SALT_BYTES]
        password = base64.b64encode(self.hmac_of(token_id))
        return keys_of(token_id, mechanism, password, salt, ITERATIONS_MIN)


@dataclass(frozen=True, slots=True)
class TokenRules:
    """How long tokens are good for. `expiry_ms`: without a renewal; `lifetime_max_ms`: with any number of them."""

    lifetime_max_ms: int
    expiry_ms: int


def issued(token: DelegationToken, asked_ms: int, rules: TokenRules) -> DelegationToken:
    """Return a token with its times, from `issued_wall_ms` on; `asked_ms`: how long it shall live, 0 and less: as long as it may."""
    lifetime_ms = rules.lifetime_max_ms if asked_ms <= 0 else min(asked_ms, rules.lifetime_max_ms)
    ends_ms = token.issued_wall_ms + lifetime_ms
    return _with(token, min(ends_ms, token.issued_wall_ms + rules.expiry_ms), ends_ms)


def renewed(
    token: DelegationToken, now_wall_ms: int, period_ms: int, rules: TokenRules
) -> DelegationToken:
    """Return a token that expires after `period_ms`, below 0: as late as a renewal can make it (INV-DTK2)."""
    wanted_ms = rules.expiry_ms if period_ms < 0 else period_ms
    return _with(token, min(token.ends_wall_ms, now_wall_ms + wanted_ms), token.ends_wall_ms)


def is_live(token: DelegationToken, now_wall_ms: int) -> bool:
    """Return whether a token is good for a login."""
    return now_wall_ms < min(token.expires_wall_ms, token.ends_wall_ms)


def may_change(token: DelegationToken, principal: str) -> bool:
    """Return whether `principal` may renew a token, and have it expire."""
    return principal in whose(token)


def whose(token: DelegationToken) -> tuple[str, ...]:
    """Return whose a token is: its owner's, who asked for it, and who may renew it."""
    return (token.owner, token.requester, *token.renewers)


def _with(token: DelegationToken, expires_ms: int, ends_ms: int) -> DelegationToken:
    return DelegationToken(
        token.token_id, token.owner, token.requester, token.renewers, token.issued_wall_ms, expires_ms, ends_ms,
    )  # fmt: skip
