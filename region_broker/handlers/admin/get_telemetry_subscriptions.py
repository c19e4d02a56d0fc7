"""GetTelemetrySubscriptions (71), versions 0-0 (KIP-714): no metric of a client is wanted, ever.

A client that is told so sends none, and asks again after the interval. librdkafka counts that interval in
microseconds in 32 bits (rdkafka_telemetry.c), so anything beyond 35 minutes would make it ask without pause.
Source: ClientMetricsManager.java.
"""

from typing import Any, Final

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

SUBSCRIPTION_ID: Final = 0
ASK_AGAIN_MS: Final = 30 * 60 * 1000
TELEMETRY_BYTES_MAX: Final = 1024 * 1024
CODECS: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: Kafka's order of preference; 0 (none) always goes."""


async def handle_get_telemetry_subscriptions(ctx: RequestContext, request: Any) -> Fields:
    """Answer with an empty subscription; a client without an instance id is given one."""
    return _answer(0, request.client_instance_id or ctx.services.chance.uuid())


def _answer(error_code: int, client_instance_id: Any) -> Fields:
    return {
        "error_code": error_code,
        "client_instance_id": client_instance_id,
        "subscription_id": SUBSCRIPTION_ID,
        "accepted_compression_types": CODECS,
        "push_interval": ASK_AGAIN_MS,
        "telemetry_max_bytes": TELEMETRY_BYTES_MAX,
        "delta_temporality": True,
        "requested_metrics": (),
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return _answer(error_code, request.client_instance_id)


API: Final = Api(
    71,
    "GetTelemetrySubscriptions",
    range(1),
    handle_get_telemetry_subscriptions,
    on_error=_on_error,
)
