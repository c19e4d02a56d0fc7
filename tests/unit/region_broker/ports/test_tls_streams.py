"""TLS on real sockets, on both event loops: who gets in, who does not and why, and that neither harms anybody else."""

import asyncio
import errno
import gc
import logging
import os
import random
import resource
import socket
import ssl
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from region_broker.ports.handshakes import CLOSE_TIMEOUT_S, TIMEOUT_S, HandshakeLimits
from region_broker.ports.network import ByteStream, FailedHandshake, Listener
from region_broker.ports.system import tls_accept
from region_broker.ports.system.network import AsyncioNetwork, AsyncioStream, SecuredStream
from region_broker.ports.system.sealing_turns import in_pieces
from region_broker.security.tls import ClientTls, ServerTls
from region_broker.security.tls_contents import TlsFiles
from tests.fixtures.certificates import (
    NOW,
    authority,
    crl_of,
    node_certificate,
    put,
    user_certificate,
)
from tests.fixtures.waiting import until

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
LEFT = {"refused_by_peer", "gone"}
"""A client that does not accept the certificate says so, or only leaves, as that of asyncio does."""
LARGE = bytes(range(256)) * 12_000


@dataclass
class Echo:
    """A listener that sends back what it is sent, and notes whom it saw."""

    listener: Listener
    failed: list[FailedHandshake]
    seen: list[bytes | None]

    async def say(self, tls: ClientTls | None, said: bytes = b"hello") -> bytes:
        """Return what comes back; OSError, or less, where the connection does not stand."""
        stream = await AsyncioNetwork().connect("127.0.0.1", self.listener.port, tls=tls)
        try:
            stream.write(said[:3], said[3:])
            back = bytearray()
            while len(back) < len(said) and (data := await stream.read(1 << 20)):
                back += data
            return bytes(back)
        finally:
            stream.close()
            await stream.wait_closed()

    async def is_refused(self, tls: ClientTls | None) -> str:
        """Return why the listener says that it refused a connection."""
        count = len(self.failed)
        with suppress(OSError):
            assert await self.say(tls) == b""
        await until(lambda: len(self.failed) > count)
        return self.failed[-1].reason


async def echoing(tls: ServerTls, bounds: HandshakeLimits = HandshakeLimits()) -> Echo:  # noqa: B008
    failed: list[FailedHandshake] = []
    seen: list[bytes | None] = []

    async def echo(stream: ByteStream) -> None:
        seen.append(stream.certificate)
        while data := await stream.read(1 << 20):
            stream.write(data)
            await stream.drain()
        stream.close()

    network = AsyncioNetwork(bounds)
    listener = await network.listen("127.0.0.1", 0, echo, tls=tls, on_failed=failed.append)
    return Echo(listener, failed, seen)


def on_both_loops(test: Callable[[Path], Awaitable[None]]) -> Callable[..., None]:
    def run(tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
        complaints: list[object] = []
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.get_loop().set_exception_handler(lambda _loop, found: complaints.append(found))
            runner.run(test(tmp_path))  # type: ignore[arg-type]
        assert not complaints, "a peer's failure is none of the loop's"

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])(run)


