"""DescribeDelegationToken (41), versions 1-3: the tokens that who asks may see, with their secrets (KIP-48).  v3: who asked for them.

Those are one's own: who owns, asked for, or may renew a token sees it, and who an ACL lets; others are left out.
An owner that is named means whoever the token is of in that sense. Source: DelegationTokenManager.java `filterToken`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import sees
from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.token_requests import Tokens, split_principal, tokens_for
from region_broker.security.access import DelegationToken, Operation, ResourceType
from region_broker.security.sasl.tokens import may_change, whose
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_describe_delegation_token(ctx: RequestContext, request: Any) -> Fields:
    """Tell the tokens, of some owners or of all."""
    tokens = tokens_for(ctx)
    if isinstance(tokens, ErrorCode):
        return {"error_code": tokens, "tokens": []}
    check_count("DescribeDelegationToken", len(request.owners or ()))
    owners = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    yielding, rows = CooperativeYield(), []
    for token in ctx.services.metadata.image.access.tokens:
        await yielding.row()
        is_asked = owners is None or not owners.isdisjoint(whose(token))
        if is_asked and may_see(ctx, token):
            rows.append(_row(tokens, token))
    return {"error_code": ErrorCode.none, "tokens": rows}


def may_see(ctx: RequestContext, token: DelegationToken) -> bool:
    """Return whether who asks may see a token: one's own, or where an ACL says so (KIP-48, KIP-373)."""
    if may_change(token, ctx.identity.principal):
        return True
    return ctx.services.authorizer.in_force and (
        sees(ctx, Operation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
        or sees(ctx, Operation.DESCRIBE_TOKENS, ResourceType.USER, token.owner)
    )


def _row(tokens: Tokens, token: DelegationToken) -> Fields:
    owner, requester = split_principal(token.owner), split_principal(token.requester)
    renewers = (split_principal(each) for each in token.renewers)
    return {
        "principal_type": owner[0], "principal_name": owner[1],
        "token_requester_principal_type": requester[0], "token_requester_principal_name": requester[1],
        "issue_timestamp": token.issued_wall_ms, "expiry_timestamp": token.expires_wall_ms,
        "max_timestamp": token.ends_wall_ms, "token_id": token.token_id,
        "hmac": tokens.secret.hmac_of(token.token_id),
        "renewers": [{"principal_type": kind, "principal_name": name} for kind, name in renewers],
    }  # fmt: skip


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": ErrorCode(error_code), "tokens": []}


API: Final = Api(
    41,
    "DescribeDelegationToken",
    range(1, 4),
    handle_describe_delegation_token,
    lists=always,
    on_error=_on_error,
)
