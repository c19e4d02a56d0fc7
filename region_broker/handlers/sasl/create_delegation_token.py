"""CreateDelegationToken (38), versions 1-3: makes a token for who asks (KIP-48).  v2: flexible.  v3: for somebody else (KIP-373).

INV-CDT1  one principal has TOKENS_OF_ONE_MAX tokens made at the most, of BYTES_OF_ONE_MAX with all their renewers: nobody takes all the room that
          the metadata have for tokens
Tokens that have ended go when one is made. Source: KafkaApis.scala `handleCreateTokenRequest`, DelegationTokenControlManager.java.
"""

import base64
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.authorizing import may
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.changing import changed_as_judged
from region_broker.handlers.sasl.token_requests import (
    ms_of,
    principals_of,
    split_principal,
    tokens_for,
)
from region_broker.security.access import (
    TOKEN_BYTES_MAX,
    TOKEN_COUNT_MAX,
    Access,
    AccessChange,
    DelegationToken,
    Operation,
    ResourceType,
    bytes_of,
)
from region_broker.security.sasl.tokens import TokenRules, is_live, issued

RENEWERS_MAX: Final = 100
TOKENS_OF_ONE_MAX: Final = 1_000
BYTES_OF_ONE_MAX: Final = TOKEN_BYTES_MAX // 10
assert TOKENS_OF_ONE_MAX * 10 <= TOKEN_COUNT_MAX


async def handle_create_delegation_token(ctx: RequestContext, request: Any) -> Fields:
    """Make a token, or say why not."""
    tokens, requester = tokens_for(ctx), ctx.identity.principal
    if isinstance(tokens, ErrorCode):
        return _fields(ctx, tokens)
    owner = _owner(request, requester)
    if owner is None:
        return _fields(ctx, ErrorCode.invalid_principal_type)
    if not may_make(ctx, owner):
        return _fields(ctx, ErrorCode.delegation_token_authorization_failed)
    if len(request.renewers) > RENEWERS_MAX:
        return _fields(ctx, ErrorCode.invalid_principal_type)
    renewers = principals_of(
        [(str(each.principal_type), str(each.principal_name)) for each in request.renewers]
    )
    if renewers is None:
        return _fields(ctx, ErrorCode.invalid_principal_type)
    max_ms = ms_of(request.max_lifetime)

    async def judge(access: Access) -> tuple[AccessChange, DelegationToken] | ErrorCode:
        if not may_make(ctx, owner):  # INV-HAC1
            return ErrorCode.delegation_token_authorization_failed
        return _judged(ctx, access, _made(ctx, owner, renewers, max_ms, tokens.rules))

    token = await changed_as_judged(ctx.services, judge)
    if isinstance(token, ErrorCode):
        return _fields(ctx, token)
    return _fields(ctx, ErrorCode.none, token, tokens.secret.hmac_of(token.token_id))


def _made(
    ctx: RequestContext, owner: str, renewers: tuple[str, ...], max_ms: int, rules: TokenRules
) -> DelegationToken:
    now_ms = ctx.services.clock.wall_ms()
    token_id = base64.urlsafe_b64encode(ctx.services.chance.uuid().bytes).decode().rstrip("=")
    plain = DelegationToken(token_id, owner, ctx.identity.principal, renewers, now_ms, 0, 0)
    return issued(plain, max_ms, rules)


def _judged(
    ctx: RequestContext, access: Access, token: DelegationToken
) -> tuple[AccessChange, DelegationToken] | ErrorCode:
    """Return what takes the token in, and those that have ended out; or why it is not made (INV-CDT1)."""
    now_ms = ctx.services.clock.wall_ms()
    ended = tuple(each.token_id for each in access.tokens if not is_live(each, now_ms))
    own = [
        each
        for each in access.tokens
        if each.requester == token.requester and is_live(each, now_ms)
    ]
    if len(own) >= TOKENS_OF_ONE_MAX or bytes_of(*own, token) > BYTES_OF_ONE_MAX:
        return ErrorCode.policy_violation
    return AccessChange(tokens_put=(token,), tokens_removed=ended), token


def may_make(ctx: RequestContext, owner: str) -> bool:
    """Return whether who asks may make tokens of `owner`: of others where an ACL says so, and never because there are none (KIP-373)."""
    if owner == ctx.identity.principal:
        return True
    in_force = ctx.services.authorizer.in_force
    return in_force and may(ctx, Operation.CREATE_TOKENS, ResourceType.USER, owner)


def _owner(request: Any, requester: str) -> str | None:
    """Return whom the token is to speak for, None where that is no user."""
    name = getattr(request, "owner_principal_name", None)
    if not name:
        return requester
    found = principals_of([(str(request.owner_principal_type), str(name))])
    return None if found is None else found[0]


def _fields(
    ctx: RequestContext, error: ErrorCode, token: DelegationToken | None = None, secret: bytes = b""
) -> Fields:
    owner = split_principal(ctx.identity.principal if token is None else token.owner)
    requester = split_principal(ctx.identity.principal)
    return {
        "error_code": error, "principal_type": owner[0], "principal_name": owner[1],
        "token_requester_principal_type": requester[0], "token_requester_principal_name": requester[1],
        "issue_timestamp": 0 if token is None else token.issued_wall_ms,
        "expiry_timestamp": 0 if token is None else token.expires_wall_ms,
        "max_timestamp": 0 if token is None else token.ends_wall_ms,
        "token_id": "" if token is None else token.token_id, "hmac": secret,
    }  # fmt: skip


def _on_error(ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return _fields(ctx, ErrorCode(error_code))


API: Final = Api(
    38, "CreateDelegationToken", range(1, 4), handle_create_delegation_token, forward=True,
    on_error=_on_error,
)  # fmt: skip