@on_both_loops
async def test_INV_PN6_who_is_let_in_and_who_is_not(folder: Path) -> None:
    revoked = user_certificate("mallory")
    server = put(folder / "s", node_certificate(), crl=crl_of(revoked))
    echo = await echoing(ServerTls(server, "required"))
    alice = user_certificate()
    good = ClientTls(put(folder / "c", alice))
    assert await echo.say(good, LARGE) == LARGE
    assert echo.seen == [alice.public_bytes(Encoding.DER)]
    other = authority("another CA")
    past = user_certificate(now=NOW - timedelta(days=400))
    strangers = {
        "revoked": put(folder / "r", revoked),
        "expired": put(folder / "e", past),
        "no_certificate": put(folder / "n", None),
        "unknown_ca": put(folder / "o", user_certificate(by=other)),
    }
    for reason, files in strangers.items():
        assert await echo.is_refused(ClientTls(files)) == reason
    distrusting = ClientTls(put(folder / "d", alice, trusted=[other]))
    assert await echo.is_refused(distrusting) in LEFT
    for plain in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x13\0\x12\0\x03\0\0\0\1\0\4test\0\0\0\0"):
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
        writer.write(plain)
        assert await reader.read() == b""
        writer.close()
        await until(lambda: echo.failed[-1].reason == "no_tls")
        echo.failed.append(FailedHandshake("", "", ""))
    assert len(echo.seen) == 1, "nobody else was handed over"
    assert await echo.say(good) == b"hello"
    echo.listener.close()
    await echo.listener.wait_closed()


@on_both_loops
async def test_INV_PN6_half_open_handshakes_keep_nobody_else_out_and_take_bounded_room(
    folder: Path,
) -> None:
    bounds = HandshakeLimits(per_address=20, in_all=50, patience_s=0.2, timeout_s=0.5)
    echo = await echoing(ServerTls(put(folder / "s", node_certificate())), bounds)
    good = ClientTls(put(folder / "c", None))
    silent: list[socket.socket] = []
    try:
        for _ in range(300):
            each = socket.socket()
            each.bind(("127.0.0.2", 0))
            each.setblocking(False)
            each.connect_ex(("127.0.0.1", echo.listener.port))
            silent.append(each)
        await until(lambda: len(echo.failed) >= 280)
        assert {failed.reason for failed in echo.failed} == {"too_many"}
        assert await echo.say(good) == b"hello", "another address"
        await until(lambda: sum(failed.reason == "too_slow" for failed in echo.failed) == 20)
        assert len(echo.failed) == 300
        assert await echo.say(good) == b"hello"
    finally:
        for each in silent:
            each.close()
    echo.listener.close()
    await echo.listener.wait_closed()


@given(
    sizes=st.lists(st.integers(0, 50), max_size=8),
    piece_bytes=st.integers(1, 40),
    drawn=st.randoms(use_true_random=False),
)
def test_what_is_written_goes_in_pieces_of_one_size(
    sizes: list[int], piece_bytes: int, drawn: random.Random
) -> None:
    buffers = [drawn.randbytes(size) for size in sizes]
    pieces = [bytes(piece) for piece in in_pieces(buffers, piece_bytes)]
    assert b"".join(pieces) == b"".join(buffers)
    assert all(len(piece) == piece_bytes for piece in pieces[:-1])
    assert all(0 < len(piece) <= piece_bytes for piece in pieces[-1:])


def told_by_alert(port: int, files: TlsFiles) -> str:
    """Return what OpenSSL hears from the listener when it shows a certificate, here without an event loop."""
    context = ssl.create_default_context(cafile=files.ca)
    context.load_cert_chain(files.certificate, files.key)
    try:
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            secured.sendall(b"as clients do that take the handshake for done (TLS 1.3)")
            return f"no alert, but {secured.recv(1)!r}"
    except OSError as error:
        return str(getattr(error, "reason", error))


@on_both_loops
async def test_INV_PTA1_who_is_refused_is_sent_the_alert_that_says_why(folder: Path) -> None:
    """RFC 8446, 6.2: certificate_expired (45), certificate_revoked (44), unknown_ca (48)."""
    revoked = user_certificate("mallory")
    server = put(folder / "s", node_certificate(), crl=crl_of(revoked))
    echo = await echoing(ServerTls(server, "required"))
    other = authority("another CA")
    for certificate, alert in (
        (user_certificate(now=NOW - timedelta(days=400)), "SSLV3_ALERT_CERTIFICATE_EXPIRED"),
        (revoked, "SSLV3_ALERT_CERTIFICATE_REVOKED"),
        (user_certificate(by=other), "TLSV1_ALERT_UNKNOWN_CA"),
    ):
        files = put(folder / alert, certificate)
        assert await asyncio.to_thread(told_by_alert, echo.listener.port, files) == alert
    echo.listener.close()


