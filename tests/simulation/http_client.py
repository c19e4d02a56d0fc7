"""The least that asks over HTTP/1.1 on the simulated network: one GET on a connection of its own.

Not here: what an answer must be (`swarm.workloads.monitor`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from region_broker.ports.network import READ_AHEAD_BYTES, ByteStream
from tests.simulation.network import SiteNetwork

HEAD_END: Final = b"\r\n\r\n"


class BrokenAnswer(OSError):
    """The connection ended within an answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """Return the body's JSON; raises ValueError."""
        return orjson.loads(self.body)


async def get(network: SiteNetwork, port: int, path: str) -> Answer:
    """Return what `GET path` is answered; raises OSError."""
    stream = await network.connect("127.0.0.1", port)
    try:
        stream.write(
            f"GET {path} HTTP/1.1\r\nHost: node:{port}\r\nConnection: close\r\n\r\n".encode()
        )
        return await _read(stream)
    finally:
        stream.close()


async def _read(stream: ByteStream) -> Answer:
    data = b""
    while HEAD_END not in data:
        data += await _more(stream)
    head, _, body = data.partition(HEAD_END)
    first, *lines = head.decode().split("\r\n")
    pairs = [line.split(": ", 1) for line in lines]
    headers = {name.lower(): value for name, value in pairs}
    length = int(headers["content-length"])
    while len(body) < length:
        body += await _more(stream)
    assert len(body) == length, "an answer is as long as it says"
    return Answer(int(first.split(" ")[1]), headers, body)


async def _more(stream: ByteStream) -> bytes:
    chunk = await stream.read(READ_AHEAD_BYTES)
    if not chunk:
        raise BrokenAnswer("the connection ended before the answer did")
    return chunk
