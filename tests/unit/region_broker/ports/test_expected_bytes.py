"""A stream that expects many bytes is told of many at once, on both event loops, with TLS and without."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import Mock

import pytest
import uvloop

from region_broker.ports.network import ByteStream
from region_broker.ports.system.network import (
    TLS_HELD_BYTES,
    WAKE_BYTES_MAX,
    WAKE_BYTES_MIN,
    AsyncioNetwork,
    AsyncioStream,
)
from region_broker.security.tls import ClientTls, ServerTls
from tests.fixtures.certificates import node_certificate, put, user_certificate
from tests.fixtures.waiting import until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
PIECE = bytes(range(256)) * 4
PIECES = 1024


@dataclass
class Taken:
    """What a listener was handed of `expected` bytes, chunk by chunk, and whether the stream went on behind them."""

    expected: int
    chunks: list[bytes] = field(default_factory=list)
    ended: bool = False

    @property
    def count(self) -> int:
        return sum(map(len, self.chunks))

    async def take(self, stream: ByteStream) -> None:
        def consume(chunk: bytes) -> bool:
            self.chunks.append(chunk)
            stream.expect(self.expected - self.count)
            return True

        self.ended = not await stream.feed(consume)
        stream.close()


async def sent(folder: Path, *, secured: bool, expected: int, pieces: int) -> Taken:
    """Send `pieces` one by one to a listener that expects so many bytes, then one byte, and close."""
    taken = Taken(expected)
    server = ServerTls(put(folder / "s", node_certificate()), "required") if secured else None
    client = ClientTls(put(folder / "c", user_certificate())) if secured else None
    listener = await AsyncioNetwork().listen("127.0.0.1", 0, taken.take, tls=server)
    stream = await AsyncioNetwork().connect("127.0.0.1", listener.port, tls=client)
    for _ in range(pieces):
        stream.write(PIECE)
        await stream.drain()
        await asyncio.sleep(
            0
        )  # each piece is a call of the system, and with TLS a record, of its own
    if taken.expected <= pieces * len(PIECE):
        await until(lambda: taken.count == pieces * len(PIECE))
        stream.write(b"x")
        await until(lambda: taken.count == pieces * len(PIECE) + 1)
    stream.close()
    await stream.wait_closed()
    await until(lambda: taken.ended)
    listener.close()
    await listener.wait_closed()
    return taken


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_INV_PN8_who_expects_much_is_not_told_of_every_few_bytes(
    tmp_path: Path, secured: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    expected = PIECES * len(PIECE)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        taken = runner.run(sent(tmp_path, secured=secured, expected=expected, pieces=PIECES))
    assert b"".join(taken.chunks) == PIECE * PIECES + b"x"
    missing = expected
    for number, chunk in enumerate(taken.chunks):
        asked = min(missing - TLS_HELD_BYTES, WAKE_BYTES_MAX)
        if number and asked >= WAKE_BYTES_MIN:
            assert len(chunk) >= asked - TLS_HELD_BYTES, (number, len(chunk), asked)
        missing -= len(chunk)
    assert len(taken.chunks) < 60, "most of it came in large chunks"


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("secured", [False, True], ids=["plain", "tls"])
def test_INV_PN8_a_stream_that_ends_before_what_was_expected_is_told_whole(
    tmp_path: Path, secured: bool, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        taken = runner.run(sent(tmp_path, secured=secured, expected=1 << 30, pieces=100))
    assert b"".join(taken.chunks) == PIECE * 100


TLS_RECORD_BYTES = 5 + (1 << 14) + 256
"""What a record of TLS may have (RFC 8446, 5.2)."""


@pytest.mark.parametrize("count", [0, 1, 17_000, 40_000, 100_000, 140_000, 1 << 20, 1 << 30])
def test_INV_PN8_no_more_is_waited_for_than_is_still_to_come_on_the_socket(count: int) -> None:
    """Of what is expected, a record of TLS may have been taken from the socket already, but for its last byte."""
    stream, lowest = AsyncioStream(), [1]
    sock = Mock(setsockopt=lambda *given: lowest.append(given[-1]))
    stream.connection_made(Mock(get_extra_info={"socket": sock}.get))
    stream.expect(1 << 30)
    assert lowest[-1] == 128 * 1024, "told of 128 KiB at once, and of no more"
    stream.expect(count)
    assert 1 <= lowest[-1] <= max(1, count - TLS_RECORD_BYTES + 1)
