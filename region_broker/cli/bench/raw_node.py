"""One node asked over a raw socket: Metadata of all topics, and a write tried at one node after the other.

Between the clock and the node is no client library, which would keep its own pause after each refusal.

Not here: what is measured with it (`size`), many connections at once (`requests`).
"""

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final, Self

from region_broker.cli.bench.figures import BenchFailed
from region_broker.cli.bench.stage import TIMEOUT_S
from region_broker.cli.kafka_connection import LoginFailed, opened
from region_broker.wire.codec.bounded import write_uvarint

CLIENT_ID: Final = b"tidemark-bench"
_AGAIN_S: Final = 0.002
_SIZE: Final = struct.Struct(">i")
_ERROR: Final = struct.Struct(">h")
_METADATA: Final = 3, 9
_PRODUCE: Final = 0, 9
"""Metadata v9 and Produce v9 (flexible, topics by name): brokers since Kafka 2.4 speak them."""
_ROW_BYTES: Final = 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1
"""Of a partition in an answer without errors: number, error, three offsets and times, no record errors, no text, no tags."""


def _frame(api: tuple[int, int], body: bytes) -> bytes:
    head = struct.pack(">hhih", *api, 0, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return _SIZE.pack(len(head) + len(body)) + head + body


def metadata_of_all() -> bytes:
    """Return the request for all topics, with its length."""
    return _frame(_METADATA, b"\0" + b"\0\0\0" + b"\0")


def produce_to(places: Mapping[str, Sequence[int]], batch: bytes) -> bytes:
    """Return the request that appends `batch` to each partition, with its length; acks=all."""
    rows = [b"\0", struct.pack(">hi", -1, int(TIMEOUT_S * 1000)), write_uvarint(len(places) + 1)]
    for topic, partitions in places.items():
        rows += [write_uvarint(len(topic.encode()) + 1), topic.encode()]
        rows.append(write_uvarint(len(partitions) + 1))
        for partition in partitions:
            rows += [struct.pack(">i", partition), write_uvarint(len(batch) + 1), batch, b"\0"]
        rows.append(b"\0")
    return _frame(_PRODUCE, b"".join((*rows, b"\0")))


def refusal_in(answer: bytes, places: Mapping[str, Sequence[int]]) -> int:
    """Return Kafka's error of the first partition that was refused in the answer to `produce_to`, 0 for none.

    `answer` begins behind its length.
    """
    at = 4 + 1 + len(write_uvarint(len(places) + 1))
    for topic, partitions in places.items():
        name_bytes = len(topic.encode())
        at += len(write_uvarint(name_bytes + 1)) + name_bytes
        at += len(write_uvarint(len(partitions) + 1))
        for _ in partitions:
            (error,) = _ERROR.unpack_from(answer, at + 4)
            if error:
                return int(error)
            at += _ROW_BYTES
        at += 1
    return 0


class RawNode:
    """A context manager around one connection, with one request under way at a time."""

    def __init__(self, address: str, timeout_s: float = TIMEOUT_S) -> None:
        """Connect to `host:port`; raises OSError."""
        host, _, port = address.rpartition(":")
        try:
            self._stream = opened(host, int(port), timeout_s)
        except LoginFailed as error:
            raise ConnectionError(str(error)) from error
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Close the connection."""
        self._stream.close()

    def ask(self, request: bytes) -> bytes:
        """Return the answer, from behind its length on; raises OSError."""
        self._stream.sendall(request)
        (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
        return self._exactly(size)

    def _exactly(self, size_bytes: int) -> bytes:
        found = bytearray()
        while len(found) < size_bytes:
            piece = self._stream.recv(size_bytes - len(found))
            if not piece:
                raise ConnectionError("the node closed the connection")
            found += piece
        return bytes(found)


def ask_ms(address: str, request: bytes, times: int) -> list[float]:
    """Return how long each of some requests on one connection took, in ms. Raises `BenchFailed`."""
    took_ms = []
    try:
        with RawNode(address) as node:
            for _ in range(times):
                began_s = time.perf_counter()
                node.ask(request)
                took_ms.append(1000 * (time.perf_counter() - began_s))
    except OSError as error:
        raise BenchFailed(f"a connection to {address} broke: {error}") from error
    return took_ms


def until_acknowledged(
    addresses: Sequence[str], places: Mapping[str, Sequence[int]], batch: bytes, within_s: float
) -> str:
    """Try node after node until one has acknowledged the batch in each partition, and return its address.

    An error is an answer, after which the next node is asked. Raises `BenchFailed` after `within_s`.
    """
    request = produce_to(places, batch)
    deadline_s = time.monotonic() + within_s
    last = "nobody answered"
    while time.monotonic() < deadline_s:
        for address in addresses:
            with suppress(OSError), RawNode(address) as node:
                error = refusal_in(node.ask(request), places)
                if not error:
                    return address
                last = f"{address} refused with Kafka's error {error}"
        time.sleep(_AGAIN_S)
    raise BenchFailed(f"no write was acknowledged within {within_s:.0f} s: {last}")