@on_both_loops
async def test_INV_PHS2_for_whom_no_descriptor_is_left_is_not_said_to_have_gone(
    folder: Path,
) -> None:
    echo = await echoing(ServerTls(put(folder / "s", node_certificate())))
    with ExitStack() as held, socket.create_connection(("127.0.0.1", echo.listener.port)):
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        last = (
            socket.socket()
        )  # the highest one, or a gap below it: the gaps are filled, and this is given back
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, limits[1]))
        with suppress(OSError):
            while True:
                held.enter_context(socket.socket())
        last.close()  # to accept by
        await until(lambda: bool(echo.failed))
    [failed] = echo.failed
    assert (failed.reason, os.strerror(errno.EMFILE) in failed.text) == ("other", True)
    echo.listener.close()


@contextmanager
def said_of_tls() -> Iterator[list[str]]:
    """Hand out what is logged of handshakes from now on."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tidemark.tls")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


@contextmanager
def without_descriptors() -> Iterator[None]:
    """Leave this process no descriptor: not one can be opened."""
    with ExitStack() as held:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
        last = held.enter_context(socket.socket())
        resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1, limits[1]))
        with suppress(OSError):
            while True:
                held.enter_context(socket.socket())
        yield


@on_both_loops
async def test_who_comes_while_no_descriptor_is_left_is_let_in_when_there_is_one(
    folder: Path,
) -> None:
    files = put(folder / "s", node_certificate())
    echo = await echoing(ServerTls(files))
    with said_of_tls() as told, socket.socket() as waiting:
        with without_descriptors():
            waiting.connect(("127.0.0.1", echo.listener.port))
            await until(lambda: bool(told))
            turns = 50
            for _ in range(turns):
                await asyncio.sleep(0)
            assert len(told) < turns / 2, "it is tried again after a while, not in each turn"
        assert os.strerror(errno.EMFILE) in told[0]
        context = ssl.create_default_context(cafile=files.ca)

        def say() -> bytes:
            waiting.settimeout(20)  # where nobody accepts, this fails, and does not hang
            with context.wrap_socket(waiting, server_hostname="localhost") as secured:
                secured.sendall(b"hello")
                return secured.recv(5)

        assert await asyncio.to_thread(say) == b"hello"
    assert not echo.failed
    echo.listener.close()


@on_both_loops
async def test_a_listener_that_is_closed_while_no_descriptor_is_left_accepts_no_more(
    folder: Path,
) -> None:
    echo = await echoing(ServerTls(put(folder / "s", node_certificate())))
    with said_of_tls() as told, socket.socket() as waiting:
        with without_descriptors():
            waiting.connect(("127.0.0.1", echo.listener.port))
            await until(lambda: bool(told))
            echo.listener.close()
        tried_again = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * tls_accept._ACCEPT_AGAIN_S, tried_again.set)
        await tried_again.wait()
    assert not echo.seen


def left_of_tls() -> int:
    return sum(type(each).__name__ in ("SSLProtocol", "SecuredStream") for each in gc.get_objects())


def say_from_outside(port: int, ca: str | None) -> None:
    """Say hello from a thread, so that all that is left in a loop is the listener's."""
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(("127.0.0.1", port)) as opened,
        suppress(ssl.SSLError),
        context.wrap_socket(opened, server_hostname="localhost") as secured,
    ):
        secured.sendall(b"hello")
        assert secured.recv(5)


