"""ListPartitionReassignments (46), versions 0-0: nothing ever moves in a region of one node, so nothing is under way.

Partitions that do not exist are left out, as in Kafka. Source: ReplicationControlManager.java
`listPartitionReassignments`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_list_partition_reassignments(_ctx: RequestContext, _request: Any) -> Fields:
    """Answer that there are none."""
    return {"error_code": ErrorCode.none, "topics": []}


API: Final = Api(46, "ListPartitionReassignments", range(1), handle_list_partition_reassignments)
