"""DescribeCluster (60), versions 0-2.  v1: endpoint type (only brokers here).  v2: fenced brokers."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.operations import CLUSTER_OPERATIONS, NOT_ASKED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

_BROKERS: Final = 1


async def handle_describe_cluster(ctx: RequestContext, request: Any) -> Fields:
    """Answer who the nodes of this region are."""
    region = ctx.services.region
    endpoint_type = int(getattr(request, "endpoint_type", _BROKERS))
    if endpoint_type != _BROKERS:
        return {
            "error_code": ErrorCode.unsupported_endpoint_type,
            "error_message": f"endpoint type {endpoint_type} is not served, only 1 (brokers)",
            "cluster_id": region.cluster_id,
            "endpoint_type": endpoint_type,
        }
    of_cluster = bool(request.include_cluster_authorized_operations)
    return {
        "error_code": ErrorCode.none,
        "cluster_id": region.cluster_id,
        "endpoint_type": _BROKERS,
        "controller_id": region.node_id,
        "brokers": [
            {"broker_id": region.node_id, "host": region.kafka_host, "port": region.kafka_port}
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS if of_cluster else NOT_ASKED,
    }


API: Final = Api(60, "DescribeCluster", range(3), handle_describe_cluster)