@on_both_loops
async def test_INV_PN7_what_has_ended_is_freed_without_the_cycle_collector(folder: Path) -> None:
    """A node's collector looks at old objects after millions of new ones: 22 KB a connection were 130 MB in a minute of wrong logins."""
    files = put(folder / "s", node_certificate())
    echo = await echoing(ServerTls(files), HandshakeLimits(timeout_s=0.2))
    # asyncio's own TLS, which nodes have without uvloop, keeps the frames of a handshake that failed.
    has_uvloop = isinstance(asyncio.get_running_loop(), uvloop.Loop)
    gc.collect()
    before = left_of_tls()
    gc.disable()
    try:
        for _ in range(3):
            await asyncio.to_thread(say_from_outside, echo.listener.port, files.ca)
            if has_uvloop:
                await asyncio.to_thread(say_from_outside, echo.listener.port, None)
        if has_uvloop:
            with socket.create_connection(("127.0.0.1", echo.listener.port)):
                await until(lambda: len(echo.failed) == 4)
            assert {failed.reason for failed in echo.failed} == {"refused_by_peer", "too_slow"}
        await until(lambda: left_of_tls() == before)
    finally:
        gc.enable()
    assert len(echo.seen) == 3
    echo.listener.close()
    await echo.listener.wait_closed()


def reset_from_outside(port: int, ca: str | None) -> None:
    """Say hello from a thread, in TLS with a `ca`, and reset the connection."""
    with socket.create_connection(("127.0.0.1", port)) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if ca is None:
            opened.sendall(b"hello")
            assert opened.recv(5)
            return
        context = ssl.create_default_context(cafile=ca)
        with context.wrap_socket(opened, server_hostname="localhost") as secured:
            secured.sendall(b"hello")
            assert secured.recv(5)


@pytest.mark.parametrize("is_secured", [False, True])
@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_INV_PN7_what_a_peer_resets_is_freed_without_the_cycle_collector(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop], is_secured: bool
) -> None:
    """The stream kept the error that it raised, whose traceback kept the stream, and who read from it: all of a connection."""
    files = put(tmp_path, node_certificate())

    def streams() -> int:
        return sum(isinstance(each, AsyncioStream | SecuredStream) for each in gc.get_objects())

    async def say_and_count() -> None:
        errors: list[str] = []

        async def echo(stream: ByteStream) -> None:
            try:
                while data := await stream.read(1 << 20):
                    stream.write(data)
                await stream.drain()
            except OSError as error:
                errors.append(type(error).__name__)
            finally:
                stream.abort()

        tls = ServerTls(files) if is_secured else None
        listener = await AsyncioNetwork().listen("127.0.0.1", 0, echo, tls=tls)
        gc.collect()
        before = streams()
        gc.disable()
        try:
            for _ in range(3):
                ca = files.ca if is_secured else None
                await asyncio.to_thread(reset_from_outside, listener.port, ca)
            await until(lambda: streams() == before, looks=100)
        finally:
            gc.enable()
        assert is_secured or errors == ["ConnectionResetError"] * 3
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(say_and_count())


