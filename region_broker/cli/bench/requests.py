"""Small produce requests over raw sockets: each connection one request at a time, many connections at once.

No client library is between the clock and the broker, so what is seen is what a request costs, not what a client
batches. One thread serves all sockets.

A request counts once its answer said that the batch is stored (acks=all); any other answer fails the run. Every wait is
bounded.
"""

import select
import socket
import ssl
import struct
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

from region_broker.cli.bench.figures import BenchFailed, Plan, Run
from region_broker.cli.bench.stage import TIMEOUT_S, Stage
from region_broker.records.batches import Record, build_batch
from region_broker.wire.codec.bounded import write_uvarint

_VERSION: Final = 9
"""Produce v9 (flexible, topics by name): brokers since Kafka 2.4 speak it."""
_CLIENT_ID: Final = b"tidemark-bench"
_ANSWER_BYTES_MAX: Final = 64 * 1024
_CORRELATION_ID: Final = struct.Struct(">i")
_ERROR: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one connection sends again and again, and where its answer tells the error."""

    request: bytes
    error_at: int


def exchange(topic: str, partition: int, batch: bytes, correlation_id: int) -> Exchange:
    """Return the request that appends `batch`, with its length prefix."""
    name = topic.encode()
    body = b"".join(
        (
            struct.pack(">hhih", 0, _VERSION, correlation_id, len(_CLIENT_ID)),
            _CLIENT_ID,
            b"\0",  # no tags
            b"\0",  # no transactional id
            struct.pack(">hi", -1, int(TIMEOUT_S * 1000)),
            b"\2",  # one topic
            write_uvarint(len(name) + 1), name,
            b"\2",  # one partition
            struct.pack(">i", partition),
            write_uvarint(len(batch) + 1), batch,
            b"\0\0\0",  # no tags: partition, topic, body
        )
    )  # fmt: skip
    # Behind length, correlation id and tags: one topic, its name, one partition, its number, the error.
    error_at = 4 + 4 + 1 + 1 + len(write_uvarint(len(name) + 1)) + len(name) + 1 + 4
    return Exchange(struct.pack(">i", len(body)) + body, error_at)


def requests_run(stage: Stage, plan: Plan, topic: str, connection_count: int) -> Run:
    """Keep one request under way on each connection. Raises `BenchFailed`."""
    batch = build_batch([Record(None, b"x" * plan.size_bytes)])
    sockets: dict[int, socket.socket] = {}
    exchanges: dict[int, Exchange] = {}
    stack = ExitStack()
    try:
        for number in range(connection_count):
            opened = stack.enter_context(_connected(stage))
            sockets[opened.fileno()] = opened
            partition = number % plan.partition_count
            exchanges[opened.fileno()] = exchange(topic, partition, batch, number)
        load = stack.enter_context(closing(_Load(sockets, exchanges)))
        load.run(plan.warm_up_s)
        before = stage.cost()
        started_s = time.monotonic()
        latencies_ms = load.run(plan.seconds)
        return Run(
            count=len(latencies_ms),
            seconds=time.monotonic() - started_s,
            latencies_ms=latencies_ms,
            cost=stage.cost_since(before),
        )
    except OSError as error:
        raise BenchFailed(f"a connection to {stage.bootstrap} broke: {error}") from error
    finally:
        stack.close()


def _connected(stage: Stage) -> socket.socket:
    """Return a connection, with TLS where the broker is met with it. Raises `BenchFailed`, `OSError`."""
    told = stage.client()
    protocol = told.get("security.protocol", "PLAINTEXT")
    if protocol.startswith("SASL"):
        raise BenchFailed(
            "the load requests does not log in: leave it out, or measure a port that asks for no login"
        )
    host, _, port = stage.bootstrap.split(",")[0].rpartition(":")
    opened = socket.create_connection((host, int(port)), TIMEOUT_S)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if protocol == "PLAINTEXT":
        return opened
    context = ssl.create_default_context(cafile=told.get("ssl.ca.location"))
    if "ssl.certificate.location" in told:
        context.load_cert_chain(told["ssl.certificate.location"], told["ssl.key.location"])
    with ExitStack() as until_wrapped:
        until_wrapped.enter_context(closing(opened))
        wrapped = context.wrap_socket(opened, server_hostname=host)
        until_wrapped.pop_all()
        return wrapped


class _Load:
    """Drives the sockets; between two runs nothing is under way."""

    def __init__(self, sockets: dict[int, socket.socket], exchanges: dict[int, Exchange]) -> None:
        self._sockets = sockets
        self._exchanges = exchanges
        self._poll = select.epoll()
        for number in sockets:
            self._poll.register(number, select.EPOLLIN)

    def close(self) -> None:
        """End polling; the sockets are the caller's."""
        self._poll.close()

    def run(self, seconds: float) -> list[float]:
        """Return how long each request took, in ms."""
        clock, sockets, exchanges = time.perf_counter, self._sockets, self._exchanges
        sent_s = {}
        for number, opened in sockets.items():
            sent_s[number] = clock()
            opened.sendall(exchanges[number].request)
        under_way = len(sockets)
        latencies_ms: list[float] = []
        deadline_s = clock() + seconds
        while under_way:
            ready = self._poll.poll(TIMEOUT_S)
            if not ready:
                raise BenchFailed(
                    f"{under_way} requests were not answered within {TIMEOUT_S:.0f} s"
                )
            for number, _ in ready:
                opened, each = sockets[number], exchanges[number]
                self._check(opened, each, opened.recv(_ANSWER_BYTES_MAX))
                now_s = clock()
                latencies_ms.append((now_s - sent_s[number]) * 1000)
                if now_s < deadline_s:
                    sent_s[number] = now_s
                    opened.sendall(each.request)
                else:
                    under_way -= 1
        return latencies_ms

    @staticmethod
    def _check(opened: socket.socket, each: Exchange, answer: bytes) -> None:
        while len(answer) < 4 or len(answer) < 4 + _CORRELATION_ID.unpack_from(answer)[0]:
            more = opened.recv(_ANSWER_BYTES_MAX)
            if not more:
                raise BenchFailed("the broker closed a connection: its log says why")
            answer += more
        (error,) = _ERROR.unpack_from(answer, each.error_at)
        if error:
            raise BenchFailed(f"a record was refused with Kafka's error {error}")
