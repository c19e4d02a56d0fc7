"""The driver of the Kafka port: sockets and tasks around `wire.connection`.

INV-WS1  requests of one connection start in the order they arrived: each has its task, and a task group
        runs first steps in creation order; what a handler does before its first await is thus ordered (C7). One
        that is answered directly starts at once, unless the task of an earlier one has not started yet
INV-WS2  a peer that does not read its answers is not read from, and cut off after WRITE_TIMEOUT_MS; one
        that sends half a frame is cut off after FRAME_TIMEOUT_MS
INV-WS3  whatever one connection does, the others go on; only an AssertionError (our bug) leaves `run`, to
        end the process
INV-WS4  only a Fetch that waits, and the search for a pattern (INV-HPT1), are given up when their peer has gone: every other handler runs to its end
INV-WS7  a connection that comes while the server closes is ended, too: its peer would else keep `run` from ending
INV-WS9  a connection that is throttled is left unread for that time and begins nothing, as Kafka does since KIP-219; its answers are
         sent at once, and nobody else waits
INV-WS10 of connections that are closed for what came on them, for their certificate, or for their slowness, few are told (`wire.closing_lines`)
INV-WS8  while requests are held none begins, whoever comes meanwhile, and no connection is ended for what that takes; what is sent
         waits unread in the order of its connection, and is begun, by whoever serves then, when they are held no more
INV-WS11 requests of all connections together are begun for TURN_COST_MAX in one turn of the loop; then a connection that has one to begin waits
         for its turn, left unread, and begins it, and those behind it, in a later one (`ports.turn_budget`), without anybody else's time running against it
Not here: the protocol's order and caps (`wire.connection`), what requests mean (`handlers.dispatch.dispatcher`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from idempotency.ports import Clock
from region_broker import limits
from region_broker.limits import RECORD_BYTES_A_COST, REQUEST_COST_MIN
from region_broker.metrics import Metrics
from region_broker.ports.network import READ_AHEAD_BYTES, ByteStream, Listener, Network
from region_broker.ports.turn_budget import TURN_COST_MAX, TurnBudget
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, host_of
from region_broker.security.quotas.entities import AddressRate
from region_broker.security.sasl.login import FRAME_BYTES_MAX, LOGIN_TIMEOUT_MS
from region_broker.wire.closing_lines import ClosingLines
from region_broker.wire.codec.gathered import AnswerBytes
from region_broker.wire.connection import (
    FETCH_KEY,
    PRODUCE_KEY,
    Connection,
    Incoming,
    Numbering,
    Peer,
    Slot,
)
from region_broker.wire.connection_caps import Admission, ConnectionCaps, Refused
from region_broker.wire.framing import FramingError
from region_broker.wire.headers import HeaderError
from region_broker.wire.listening import BY_TLS, PLAIN, Listening, NoIdentity
from region_broker.wire.memory_budget import MemoryBudget, Share
from region_broker.wire.request_trace import Trace, trace_of

logger: Final = logging.getLogger(__name__)
_SWEEP_INTERVAL_MS: Final = 1_000
_NOBODY: Final = "refused %s: its certificate names nobody: %s"
_FAILED: Final = "API %d version %d from %s failed; its connection is closed"
assert REQUEST_COST_MIN < TURN_COST_MAX // 2, "several small requests must fit a turn"
assert limits.SOCKET_READ_BYTES <= READ_AHEAD_BYTES, "one read must not exceed what is read ahead"

Answer: TypeAlias = Callable[[Incoming], Awaitable[AnswerBytes | None]]
Finish: TypeAlias = Callable[[AnswerBytes | Exception | None], None]
Begin: TypeAlias = Callable[[Incoming, Finish], bool]
"""Begins a request without a task, if it can; its answer, or why there is none, is handed to the callback, perhaps at
once."""


class CloseConnection(Exception):
    """Raised by the answering side: the connection is to be closed; the text says why.

    `answer`, where there is one, is sent before.
    """

    def __init__(
        self, reason: str, *, answer: AnswerBytes | None = None, is_told: bool = False
    ) -> None:
        """Close for `reason`, after `answer`; `is_told`: whoever raises this has told the log, or left it out on purpose."""
        super().__init__(reason)
        self.answer = answer
        self.is_told = is_told


@dataclass(slots=True, eq=False)
class _Link:
    """One live connection."""

    stream: ByteStream
    core: Connection
    wake: asyncio.Event
    fetches: set[asyncio.Task[None]]
    share: Share
    last_activity_ms: int
    frame_since_ms: int = -1
    writing_since_ms: int = -1
    held_back: bool = False  # left unread for want of memory
    turn: Slot | None = None  # what it had its last turn in a full budget for
    closing: bool = False
    muted_until_ms: int = 0
    mute: asyncio.TimerHandle | None = None  # while it is throttled (INV-WS9)
    turn_after: tuple[str, Callable[[], None]] | None = None  # while it waits for one (INV-WS11)
    failed: Exception | None = (
        None  # what a request that waited so began with: its reader's to judge
    )
    unstarted: int = 0  # requests whose task has not begun
    owed: int = 0  # requests that were begun directly and are not answered
    flush_due: bool = False
    settled: asyncio.Event | None = None  # wakes who waits for the two
    group: asyncio.TaskGroup | None = None
    reader: asyncio.Task[None] | None = None
    serving: asyncio.Task[None] | None = None

    async def until_settled(self) -> None:
        """Wait until all that was begun directly is answered and on its way."""
        self.settled = asyncio.Event()
        while self.owed or self.flush_due:
            self.settled.clear()
            await self.settled.wait()

    @property
    def waits_for_node(self) -> bool:
        """Return whether it is this node that does not read it, or begin what it sent."""
        return self.mute is not None or self.turn_after is not None

    def note_unfinished(self, now_ms: int) -> None:
        """Let the time of a frame begin that has come in part."""
        if self.frame_since_ms < 0 and self.core.mid_frame:
            self.frame_since_ms = now_ms

    def count_in(self, memory: MemoryBudget) -> None:
        """Count what this connection holds now."""
        memory.hold(self.share, self.core.held_bytes, self.core.not_begun_bytes)

    def stop_reading(self) -> None:
        """Start no more requests; a Fetch that waits is given up (INV-WS4)."""
        self.closing = True
        if self.reader is not None:
            self.reader.cancel()
        for task in self.fetches:
            task.cancel()
        for waiting in tuple(self.core.peer.waiting):
            waiting.give_up()
        if self.mute is not None:
            self.mute.cancel()

    def let_go(self) -> None:
        """Hold nothing that holds this connection, which has ended: it is freed now (INV-PN7)."""
        self.group = self.reader = self.serving = self.failed = None
        self.core.let_go()

    def shut(self) -> None:
        """Stop serving this connection: send what is queued, close."""
        self.stop_reading()
        self.stream.close()


class _Unread:
    """Leaves connections unread that are throttled (INV-WS9)."""

    def __init__(self, clock: Clock, memory: MemoryBudget) -> None:
        self._clock = clock
        self._memory = memory

    def mute(self, link: _Link, throttle_ms: int) -> None:
        """Leave a connection unread for that time from now on."""
        until_ms = self._clock.monotonic_ms() + throttle_ms
        if link.closing or until_ms <= link.muted_until_ms:
            return
        if link.mute is not None:
            link.mute.cancel()
        link.muted_until_ms = until_ms
        if link.share.turn_since_ms >= 0:
            self._memory.end_turn(link.share)  # others are read meanwhile
        loop = asyncio.get_running_loop()
        link.mute = loop.call_later(throttle_ms / 1_000, self._unmute, link)

    def _unmute(self, link: _Link) -> None:
        link.mute = None
        link.frame_since_ms = -1  # its time begins anew
        link.last_activity_ms = self._clock.monotonic_ms()
        link.wake.set()


class KafkaServer:
    """Serves its listening addresses: `await start()` for each, then `await run()` inside a task group."""

    def __init__(  # noqa: PLR0913 - the rest by keyword
        self,
        network: Network,
        clock: Clock,
        answer: Answer,
        metrics: Metrics,
        *,
        begin: Begin | None = None,
        caps: ConnectionCaps | None = None,
        memory: MemoryBudget | None = None,
        turns: TurnBudget | None = None,
    ) -> None:
        """Create a server that is not listening; `answer` serves one request (`Dispatcher.answer`).

        What `begin` takes is served without a task (`Dispatcher.begin`).
        """
        self._network = network
        self._clock = clock
        self._answer = answer
        self._begin = begin
        self._charge: Callable[[Incoming], None] | None = None
        self._flushes: list[_Link] = []
        self._metrics = metrics
        self._admission = Admission(caps or ConnectionCaps())
        self._refusal_said_ms = -_SWEEP_INTERVAL_MS
        self._lines = ClosingLines(logger)
        self._memory = memory or MemoryBudget()
        self._unread = _Unread(clock, self._memory)
        self.turns: Final = turns or TurnBudget()
        self.on_certificate: Callable[[Identity, str], None] = lambda _who, _refused: None
        """Told whom a client certificate proved, or why it proved nobody; set where there is an audit trail."""
        self._numbering = Numbering()
        self._listeners: list[Listener] = []
        self._links: dict[_Link, None] = {}  # in the order they came
        self._waiting: list[tuple[Listening, ByteStream]] = []
        self._group: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()
        self._closed_one = asyncio.Event()
        self._is_held = False
        self._answered = asyncio.Event()

    def limit(self, per_address: int, rate: int) -> None:
        """Let no more than that in from one address, from now on; 0 for `rate`: any number. Who is in stays."""
        self._admission.caps = self._admission.caps.for_addresses(per_address, rate)

    def limit_by(
        self,
        rate_of: Callable[[str], AddressRate | None] | None,
        charge: Callable[[Incoming], None] | None,
    ) -> None:
        """Go by quotas: `rate_of` says how many connections a second an address may open, None where it has no quota.

        `charge` is called as a request comes, before the next one of its connection is begun, and may throttle it. None: there are no such
        quotas.
        """
        self._admission.rate_of = rate_of
        self._charge = charge

    async def start(self, host: str, port: int, listening: Listening = PLAIN) -> None:
        """Bind one more address; OSError when the port is in use. Connections wait until `run` is running."""
        listener = await self._network.listen(
            host, port, partial(self._accept, listening), tls=listening.tls, on_failed=listening.on_failed, admits=self._knock,
        )  # fmt: skip
        self._listeners.append(listener)

    @property
    def port(self) -> int:
        """Return the port bound to, of the first address."""
        return self.ports[0]

    @property
    def ports(self) -> list[int]:
        """Return the ports bound to, in the order they were started."""
        assert self._listeners, "the server was not started"
        return [listener.port for listener in self._listeners]

    @property
    def connection_count(self) -> int:
        """Return how many connections are open."""
        return len(self._links)

    async def wait_connections(self, count: int) -> None:
        """Return once at most `count` connections are open."""
        while len(self._links) > count:
            self._closed_one.clear()
            await self._closed_one.wait()

    def hold(self) -> None:
        """Begin no more requests, until `serve_by` and `release` (INV-WS8)."""
        self._is_held = True

    async def until_answered(self) -> None:
        """Return once all that has begun is answered, or its connection has ended; while requests are held nothing is added."""
        while any(link.core.owes for link in self._links):
            self._answered.clear()
            await self._answered.wait()

    def end_unanswered(self, *, cancels: bool = False) -> int:
        """Cut off the connections that a request was begun of and not answered; return how many.

        `cancels`: nor is what was begun awaited, but where half of it must not be left (INV-UB1).
        """
        owing = [link for link in self._links if link.core.owes]
        for link in owing:
            link.stop_reading()
            link.stream.abort()
            if cancels and link.serving is not None:
                link.serving.cancel()
        return len(owing)

    def serve_by(self, answer: Answer, begin: Begin | None, metrics: Metrics) -> None:
        """Have requests served by another one from now on, while they are held, and nothing is under way (INV-WS8)."""
        assert self._is_held, "two would serve one connection"
        self._answer, self._begin, self._metrics = answer, begin, metrics
        metrics.connections.set(len(self._links))

    def release(self) -> None:
        """Begin what waits, and hold nothing any more."""
        self._is_held = False
        now_ms = self._clock.monotonic_ms()
        for link in self._links:
            # Its time begins anew, as that of a login does, which may wait unread.
            link.frame_since_ms = -1
            link.core.peer.state.must_log_in_since_ms = now_ms
            link.wake.set()

    @property
    def memory(self) -> MemoryBudget:
        """Return what bounds the bytes of all connections."""
        return self._memory

    def close(self) -> None:
        """Accept nothing more, read nothing more; `run` ends when what is being served is answered."""
        self._stop.set()
        for listener in self._listeners:
            listener.close()
        for link in self._links:
            link.stop_reading()

    async def run(self) -> None:
        """Serve until `close`; raises only for a bug of ours (INV-WS3)."""
        assert self._listeners, "start() comes before run()"
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                sweeper = group.create_task(self._sweep())
                for listening, stream in self._waiting:
                    group.create_task(self._serve(listening, stream))
                self._waiting.clear()
                await self._stop.wait()
                await self.wait_connections(0)
                sweeper.cancel()
        finally:
            self._group = None
            self._stop.set()
            for listener in self._listeners:
                listener.close()

    async def _accept(self, listening: Listening, stream: ByteStream) -> None:
        if self._stop.is_set():
            stream.close()
        elif self._group is None:
            self._waiting.append((listening, stream))
        else:
            serving = self._serve(listening, stream)
            try:
                self._group.create_task(serving)
            except (
                RuntimeError
            ):  # `run` is being cancelled, or fails: its group takes no more (INV-WS7)
                serving.close()
                stream.abort()

    async def _serve(self, listening: Listening, stream: ByteStream) -> None:
        if self._stop.is_set():  # accepted before that, and served first now (INV-WS7)
            stream.abort()
            return
        address = stream.peer.rpartition(":")[0]
        refused = self._admission.admit(
            address, self._clock.monotonic_ms(), has_knocked=listening.tls is not None
        )
        if refused is not None:
            self._note_refused(stream.peer, address, refused)
            stream.abort()
            return
        try:
            state = listening.state_of(stream)
        except NoIdentity as error:
            self._admission.left(address)
            self._metrics.connections_refused.labels("no_principal").inc()
            self._lines.warn(self._clock.monotonic_ms(), _NOBODY, stream.peer, error)
            nobody = Identity(ANONYMOUS_PRINCIPAL, address, BY_TLS)
            self.on_certificate(nobody, "its certificate names nobody")
            stream.abort()
            return
        if state.identity.mechanism == BY_TLS:
            self.on_certificate(state.identity, "")
        peer = Peer(self._numbering.next(), stream.peer, self._numbering, state)
        link = _Link(
            stream, Connection(peer), asyncio.Event(), set(), Share(), self._clock.monotonic_ms(),
            serving=asyncio.current_task(),
        )  # fmt: skip
        link.core.on_hand_back = partial(self._note_held, link)
        if state.must_log_in:
            self._wait_for_login(link)
        self._links[link] = None
        self._metrics.connections.set(len(self._links))
        try:
            async with asyncio.TaskGroup() as group:
                link.group = group
                link.reader = group.create_task(self._read_requests(link, group))
                await asyncio.wait((link.reader,))
                await link.until_settled()
            link.writing_since_ms = self._clock.monotonic_ms()  # the sweeper watches the rest
            stream.close()
            await stream.wait_closed()
        finally:
            stream.abort()
            link.let_go()
            peer.state.end()
            del self._links[link]
            self._answered.set()
            self._memory.hold(link.share, 0)
            self._admission.left(address)
            self._metrics.connections.set(len(self._links))
            self._closed_one.set()

    def _wait_for_login(self, link: _Link) -> None:
        """Take small requests only, until the login (INV-LGI1)."""
        core, state = link.core, link.core.peer.state
        state.must_log_in_since_ms = self._clock.monotonic_ms()
        core.allow_frames(FRAME_BYTES_MAX)
        state.on_first_login = partial(core.allow_frames, limits.REQUEST_BYTES_MAX)

    def _knock(self, address: str) -> bool:
        """Return whether a connection of an address may make its handshake (INV-CN5)."""
        refused = self._admission.knock(address, self._clock.monotonic_ms())
        if refused is not None:
            self._note_refused(address, address, refused)
        return refused is None

    def _note_refused(self, peer: str, address: str, refused: Refused) -> None:
        self._metrics.connections_refused.labels(refused.value).inc()
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._refusal_said_ms + _SWEEP_INTERVAL_MS:
            return  # a storm must not become one of log lines; the counter has them all
        self._refusal_said_ms = now_ms
        caps = self._admission.caps
        logger.warning(
            "refused %s (%s): %d connections are open, %d of its address; connections_per_address_max is %d, "
            "connection_rate_per_address is %d",
            peer, refused.value, len(self._links), self._admission.open_from(address),
            caps.per_address, caps.rate,
        )  # fmt: skip

    async def _read_requests(self, link: _Link, group: asyncio.TaskGroup) -> None:
        """Read and start requests until the peer is gone, misbehaves, or the server closes."""
        take_in = partial(self._take_in, link, group)
        try:
            while not link.closing:
                if link.failed is not None:  # perhaps before this task went on behind `feed`
                    raise link.failed
                self._start_requests(link, group)
                if link.core.stalled or self._is_held or link.waits_for_node:
                    link.wake.clear()
                    await link.wake.wait()
                    continue
                if self._memory.full or link.held_back:
                    await self._wait_for_memory(link)
                link.note_unfinished(self._clock.monotonic_ms())
                if not await link.stream.feed(take_in):
                    break
        except (FramingError, HeaderError) as error:
            self._refuse(link, "bad_frame", error, _trace_of(link))
            if isinstance(error, FramingError) and error.reply:
                link.stream.write(error.reply)
            link.shut()
        except OSError as error:
            logger.debug("connection %s broke: %s", link.core.peer.address, error)
        finally:
            link.stop_reading()
            if link.turn_after is not None:
                self.turns.withdraw(*link.turn_after)
                link.turn_after = None
            # What has begun may take minutes yet (INV-WS4): nobody waits for the rest so long.
            link.core.drop_not_begun()
            self._memory.end_turn(link.share)
            link.count_in(self._memory)

    def _start_requests(self, link: _Link, group: asyncio.TaskGroup) -> None:
        while self._may_begin(link):
            if self.turns.is_spent and link.core.has_request():
                self._wait_for_turn(link, group)
                break
            slot = link.core.next_request()
            if slot is None:
                break
            link.frame_since_ms = -1
            frame_bytes = len(slot.incoming.frame)
            if self._memory.spend_turn(link.share):
                link.turn = slot
                _end_small_turn(self._memory, link)
            if self._charge is not None:
                self._charge(slot.incoming)
                if slot.incoming.throttle_ms:
                    self._unread.mute(link, slot.incoming.throttle_ms)
            has_task = link.unstarted > 0 or not self._begin_directly(link, slot)
            if has_task:
                link.unstarted += 1
                task = group.create_task(self._handle(link, slot))
                if slot.incoming.api_key == FETCH_KEY:
                    link.fetches.add(task)
                    task.add_done_callback(link.fetches.discard)
            self.turns.spend(_cost_of(slot.incoming.api_key, frame_bytes, has_task=has_task))
        if link.share.counted_bytes:
            link.count_in(self._memory)  # what is begun is another part of it (INV-MB4)

    def _wait_for_turn(self, link: _Link, group: asyncio.TaskGroup) -> None:
        """Begin what a connection has in a later turn of the loop (INV-WS11)."""

        def begin() -> None:
            link.turn_after = None
            try:
                self._start_requests(link, group)
            except Exception as error:  # noqa: BLE001 - its reader raises it, as if it had begun this itself
                link.failed = error
            if link.turn_after is None:
                link.wake.set()

        link.frame_since_ms = -1  # it is complete
        peer = link.core.peer
        who = peer.state.identity.counted_as(host_of(peer.address))
        link.turn_after = who, begin
        self.turns.later(who, begin)

    def _may_begin(self, link: _Link) -> bool:
        return not (
            link.closing or self._is_held or link.mute is not None or link.turn_after is not None
        )

    def _begin_directly(self, link: _Link, slot: Slot) -> bool:
        """Begin a request without a task; False if it needs one."""
        if self._begin is None:
            return False

        def finish(answer: AnswerBytes | Exception | None) -> None:
            link.owed -= 1
            if isinstance(answer, Exception):
                if link.group is not None:
                    link.unstarted += 1
                    link.group.create_task(self._handle(link, slot, _raising(answer)))
                return
            self._finish(link, slot, answer)
            self._flush_soon(link)

        link.owed += 1
        try:
            if self._begin(slot.incoming, finish):
                return True
        except AssertionError:
            raise
        except CloseConnection as error:
            self._refuse(link, "protocol", error, trace_of(slot.incoming))
            link.shut()
        except Exception:
            logger.exception(_FAILED, *self._failed(link, slot), extra=trace_of(slot.incoming))
        else:
            link.owed -= 1
            return False
        link.owed -= 1
        return True

    def _flush_soon(self, link: _Link) -> None:
        """Send what is ready at the end of this turn of the loop."""
        if link.flush_due:
            return
        link.flush_due = True
        self._flushes.append(link)
        if len(self._flushes) == 1:
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        links, self._flushes = self._flushes, []
        for link in links:
            link.flush_due = False
            self._send_now(link)
            if link.settled is not None:
                link.settled.set()

    def _send_now(self, link: _Link) -> None:
        """Send what is ready; a peer that does not read gets a task that waits for it."""
        if link.writing_since_ms >= 0:
            return  # another sends, and looks again
        if link.stream.has_room:
            if buffers := link.core.take_answers():
                link.stream.write(*buffers)
            if link.stream.has_room:
                self._note_sent(link)
                return
        if link.group is not None:
            link.writing_since_ms = self._clock.monotonic_ms()
            link.group.create_task(self._drain(link))

    async def _wait_for_memory(self, link: _Link) -> None:
        core = link.core
        while not self._memory.may_read(
            link.share, self._clock.monotonic_ms(), unfinished=core.lacks_bytes
        ):
            link.held_back = True
            await self._memory.changed()
        if link.held_back:
            link.held_back = False
            link.frame_since_ms = -1  # its time begins anew

    def _take_in(self, link: _Link, group: asyncio.TaskGroup, chunk: bytes) -> bool:
        """Start the requests that a chunk completes; return whether the next chunk may come."""
        core = link.core
        link.last_activity_ms = self._clock.monotonic_ms()
        core.receive(chunk)
        link.count_in(self._memory)
        self._start_requests(link, group)
        link.stream.expect(core.missing_bytes)
        if not self._may_begin(link) or core.stalled or self._memory.full:
            return False
        link.note_unfinished(link.last_activity_ms)
        return True

    async def _handle(
        self, link: _Link, slot: Slot, answering: Awaitable[AnswerBytes | None] | None = None
    ) -> None:
        """Serve one request; nothing but a programmer error leaves this task."""
        link.unstarted -= 1
        try:
            answer = await (answering or self._answer(slot.incoming))
        except AssertionError:
            raise
        except CloseConnection as error:
            self._refuse(link, "protocol", error, trace_of(slot.incoming))
            if error.answer is not None:
                link.core.finish(slot, error.answer)
                link.stop_reading()
                await self._send(link)
            link.shut()
            return
        except Exception:
            logger.exception(_FAILED, *self._failed(link, slot), extra=trace_of(slot.incoming))
            return
        self._finish(link, slot, answer)
        await self._send(link)

    def _finish(self, link: _Link, slot: Slot, answer: AnswerBytes | None) -> None:
        link.core.finish(slot, answer)
        link.count_in(self._memory)
        if slot.incoming.throttle_ms:
            self._unread.mute(link, slot.incoming.throttle_ms)
        if self._is_held:
            self._answered.set()

    def _failed(self, link: _Link, slot: Slot) -> tuple[int, int, str]:
        """Close the connection of a request whose handler failed; return what `_FAILED` names."""
        self._metrics.connections_refused.labels("failure").inc()
        link.shut()
        return slot.incoming.api_key, slot.incoming.version, link.core.peer.address

    async def _send(self, link: _Link) -> None:
        """Send what is ready; whoever comes while another sends leaves it to that one."""
        if link.writing_since_ms < 0:
            link.writing_since_ms = self._clock.monotonic_ms()
            await self._drain(link)

    async def _drain(self, link: _Link) -> None:
        """Send what is ready, and what becomes ready meanwhile, as fast as the peer reads."""
        try:
            await link.stream.drain()
            while buffers := link.core.take_answers():
                link.writing_since_ms = self._clock.monotonic_ms()
                link.stream.write(*buffers)
                await link.stream.drain()
                self._note_sent(link)
        except OSError as error:
            logger.debug("connection %s broke: %s", link.core.peer.address, error)
            link.shut()
        finally:
            link.writing_since_ms = -1
        self._note_sent(link)  # requests that no answer was due to

    def _note_sent(self, link: _Link) -> None:
        link.core.sent()
        self._note_held(link)

    def _note_held(self, link: _Link) -> None:
        """Count what a connection holds now, which has become less, and let it be read again."""
        _end_small_turn(self._memory, link)
        if link in self._links:
            link.count_in(self._memory)
        link.wake.set()

    def _refuse(self, link: _Link, reason: str, error: Exception, trace: Trace) -> None:
        self._metrics.connections_refused.labels(reason).inc()
        address = link.core.peer.address
        is_told = isinstance(error, CloseConnection) and error.is_told
        level = logging.DEBUG if is_told else logging.WARNING
        if is_told or self._lines.may(self._clock.monotonic_ms()):
            logger.log(level, "closing the connection of %s: %s", address, error, extra=trace)

    async def _sweep(self) -> None:
        """Cut off peers that keep a frame, an answer or an idle connection for too long (INV-WS2)."""
        link: _Link | None
        while True:
            await self._clock.sleep_ms(_SWEEP_INTERVAL_MS)
            now_ms = self._clock.monotonic_ms()
            for link in () if self._is_held else tuple(self._links):
                reason = _overdue(link, now_ms, pressed=self._memory.full)
                if reason is not None:
                    self._metrics.connections_refused.labels("timeout").inc()
                    address, trace = link.core.peer.address, _trace_of(link)
                    if self._lines.may(now_ms):
                        logger.info("closing the connection of %s: %s", address, reason, extra=trace)  # fmt: skip
                    link.stop_reading()
                    link.stream.abort()
            link = None  # which would stay until the next one comes (INV-PN7)


async def _raising(error: Exception) -> None:
    raise error


def _trace_of(link: _Link) -> Trace:
    """Return the fields of a connection, where no request can be named."""
    return {"client": link.core.peer.address, "connection_id": link.core.peer.connection_id}


def _end_small_turn(memory: MemoryBudget, link: _Link) -> None:
    """Let another one have the turn whose frame takes little: it is answered, was handed back, or is small and may wait for minutes (INV-MB2)."""
    if link.turn is None or len(link.turn.incoming.frame) > limits.FREE_HELD_BYTES:
        return
    if link.share.turn_is_spent:
        memory.end_turn(link.share)
    link.turn = None


def _cost_of(api_key: int, frame_bytes: int, *, has_task: bool) -> int:
    """Return what a request costs of a turn of the loop (INV-WS11): a Produce without its records, as its handler counts its batches."""
    if api_key != PRODUCE_KEY:
        return max(REQUEST_COST_MIN, frame_bytes)
    cost = REQUEST_COST_MIN + frame_bytes // RECORD_BYTES_A_COST
    # What has a task is perhaps refused before anybody counts.
    return cost + min(frame_bytes, TURN_COST_MAX // 4) if has_task else cost


def _overdue(link: _Link, now_ms: int, *, pressed: bool) -> str | None:
    """Return why a connection is to be cut off; `pressed`: the memory budget is full."""
    write_ms = limits.PRESSED_TIMEOUT_MS if pressed else limits.WRITE_TIMEOUT_MS
    if 0 <= link.writing_since_ms < now_ms - write_ms:
        return f"it took no answer for {write_ms} ms"
    if pressed and (reason := _in_the_way(link, now_ms - limits.PRESSED_TIMEOUT_MS)) is not None:
        return f"{reason} {limits.PRESSED_TIMEOUT_MS} ms while memory was scarce (request_memory_bytes)"
    state = link.core.peer.state
    if state.must_log_in and state.must_log_in_since_ms < now_ms - LOGIN_TIMEOUT_MS:
        return f"it did not log in within {LOGIN_TIMEOUT_MS} ms"
    if link.held_back or link.waits_for_node:
        return None
    if 0 <= link.frame_since_ms < now_ms - limits.FRAME_TIMEOUT_MS:
        return f"a request was not complete after {limits.FRAME_TIMEOUT_MS} ms"
    idle = link.core.in_flight == 0 and link.last_activity_ms < now_ms - limits.IDLE_TIMEOUT_MS
    return f"it was idle for {limits.IDLE_TIMEOUT_MS} ms" if idle else None


def _in_the_way(link: _Link, before_ms: int) -> str | None:
    """Return what a connection did too long, if others wait for memory."""
    core, share = link.core, link.share
    if link.waits_for_node:
        return None
    unfinished = core.lacks_bytes
    if unfinished and 0 <= share.turn_since_ms < before_ms:
        return "its request, for which others waited, was not complete after"
    if link.last_activity_ms >= before_ms:
        return None
    # What a peer sent while it was held back waits in the stream; who sent nothing is slow by itself.
    if unfinished and share.counted_bytes and not link.stream.unread_bytes:
        return "it sent no more of a request for"
    # 1. A Fetch waits for five minutes. 2. Behind it comes another one, of 100 MiB. No client does that.
    holds_others = share.not_begun_bytes > limits.FREE_HELD_BYTES or share.turn_since_ms >= 0
    behind = core.waits_framed and holds_others
    return "a large request waited behind another one of its kind for" if behind else None
