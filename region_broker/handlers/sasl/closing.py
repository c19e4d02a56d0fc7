"""An answer that ends its connection, as Kafka's do that refuse a login.

Not here: when (`sasl_handshake`, `sasl_authenticate`).
"""

from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.server import CloseConnection


def closing_answer(
    ctx: RequestContext, fields: Fields, why: str, *, is_told: bool = False
) -> CloseConnection:
    """Return what sends `fields` and closes the connection for `why`; `is_told`: the log knows already."""
    answer = encode_response(ctx.api_key, ctx.version, ctx.correlation_id, fields)
    return CloseConnection(why, answer=answer, is_told=is_told)
