"""librdkafka's settings for a client that knows several regions: how soon it leaves one that went away or fell silent.

INV-CP17 whoever stops answering is left after seconds for the other addresses, without the application's doing

Each region names only itself as a broker, and librdkafka forgets the bootstrap addresses as soon as it has a broker's word.
It goes back to them when every broker that it knows has failed. One that refuses connections fails at once; one that takes
connections and says nothing (a process that stands still, a network that swallows everything) by time-outs only.

`docs/reference/clients.md` says what each is for. Not here: time-outs of our own calls (`timeouts`).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

ACROSS_REGIONS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "metadata.recovery.rebootstrap.trigger.ms": 5_000,
        "socket.timeout.ms": 10_000,
        "socket.connection.setup.timeout.ms": 3_000,
        "api.version.request.timeout.ms": 3_000,
        # librdkafka waits for ever, past every time-out, for a group coordinator that is no longer in the
        # metadata (its issues 5511, 5456), until any of its connections changes: idle ones do, then.
        "connections.max.idle.ms": 5_000,
        "reconnect.backoff.max.ms": 1_000,
    }
)


def across_regions(transaction_timeout_ms: int) -> dict[str, Any]:
    """Return the settings for a transactional producer: no request may wait for longer than a transaction."""
    wait_ms = min(ACROSS_REGIONS["socket.timeout.ms"], transaction_timeout_ms)
    return {**ACROSS_REGIONS, "socket.timeout.ms": wait_ms}
