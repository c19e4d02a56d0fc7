"""APIs whose answer is always the same, in one table: what there is none of here, or what is switched off.

An answer is one for the whole request, or the same row for each thing that the request names. Versions: flexible since
v2 (41: v3 says who asked for the token; 29 to 31: v1 pattern types, v3 user resources).
- 29 to 31: there is no authorizer, so SECURITY_DISABLED, as Kafka answers without one (AclApis.scala).
- 41: nobody is authenticated, so nobody may ask for tokens; Kafka says so on a plaintext connection before it looks whether
  there are any (KafkaApis.scala `handleDescribeTokensRequest`).
- 46: nothing ever moves: each node of a region has all partitions; partitions that do not exist are left out, as in Kafka
  (ReplicationControlManager.java `listPartitionReassignments`).
Not here: answers that look at the request before they say that there is nothing (`describe_client_quotas`,
`describe_user_scram_credentials`, `get_telemetry_subscriptions`).
"""

from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields, Handle
from region_broker.handlers.dispatch.services import RequestContext


class _ForEach(NamedTuple):
    """`row` stands in `answered`, once for each element of the request's `asked`."""

    asked: str
    answered: str
    row: Fields


_NO_AUTHORIZER: Final = {
    "error_code": ErrorCode.security_disabled,
    "error_message": "No Authorizer is configured.",
}
_TABLE: Final[tuple[tuple[int, str, range, Fields | _ForEach], ...]] = (
    (
        29, "DescribeAcls", range(1, 4),
        {
            "error_code": ErrorCode.security_disabled,
            "error_message": "No Authorizer is configured on the broker",
            "resources": [],
        },
    ),
    (30, "CreateAcls", range(1, 4), _ForEach("creations", "results", _NO_AUTHORIZER)),
    (
        31, "DeleteAcls", range(1, 4),
        _ForEach("filters", "filter_results", {**_NO_AUTHORIZER, "matching_acls": []}),
    ),
    (
        41, "DescribeDelegationToken", range(1, 4),
        {"error_code": ErrorCode.delegation_token_request_not_allowed, "tokens": []},
    ),
    (46, "ListPartitionReassignments", range(1), {"error_code": ErrorCode.none, "topics": []}),
)  # fmt: skip


def _handler(answer: Fields | _ForEach) -> Handle:
    async def handle_constant(_ctx: RequestContext, request: Any) -> Fields:
        if isinstance(answer, _ForEach):
            return {answer.answered: [answer.row] * len(getattr(request, answer.asked))}
        return answer

    return handle_constant


APIS: Final = tuple(
    Api(key, name, versions, _handler(same)) for key, name, versions, same in _TABLE
)
