"""Who leads a partition, and where that node is met, as Produce and Fetch tell it in tags (KIP-951).

Source: ProduceResponse.json, FetchResponse.json: `CurrentLeader`, `NodeEndpoints`.
Not here: when it is told (`handlers`).
"""

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from region_broker.wire.codec.bounded import write_uvarint

_I32: Final = struct.Struct(">i")
_LEADER: Final = struct.Struct(">iiB")


class Endpoint(NamedTuple):
    """Where a node is found."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def leader_value(leader: tuple[int, int]) -> bytes:
    """Return size and value of the tag `CurrentLeader`: the node and the epoch that lead now."""
    return b"\x09" + _LEADER.pack(*leader, 0)


def _compact_text(value: str) -> tuple[bytes, bytes]:
    encoded = value.encode()
    return write_uvarint(len(encoded) + 1), encoded


def endpoints_tags(endpoints: Sequence[Endpoint]) -> bytes:
    """Return the tags of an answer: `NodeEndpoints`, which is tag 0, or none."""
    if not endpoints:
        return b"\0"
    parts = [write_uvarint(len(endpoints) + 1)]
    for endpoint in endpoints:
        parts += (_I32.pack(endpoint.node_id), *_compact_text(endpoint.host))
        parts.append(_I32.pack(endpoint.port))
        if endpoint.rack is not None:
            parts += (*_compact_text(endpoint.rack), b"\0")
        else:
            parts.append(b"\0\0")  # no rack, no tags
    nodes = b"".join(parts)
    return b"\1\0" + write_uvarint(len(nodes)) + nodes
