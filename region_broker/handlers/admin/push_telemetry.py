"""PushTelemetry (72), versions 0-0 (KIP-714): what a client measured is taken and dropped.

Nobody is asked to send (`get_telemetry_subscriptions`), but a client may say good-bye with a last push.
Source: ClientMetricsManager.java `processPushTelemetryRequest`, `validatePushRequest`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.admin.get_telemetry_subscriptions import (
    CODECS,
    SUBSCRIPTION_ID,
    TELEMETRY_BYTES_MAX,
)
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

_NO_CODEC: Final = 0


async def handle_push_telemetry(_ctx: RequestContext, request: Any) -> Fields:
    """Check the push as Kafka does, and drop it."""
    return {"error_code": _error(request)}


def _error(request: Any) -> ErrorCode:
    if request.client_instance_id is None:
        return ErrorCode.invalid_request
    if request.subscription_id != SUBSCRIPTION_ID:
        return ErrorCode.unknown_subscription_id
    if request.compression_type not in (_NO_CODEC, *CODECS):
        return ErrorCode.unsupported_compression_type
    if len(request.metrics) > TELEMETRY_BYTES_MAX:
        return ErrorCode.telemetry_too_large
    return ErrorCode.none


API: Final = Api(72, "PushTelemetry", range(1), handle_push_telemetry)
