"""ExpireDelegationToken (40), versions 1-2: a token expires at a time, or goes at once (KIP-48).  v2: flexible.

Who is logged in by it stays so until the end that it had at the login. Source: DelegationTokenControlManager.java `expireDelegationToken`.
"""

from typing import Any, Final

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.token_changes import change_token, on_error
from region_broker.handlers.sasl.token_requests import Tokens, ms_of
from region_broker.security.access import AccessChange, DelegationToken
from region_broker.security.sasl.tokens import renewed

_NAME: Final = "ExpireDelegationToken"


async def handle_expire_delegation_token(ctx: RequestContext, request: Any) -> Fields:
    """Have the token expire; below 0: at once."""
    period_ms = ms_of(request.expiry_time_period)

    def change(tokens: Tokens, token: DelegationToken, now_ms: int) -> tuple[AccessChange, int]:
        if period_ms < 0:
            return AccessChange(tokens_removed=(token.token_id,)), now_ms
        then = renewed(token, now_ms, period_ms, tokens.rules)
        return AccessChange(tokens_put=(then,)), then.expires_wall_ms

    return await change_token(ctx, _NAME, bytes(request.hmac), change)


API: Final = Api(
    40, _NAME, range(1, 3), handle_expire_delegation_token, forward=True,
    on_error=on_error,
)  # fmt: skip
