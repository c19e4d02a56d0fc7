"""A network in memory with sites, delays, cuts and deaths: the fourth port of a simulated node.

INV-SN2  a site that is dead, or cut off, answers nobody: refused at once, or (`silent`) never; where two sites are
         hushed, connections that stand stay, too, and nothing arrives on them
INV-SN4  a connection whose opener was `sever`ed from it is broken for that one at once; what it sent arrives all the same,
         in its time, then the end. So what it sends again, over another connection, may arrive before what it sent first:
         as near as a TCP network comes to doubling and reordering, since within a connection it does neither
INV-SN5  what is lost is sent again by TCP: here it is late, by seconds, and what follows on that connection waits for it;
         towards `late_sites` only: a client notes when it heard something, and is judged by that
Bytes between two sites arrive in the order written, in chunks of any size, or not at all from some moment on: a stream
that breaks loses what is still under way. `drain` pushes back once WRITE_HIGH_WATER_BYTES are unread on the other side.

Chance is handed in; time is the event loop's. Not here: what is sent.
"""

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextvars import copy_context
from functools import partial

from region_broker.ports.network import (
    READ_AHEAD_BYTES,
    WRITE_HIGH_WATER_BYTES,
    Admits,
    Buffer,
    ByteStream,
    Consume,
    Listener,
    OnConnection,
    OnFailedHandshake,
    TlsContexts,
    everybody,
    unheard,
)
from region_broker.ports.served_connections import ServedConnections
from tests.simulation.trace import Trace

LATE_S = (0.2, 3.0)


