"""Who leads the metadata quorum, asked of the nodes themselves: DescribeQuorum over a connection that is opened for it.

confluent-kafka has no call for it. Not here: who leads the logs (Metadata says that).
"""

import io
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kio.schema.describe_quorum.v1 import request, response
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.types import TopicName
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i16, i32

_TOPIC: Final = TopicName("__cluster_metadata")
_CALL_S: Final = 2.0
_LENGTH: Final = struct.Struct(">i")
_ANSWER_BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Quorum:
    """As its leader told. `behind`: how many entries the voter that lacks most lacks."""

    leader_id: int
    voters: frozenset[int]
    behind: int


def quorum(addresses: Sequence[str]) -> Quorum | None:
    """Return what the one of these nodes that leads tells, None where none does."""
    for address in addresses:
        try:
            found = _asked(address)
        except OSError:
            continue
        if found is not None:
            return found
    return None


def _asked(address: str) -> Quorum | None:
    host, port = address.split(":")
    asked = request.DescribeQuorumRequest(
        topics=(
            request.TopicData(
                topic_name=_TOPIC, partitions=(request.PartitionData(partition_index=i32(0)),)
            ),
        )
    )
    out = io.BytesIO()
    header = RequestHeader(
        request_api_key=i16(55), request_api_version=i16(1), correlation_id=i32(1), client_id="chaos"
    )  # fmt: skip
    entity_writer(RequestHeader)(out, header)
    entity_writer(request.DescribeQuorumRequest)(out, asked)
    with socket.create_connection((host, int(port)), _CALL_S) as stream:
        stream.sendall(_LENGTH.pack(len(out.getvalue())) + out.getvalue())
        (length,) = _LENGTH.unpack(_exactly(stream, _LENGTH.size))
        if not 0 < length < _ANSWER_BYTES_MAX:
            raise ConnectionError(f"{address} answers {length} bytes")
        frame = _exactly(stream, length)
    answer_type = response.DescribeQuorumResponse
    _, used = entity_reader(answer_type.__header_schema__)(frame, 0)
    answer, _ = entity_reader(answer_type)(frame, used)
    partition = answer.topics[0].partitions[0]
    if partition.error_code.value:
        return None
    ends = {int(each.replica_id): int(each.log_end_offset) for each in partition.current_voters}
    return Quorum(
        int(partition.leader_id), frozenset(ends), max(ends.values()) - min(ends.values())
    )


def _exactly(stream: socket.socket, count: int) -> bytes:
    parts = b""
    while len(parts) < count:
        more = stream.recv(count - len(parts))
        if not more:
            raise ConnectionError("the node ended the connection")
        parts += more
    return parts
