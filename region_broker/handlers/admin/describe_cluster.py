"""DescribeCluster (60), versions 0-2.  v1: endpoint type (KIP-919).  v2: fenced brokers (KIP-1073).

This port is a broker's: whoever looks for a controller is told that it is another type of endpoint, as in Kafka 4.1.
Source: AuthHelper.scala `computeDescribeClusterResponse`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.authorizing import cluster_operations
from region_broker.handlers.dispatch.operations import NOT_ASKED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

_BROKERS: Final = 1
_CONTROLLERS: Final = 2


async def handle_describe_cluster(ctx: RequestContext, request: Any) -> Fields:
    """Answer who the nodes of this region are."""
    region, nodes = ctx.services.region, ctx.nodes
    endpoint_type = int(getattr(request, "endpoint_type", _BROKERS))
    if endpoint_type == _CONTROLLERS:
        return _refused(
            ErrorCode.mismatched_endpoint_type,
            "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER",
        )
    if endpoint_type != _BROKERS:
        return _refused(
            ErrorCode.unsupported_endpoint_type, f"Unsupported endpoint type {endpoint_type}"
        )
    with_fenced = bool(getattr(request, "include_fenced_brokers", False))
    of_cluster = bool(request.include_cluster_authorized_operations)
    return {
        "error_code": ErrorCode.none,
        "cluster_id": region.cluster_id,
        "endpoint_type": _BROKERS,
        "controller_id": nodes.leader_id,
        "brokers": [
            {**node.row("broker_id"), "is_fenced": node.fenced}
            for node in (nodes.registered if with_fenced else nodes.told)
        ],
        "cluster_authorized_operations": cluster_operations(ctx) if of_cluster else NOT_ASKED,
    }


def _refused(error: ErrorCode, text: str) -> Fields:
    """Return an error with the defaults of the schema."""
    return {
        "error_code": error, "error_message": text, "cluster_id": "", "endpoint_type": _BROKERS,
        "controller_id": -1, "brokers": [], "cluster_authorized_operations": NOT_ASKED,
    }  # fmt: skip


API: Final = Api(60, "DescribeCluster", range(3), handle_describe_cluster)