class SimulatedStream:
    """One end of a connection."""

    def __init__(self, fabric: "Fabric", site: str, peer_site: str) -> None:
        """Belong to `site`; `other` is set once both ends exist."""
        self.site, self.peer_site = site, peer_site
        self.opened_here = False
        self.other: SimulatedStream
        self._fabric = fabric
        self._arrived: deque[bytes] = deque()
        self._unread_bytes = 0
        self._eof = False
        self._error: OSError | None = None
        self._closed = False
        self._due_at = 0.0
        self._under_way: deque[Callable[[], None]] = deque()
        self._readable = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._gone = asyncio.Event()

    @property
    def certificate(self) -> bytes | None:
        """Return none: on simulated networks nobody speaks TLS."""
        return None

    @property
    def peer(self) -> str:
        """Return the other site's name."""
        return f"{self.peer_site}:0"

    @property
    def unread_bytes(self) -> int:
        """See `ByteStream`."""
        return sum(map(len, self._arrived))

    def expect(self, count: int) -> None:
        """See `ByteStream`: chunks come as they were sent here."""

    @property
    def has_room(self) -> bool:
        """See `ByteStream`."""
        return self._error is None and self._room.is_set()

    async def read(self, max_bytes: int) -> bytes:
        """See `ByteStream`."""
        while not self._arrived:
            if self._error is not None:
                raise self._error
            if self._eof or self._closed:
                return b""
            self._readable.clear()
            await self._readable.wait()
        chunk = self._arrived.popleft()
        if len(chunk) > max_bytes:
            self._arrived.appendleft(chunk[max_bytes:])
            chunk = chunk[:max_bytes]
        self._unread_bytes -= len(chunk)
        if self._unread_bytes < WRITE_HIGH_WATER_BYTES:
            self.other._room.set()
        return chunk

    async def feed(self, consume: Consume) -> bool:
        """See `ByteStream`."""
        while chunk := await self.read(READ_AHEAD_BYTES):
            if not consume(chunk):
                return True
        return False

    def write(self, *buffers: Buffer) -> None:
        """See `ByteStream`: the bytes travel in chunks, each a little later than the one before."""
        if self._closed or self._error is not None or self._fabric.hushed(self):
            return
        data = b"".join(buffers)
        self.other._unread_bytes += len(data)
        if self.other._unread_bytes >= WRITE_HIGH_WATER_BYTES:
            self._room.clear()
        for chunk in self._fabric.pieces(data):
            self._later(partial(self.other._arrive, chunk))

    def _later(self, deliver: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        self._due_at = max(self._due_at, loop.time() + self._fabric.delay_s(self.peer_site))
        self._under_way.append(deliver)
        loop.call_at(self._due_at, self._deliver_next)

    def _deliver_next(self) -> None:
        # In the order written: timers that are due together fire in any order.
        self._under_way.popleft()()

    def _arrive(self, chunk: bytes) -> None:
        trace = self._fabric.trace
        if trace is not None:
            trace.note(self.peer_site, self.site, len(chunk), zlib.crc32(chunk))
        if self._error is None and not self._closed:
            self._arrived.append(chunk)
            self._readable.set()

    def _end(self) -> None:
        self._eof = True
        self._readable.set()
        if self._closed:
            self._gone.set()

    async def drain(self) -> None:
        """See `ByteStream`."""
        if self._error is not None:
            raise self._error
        await self._room.wait()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """See `ByteStream`: the peer gets what was written, then the end."""
        if self._closed:
            return
        self._closed = True
        self._readable.set()
        if self._error is None and not self._fabric.hushed(self):
            self._later(self.other._end)
        if self._eof or self._error is not None or self.other._closed:
            self._gone.set()
            self.other._gone.set()
        self._later(self._gone.set)

    def abort(self) -> None:
        """See `ByteStream`."""
        self.break_off()

    def break_off(self) -> None:
        """Break the connection for both ends; what is under way is lost."""
        self._fail()
        self.other._fail()
        self._fabric.forget(self)

    def sever(self) -> None:
        """Break it for this end only: the other one gets what was sent, then a reset (INV-SN4)."""
        self._fail()
        self._fabric.forget(self)
        self._later(self.other._break)

    def _fail(self) -> None:
        self._arrived.clear()
        self._break()

    def _break(self) -> None:
        if self._error is None:
            self._error = ConnectionResetError(f"the connection to {self.peer} broke")
        self._readable.set()
        self._room.set()
        self._gone.set()

    async def wait_closed(self) -> None:
        """See `ByteStream`."""
        await self._gone.wait()


class SimulatedListener:
    """A `Listener`."""

    def __init__(self, fabric: "Fabric", site: str, place: tuple[str, int], on_connection: OnConnection) -> None:  # fmt: skip
        """Serve connections to `place`."""
        self.site = site
        self._fabric = fabric
        self._place = place
        self._served = ServedConnections(
            on_connection, lambda: self._fabric.unlisten(self._place, self)
        )
        self._context = copy_context()

    @property
    def host(self) -> str:
        """See `Listener`."""
        return self._place[0]

    @property
    def port(self) -> int:
        """See `Listener`."""
        return self._place[1]

    def accept(self, stream: ByteStream) -> None:
        """Serve a new connection."""
        # Not in the context of who connects: a paused site serves nobody.
        self._served.serve(stream, self._context.copy())

    def end(self) -> None:
        """End what serves its connections, as the death of its process does: an answer may be waited for for ever."""
        self._served.cancel()

    def close(self) -> None:
        """See `Listener`."""
        self._served.close()

    async def wait_closed(self) -> None:
        """See `Listener`."""
        await self._served.wait_closed()


class Fabric:
    """All sites and what is between them."""

    def __init__(self, chance: random.Random, *, delay_ms_max: float = 0.0) -> None:
        """Let bytes travel for up to `delay_ms_max` each way."""
        self._chance = chance
        self.delay_ms_max = delay_ms_max
        self.routed: type | None = None
        """What clients connect by where leaders are spread (`routed_connection`)."""
        self.leader_of: Callable[[str, int, int], int | None] | None = None
        """Tells clients the port of the node that leads a partition in the region of a port, where leaders are spread."""
        self.late_share = 0.0
        self.late_sites: frozenset[str] = frozenset()
        """Of what is sent to these, how much takes seconds (INV-SN5)."""
        self.trace: Trace | None = None
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        self._streams: dict[SimulatedStream, None] = {}  # in the order of their opening
        self._cuts: dict[frozenset[str], bool] = {}
        self._hushed: set[frozenset[str]] = set()
        self._muted: set[tuple[str, str]] = set()
        self._barred: set[tuple[str, str]] = set()
        self._lives: dict[str, int] = {}
        self._next_port = 20_000

    def site(self, name: str) -> "SiteNetwork":
        """Return the network as the present life of site `name` sees it."""
        return SiteNetwork(self, name, self._lives.setdefault(name, 0))

    def delay_s(self, to: str = "") -> float:
        """Draw how long bytes travel."""
        if to in self.late_sites and self._chance.random() < self.late_share:
            return self._chance.uniform(*LATE_S)
        return self._chance.uniform(0, self.delay_ms_max) / 1000 if self.delay_ms_max else 0.0

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """Yield `data` in one to three pieces."""
        while len(data) > 1 and self._chance.random() < 0.2:
            cut = self._chance.randrange(1, len(data))
            yield data[:cut]
            data = data[cut:]
        yield data

    def cut(self, a: str, b: str, *, silent: bool = False) -> None:
        """Break everything between two sites until `heal`; `silent`: new connections hang."""
        self._cuts[frozenset((a, b))] = silent
        self._break(lambda stream: {stream.site, stream.peer_site} == {a, b})

    def hush(self, a: str, b: str) -> None:
        """Let nothing more arrive between two sites, and nobody be told: as where one of them stands still."""
        self._cuts[frozenset((a, b))] = True
        self._hushed.add(frozenset((a, b)))

    def hushed(self, stream: SimulatedStream) -> bool:
        """Return whether nothing of it arrives."""
        if not self._muted and not self._hushed:
            return False
        way = (stream.site, stream.peer_site)
        return way in self._muted or frozenset(way) in self._hushed

    def mute(self, a: str, b: str) -> None:
        """Let nothing that `a` sends arrive at `b`, and nobody be told: connections stand, new ones hang."""
        self._muted.add((a, b))

    def unmute(self, a: str, b: str) -> None:
        """End that; connections between them have lost bytes, and break."""
        if (a, b) in self._muted:
            self._muted.discard((a, b))
            self.drop(a, b)

    def bar(self, a: str, b: str) -> None:
        """Let no connection from `a` reach `b`, and break those that are open; `b` still reaches `a`."""
        self._barred.add((a, b))
        self.drop(a, b)

    def unbar(self, a: str, b: str) -> None:
        """Let connections from `a` reach `b` again."""
        self._barred.discard((a, b))

    def heal(self, a: str, b: str) -> None:
        """Let two sites talk again, over new connections."""
        self._cuts.pop(frozenset((a, b)), None)
        if frozenset((a, b)) in self._hushed:
            self._hushed.discard(frozenset((a, b)))
            self.drop(a, b)

    def drop(self, a: str, b: str) -> None:
        """Break the connections between two sites; new ones can be made at once."""
        self._break(lambda stream: {stream.site, stream.peer_site} == {a, b})

    def reset(self, site: str) -> None:
        """Break all connections of a site; new ones can be made at once."""
        self._break(lambda stream: site in {stream.site, stream.peer_site})

    def leave(self, sites: Collection[str], who: Callable[[str], bool]) -> None:
        """Break what these clients opened to sites; they can connect again at once."""
        for stream in [
            each
            for each in self._streams
            if each.opened_here and each.peer_site in sites and who(each.site)
        ]:
            stream.break_off()

    def sever(self, site: str) -> None:
        """Break what others opened to a site, for them alone (INV-SN4)."""
        for stream in [s for s in self._streams if s.opened_here and s.peer_site == site]:
            stream.sever()

    def kill(self, site: str) -> None:
        """End a site's life: its ports and connections are gone, and its process can open no more."""
        self._lives[site] = self._lives.get(site, 0) + 1
        for place, listener in list(self._listeners.items()):
            if listener.site == site:
                del self._listeners[place]
                listener.end()
        self.reset(site)

    def _break(self, chosen: Callable[[SimulatedStream], bool]) -> None:
        for stream in [each for each in self._streams if chosen(each)]:
            stream.break_off()

    def forget(self, stream: SimulatedStream) -> None:
        """Drop both ends."""
        for end in (stream, stream.other):
            self._streams.pop(end, None)

    def alive(self, site: str, life: int) -> bool:
        """Return whether that life of the site goes on."""
        return self._lives.get(site, 0) == life

    def listen(self, site: str, place: tuple[str, int], on_connection: OnConnection) -> Listener:
        """Bind a place."""
        if place[1] == 0:
            self._next_port += 1
            place = (place[0], self._next_port)
        if place in self._listeners:
            raise OSError(98, "address in use")
        listener = SimulatedListener(self, site, place, on_connection)
        self._listeners[place] = listener
        return listener

    def unlisten(self, place: tuple[str, int], listener: SimulatedListener) -> None:
        """Free a place."""
        if self._listeners.get(place) is listener:
            del self._listeners[place]

    async def connect(self, site: str, place: tuple[str, int]) -> ByteStream:
        """Connect a site to a place."""
        await asyncio.sleep(self.delay_s())
        listener = self._listeners.get(place)
        between = frozenset((site, listener.site if listener is not None else ""))
        lost = listener is not None and {(site, listener.site), (listener.site, site)} & self._muted
        if self._cuts.get(between) or lost:
            await asyncio.Event().wait()  # nobody answers; the caller gives up
        if listener is None or between in self._cuts or (site, listener.site) in self._barred:
            raise ConnectionRefusedError(111, f"{place[0]}:{place[1]} cannot be reached")
        near = SimulatedStream(self, site, listener.site)
        far = SimulatedStream(self, listener.site, site)
        near.other, far.other = far, near
        near.opened_here = True
        self._streams |= {near: None, far: None}
        listener.accept(far)
        return near


class SiteNetwork:
    """`Network` of one life of one site."""

    def __init__(self, fabric: Fabric, site: str, life: int) -> None:
        """Use `Fabric.site`."""
        self._fabric, self._site, self._life = fabric, site, life

    async def listen(
        self, host: str, port: int, on_connection: OnConnection,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard, admits: Admits = everybody,
    ) -> Listener:  # fmt: skip
        """See `Network`."""
        assert tls is None, (
            f"nobody speaks TLS here, so {on_failed} hears nothing, and {admits} is not asked"
        )
        self._check()
        return self._fabric.listen(self._site, (host, port), on_connection)

    @property
    def routed(self) -> type | None:
        """Return what clients connect by, where leaders are spread."""
        return self._fabric.routed

    @property
    def leader_port(self) -> Callable[[str, int, int], int | None] | None:
        """Return what tells the port of a partition's leader, None where one node leads all."""
        return self._fabric.leader_of

    async def connect(
        self,
        host: str,
        port: int,
        *,
        tls: TlsContexts | None = None,
        server_name: str | None = None,
    ) -> ByteStream:
        """See `Network`."""
        assert tls is None, f"nobody speaks TLS here, nor has the name {server_name}"
        self._check()
        return await self._fabric.connect(self._site, (host, port))

    def _check(self) -> None:
        if not self._fabric.alive(self._site, self._life):
            raise OSError(101, "this site is dead")
