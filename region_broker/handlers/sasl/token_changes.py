"""How a delegation token is renewed and made to expire: who may, and what it becomes.

INV-TKR2 who asks that of a token that is somebody else's has its secret: the audit trail is told who, and which token
Not here: the two APIs (`renew_delegation_token`, `expire_delegation_token`).
"""

from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.changing import changed_as_judged
from region_broker.handlers.sasl.token_requests import Tokens, token_of, tokens_for
from region_broker.security.access import Access, AccessChange, DelegationToken, ResourceType
from region_broker.security.sasl.tokens import is_live, may_change

Change = Callable[[Tokens, DelegationToken, int], tuple[AccessChange, int]]
"""Returns what changes, and when the token ends then; it is given the wall time."""


async def change_token(
    ctx: RequestContext, operation: str, secret: bytes, change: Change
) -> Fields:
    """Change the token that has this secret, or say why not; `operation`: as the audit trail calls it."""
    tokens = tokens_for(ctx)
    if isinstance(tokens, ErrorCode):
        return fields_of(tokens)

    async def judge(access: Access) -> tuple[AccessChange, int] | ErrorCode:
        token, now_ms = await token_of(access, tokens, secret), ctx.services.clock.wall_ms()
        if token is None:
            return ErrorCode.delegation_token_not_found
        if not may_change(token, ctx.identity.principal):
            _tell_foreign(ctx, operation, token)
            return ErrorCode.delegation_token_owner_mismatch
        if not is_live(token, now_ms):
            return ErrorCode.delegation_token_expired
        return change(tokens, token, now_ms)

    expires_ms = await changed_as_judged(ctx.services, judge)
    if isinstance(expires_ms, ErrorCode):
        return fields_of(expires_ms)
    return fields_of(ErrorCode.none, expires_ms)


def _tell_foreign(ctx: RequestContext, operation: str, token: DelegationToken) -> None:
    ctx.services.audit.refused(
        ctx.identity, operation, ResourceType.DELEGATION_TOKEN.name, token.token_id,
        reason="owner-mismatch", request_id=ctx.client_id or "",
    )  # fmt: skip


def on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    """Return the answer of both APIs that carries one error (`Api.on_error`)."""
    return fields_of(ErrorCode(error_code))


def fields_of(error: ErrorCode, expires_ms: int = 0) -> Fields:
    """Return the answer."""
    return {"error_code": error, "expiry_timestamp": expires_ms}
