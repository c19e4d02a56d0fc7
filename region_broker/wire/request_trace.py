"""How a request is named in logs: the fields by which its lines are found, here, in a mirror and in the client.

INV-WT1  the fields of a request are the same in the region that the client is connected to and in the one that its
         request is forwarded to: client address, client id and correlation id are the client's own
Nothing is read unless a line is written; a damaged header still has a trace.

librdkafka (`debug=protocol`), the Java client and franz-go log the same correlation ids.
Not here: what is logged when (`wire.server`, `handlers.dispatch.error_log`).
"""

from typing import Final, TypeAlias

from kio.schema.index import api_key_map

from region_broker.wire.connection import Incoming
from region_broker.wire.headers import HeaderError, read_header

Trace: TypeAlias = dict[str, object]
_CLIENT_ID_SHOWN_MAX: Final = 256


def trace_of(incoming: Incoming) -> Trace:
    """Return the fields of a request for `extra=` of a log line."""
    try:
        client_id = read_header(incoming.frame, flexible=False).client_id
    except HeaderError:
        client_id = None
    return {
        "api": api_name(incoming.api_key),
        "api_version": incoming.version,
        "correlation_id": incoming.correlation_id,
        "client_id": client_id and client_id[:_CLIENT_ID_SHOWN_MAX],
        "client": incoming.peer.address,
        "connection_id": incoming.peer.connection_id,
    }


def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, or its number where there is none."""
    name = api_key_map.get(api_key)
    return str(api_key) if name is None else "".join(map(str.capitalize, name.split("_")))
