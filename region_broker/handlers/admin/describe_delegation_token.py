"""DescribeDelegationToken (41), versions 1-3: nobody is authenticated, so nobody may ask for tokens.

v2: flexible.  v3: who asked for the token.
Kafka says DELEGATION_TOKEN_REQUEST_NOT_ALLOWED on a plaintext connection before it looks whether there are tokens
(KafkaApis.scala `handleDescribeTokensRequest`).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_describe_delegation_token(_ctx: RequestContext, _request: Any) -> Fields:
    """Refuse."""
    return {"error_code": ErrorCode.delegation_token_request_not_allowed, "tokens": []}


API: Final = Api(41, "DescribeDelegationToken", range(1, 4), handle_describe_delegation_token)
