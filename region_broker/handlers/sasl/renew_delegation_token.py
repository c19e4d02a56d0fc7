"""RenewDelegationToken (39), versions 1-2: a token expires later (KIP-48).  v2: flexible.

Source: DelegationTokenControlManager.java `renewDelegationToken`.
"""

from typing import Any, Final

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.sasl.token_changes import change_token, on_error
from region_broker.handlers.sasl.token_requests import Tokens, ms_of
from region_broker.security.access import AccessChange, DelegationToken
from region_broker.security.sasl.tokens import renewed

_NAME: Final = "RenewDelegationToken"


async def handle_renew_delegation_token(ctx: RequestContext, request: Any) -> Fields:
    """Renew the token."""
    period_ms = ms_of(request.renew_period)

    def change(tokens: Tokens, token: DelegationToken, now_ms: int) -> tuple[AccessChange, int]:
        later = renewed(token, now_ms, period_ms, tokens.rules)
        return AccessChange(tokens_put=(later,)), later.expires_wall_ms

    return await change_token(ctx, _NAME, bytes(request.hmac), change)


API: Final = Api(
    39, _NAME, range(1, 3), handle_renew_delegation_token, forward=True,
    on_error=on_error,
)  # fmt: skip
