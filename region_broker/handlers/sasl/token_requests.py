"""What the four APIs of delegation tokens share: whether tokens are served, who may ask, and which token a secret is of (KIP-48).

INV-TKR1  nobody who is not known, and nobody who logged in by a token, gets, changes or sees tokens
Not here: each API (its own file), what a token is good for (`security.sasl.tokens`).
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import Access, DelegationToken
from region_broker.security.identity import USER_TYPE
from region_broker.security.sasl.tokens import TokenRules, TokenSecret
from region_broker.wire.cooperative_yield import CooperativeYield

SECRET_BYTES_MAX: Final = 1_024
NAME_LENGTH_MAX: Final = 1_024
"""No user has a longer name (`tls_identity`), and the metadata keep each renewer's."""
_MS: Final = timedelta(milliseconds=1)


class Tokens(NamedTuple):
    """What a node makes tokens by."""

    secret: TokenSecret
    rules: TokenRules


def tokens_for(ctx: RequestContext) -> Tokens | ErrorCode:
    """Return what makes tokens, or why none are served to who asks (INV-TKR1)."""
    desk = ctx.services.logins
    if ctx.identity.is_anonymous or ctx.identity.token_id:
        return ErrorCode.delegation_token_request_not_allowed
    if desk is None or desk.settings.token_secret is None:
        return ErrorCode.delegation_token_auth_disabled
    return Tokens(desk.settings.token_secret, desk.settings.token_rules)


async def token_of(access: Access, tokens: Tokens, secret: bytes) -> DelegationToken | None:
    """Return the token that has this secret."""
    if len(secret) > SECRET_BYTES_MAX:
        return None
    yielding = CooperativeYield()
    for token in access.tokens:
        await yielding.row()
        if tokens.secret.is_of(token.token_id, secret):
            return token
    return None


def ms_of(duration: timedelta) -> int:
    """Return a duration of a request."""
    return duration // _MS


def principals_of(named: Sequence[tuple[str, str]]) -> tuple[str, ...] | None:
    """Return (type, name) pairs as principals, None where one is no user: there are no others."""
    if any(kind != USER_TYPE or not 0 < len(name) <= NAME_LENGTH_MAX for kind, name in named):
        return None
    return tuple(dict.fromkeys(f"{kind}:{name}" for kind, name in named))


def split_principal(principal: str) -> tuple[str, str]:
    """Return type and name."""
    kind, _, name = principal.partition(":")
    return kind, name
