"""APIs whose answer is always the same, in one table: what there is none of here, or what is switched off.

An answer is one for the whole request.
- 46: nothing ever moves: each node of a region has all partitions; partitions that do not exist are left out, as in Kafka
  (ReplicationControlManager.java `listPartitionReassignments`).
Not here: answers that look at the request before they say that there is nothing (`describe_client_quotas`,
`describe_user_scram_credentials`, `get_telemetry_subscriptions`).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields, Handle
from region_broker.handlers.dispatch.services import RequestContext

_TABLE: Final[tuple[tuple[int, str, range, Fields], ...]] = (
    (46, "ListPartitionReassignments", range(1), {"error_code": ErrorCode.none, "topics": []}),
)  # fmt: skip


def _handler(answer: Fields) -> Handle:
    async def handle_constant(_ctx: RequestContext, _request: Any) -> Fields:
        return answer

    return handle_constant


APIS: Final = tuple(
    Api(key, name, versions, _handler(same)) for key, name, versions, same in _TABLE
)