@pytest.mark.parametrize("new_loop", LOOPS, ids=["asyncio", "uvloop"])
def test_INV_PN7_who_writes_to_a_connection_that_was_reset_is_freed_with_it(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """1. A client sends its last message, and resets. 2. The answer is written before the loop has heard of that. asyncio raises in the write."""

    peers: list[threading.Thread] = []

    def streams() -> int:
        return sum(isinstance(each, AsyncioStream) for each in gc.get_objects())

    async def answered_too_late(stream: ByteStream) -> None:
        said = await stream.read(1 << 20)
        peers[-1].join()  # the loop stands still meanwhile
        stream.write(said)
        with suppress(OSError):
            while await stream.read(1 << 20):
                pass
        stream.abort()

    async def write_and_count() -> None:
        listener = await AsyncioNetwork().listen("127.0.0.1", 0, answered_too_late)
        gc.collect()
        before = streams()
        gc.disable()
        try:
            for _ in range(3):
                peers.append(threading.Thread(target=say_and_reset, args=(listener.port,)))
                peers[-1].start()
                await until(lambda: not peers[-1].is_alive())
            await until(lambda: streams() == before, looks=100)
        finally:
            gc.enable()
        listener.close()
        await listener.wait_closed()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(write_and_count())


def say_and_reset(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.sendall(b"hello")


@on_both_loops
async def test_INV_PN6_new_files_count_for_new_connections_and_old_ones_go_on(folder: Path) -> None:
    server = ServerTls(put(folder / "s", node_certificate()))
    echo = await echoing(server)
    old_ca = ClientTls(put(folder / "old", None))
    stays = await AsyncioNetwork().connect("127.0.0.1", echo.listener.port, tls=old_ca)
    other = authority("another CA")
    _ = put(folder / "s", node_certificate(by=other))
    server.look()
    assert server.look(), "a change counts at the second look (INV-TLS2)"
    assert await echo.say(ClientTls(put(folder / "new", None, trusted=[other]))) == b"hello"
    assert await echo.is_refused(old_ca) in LEFT
    stays.write(b"still here")
    assert await stays.read(100) == b"still here"
    stays.close()
    echo.listener.close()
    await echo.listener.wait_closed()


@on_both_loops
async def test_a_listener_that_closes_ends_handshakes_under_way_and_frees_its_port(
    folder: Path,
) -> None:
    echo = await echoing(ServerTls(put(folder / "s", node_certificate())))
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.listener.port)
    await asyncio.sleep(0.05)
    echo.listener.close()
    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        async with asyncio.timeout(TIMEOUT_S / 2):
            await reader.readexactly(1)
    writer.close()
    await echo.listener.wait_closed()
    with socket.create_server(("127.0.0.1", echo.listener.port)):
        pass


@on_both_loops
async def test_whoever_reads_is_told_of_our_close_though_the_other_side_says_no_goodbye(
    folder: Path,
) -> None:
    """1. A node stops, and closes its connections. 2. TLS waits for the other side's goodbye. 3. What is served there must not go on
    meanwhile: it would meet what has ended."""
    loop, took_s, done = asyncio.get_running_loop(), [0.0], asyncio.Event()

    async def close_first(stream: ByteStream) -> None:
        stream.close()
        begun_s = loop.time()
        assert await stream.read(1) == b""
        took_s.append(loop.time() - begun_s)
        stream.abort()
        done.set()

    server = ServerTls(put(folder / "s", node_certificate()))
    listener = await AsyncioNetwork().listen("127.0.0.1", 0, close_first, tls=server)
    context = ClientTls(put(folder / "c", None)).context()

    def connect() -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", listener.port))
        return context.wrap_socket(plain, server_hostname="localhost")

    silent = await asyncio.to_thread(connect)
    await done.wait()
    silent.close()
    assert max(took_s) < CLOSE_TIMEOUT_S / 2
    listener.close()
    await listener.wait_closed()


@on_both_loops
async def test_INV_PHS1_a_place_is_given_back_and_who_gives_way_is_cut_off(folder: Path) -> None:
    server, good = (
        ServerTls(put(folder / "s", node_certificate())),
        ClientTls(put(folder / "c", None)),
    )
    one = await echoing(server, HandshakeLimits(per_address=1, patience_s=1_000, timeout_s=1_000))
    for _ in range(3):
        assert await one.say(good) == b"hello", "the one before is done"
    one.listener.close()
    await one.listener.wait_closed()
    hasty = await echoing(server, HandshakeLimits(per_address=1, patience_s=0, timeout_s=1_000))
    reader, writer = await asyncio.open_connection("127.0.0.1", hasty.listener.port)
    await asyncio.sleep(0.05)
    assert await hasty.say(good) == b"hello"
    async with asyncio.timeout(TIMEOUT_S / 2):
        assert await reader.read() == b""
    assert [failed.reason for failed in hasty.failed] == ["too_many"]
    writer.close()
    hasty.listener.close()
    await hasty.listener.wait_closed()
