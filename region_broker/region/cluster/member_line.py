"""The outgoing connection to one member: made when something is to be sent, and made again with a back-off.

INV-CLL1  there is one connection at a time, and it reaches the member that it is for, as the handshake proved; what waits
          while it cannot be made is lost with each try that fails
INV-CLL2  between two tries is a pause of `PAUSE_MS_MIN / 2` at least and `PAUSE_MS_MAX` at most: it doubles, with jitter, and
          begins anew, and is cut short, when the member answers or comes in by itself
INV-CLL3  a connection that answers no probe is given up: what was sent into it may be lost, and so may what would be

The line ends when its member is removed, or has no address any more.
Not here: the handshake itself (`region.peers.node_client`), which members there are (`transport`), what comes in.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from idempotency.ports import Chance, Clock
from region_broker.controller.raft.effects import Message
from region_broker.controller.raft.entries import Member
from region_broker.limits import NODE_PROBE_MS, NODE_PROBE_TIMEOUT_MS
from region_broker.ports.network import Network
from region_broker.region.cluster.raft_messages import RaftNotice, encode_message
from region_broker.region.cluster.send_queue import SendQueue
from region_broker.region.cluster.standing import NodeStanding, StandingTowards
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable, ShutOut
from region_broker.wire.cooperative_yield import CooperativeYield

PAUSE_MS_MIN: Final = 50
PAUSE_MS_MAX: Final = 1_000
BYTES_PER_MS_MIN: Final = 1_000
"""What a connection carries at least: an answer to a probe waits for the large message before it."""
SAID_MAX: Final = 300
_log: Final = logging.getLogger("tidemark.cluster")

AddressOf = Callable[[Member], tuple[str, int] | None]


class Watcher(Protocol):
    """Is told in the step in which it happens, and must not raise; failure detection is built on it."""

    def on_heard(self, member: Member) -> None:
        """Something arrived from a member: a handshake, a message, the answer to a probe."""
        ...

    def on_lost(self, member: Member) -> None:
        """A connection with a member that had made its handshake has ended, in whichever direction it was made."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LineParts:
    """What all lines of a node share. `address_of`: where a member's peer port is, None for whom nobody knows."""

    standing: NodeStanding
    network: Network
    clock: Clock
    chance: Chance
    address_of: AddressOf
    watcher: Watcher
    on_shut_out: Callable[[ShutOut], None] = lambda _error: None
    """Called when a member says that the region goes on without this node's folder, with its refusal."""
    on_damage: Callable[[Member, bool], None] = lambda _member, _damaged: None
    """Called with what a member says of its damage (INV-CV5), each time."""

    def where(self, member: Member) -> tuple[str, int] | None:
        """Return where to connect to a member, None for one that is not to be spoken to."""
        return None if self.standing.is_gone(member) else self.address_of(member)

    def note_refusal(self, error: Exception) -> None:
        """Take note of why a handshake failed."""
        if isinstance(error, ShutOut):
            self.on_shut_out(error)


class Backoff:
    """Pauses between tries: doubling, with jitter, bounded (INV-CLL2)."""

    def __init__(self, chance: Chance) -> None:
        """Begin with the shortest."""
        self._chance = chance
        self._longest_ms = PAUSE_MS_MIN

    def next_ms(self) -> float:
        """Return how long to wait, at least half of what it could be, and double that for the next time."""
        pause_ms = self._chance.uniform(self._longest_ms / 2, self._longest_ms)
        self._longest_ms = min(2 * self._longest_ms, PAUSE_MS_MAX)
        return pause_ms

    def reset(self) -> None:
        """Begin anew."""
        self._longest_ms = PAUSE_MS_MIN


class MemberLine:
    """Sends to one member. `run` is its only task."""

    def __init__(self, target: Member, parts: LineParts) -> None:
        """Begin without a connection."""
        self.target: Final = target
        self._parts = parts
        self._identity = StandingTowards(parts.standing, target)
        self._queue = SendQueue()
        self._wanted = asyncio.Event()
        self._is_there = asyncio.Event()
        self._backoff = Backoff(parts.chance)
        self._said: type[PeerRefused | PeerUnreachable] | None = None
        self._draining_bytes = 0
        self._said_full = False

    def send(self, group: str, message: Message) -> None:
        """Let a message wait for its turn."""
        if self._queue.put(group, message) and not self._said_full:
            self._said_full = True
            _log.warning(
                "too much waits to be sent to node %s: what is oldest is dropped", self.target
            )
        self._wanted.set()

    def note_there(self) -> None:
        """The member has come in on a connection of its own: it is there, and is tried soon (INV-CLL2)."""
        self._backoff.reset()
        self._is_there.set()

    async def run(self) -> None:
        """Send until the member has no address any more, or is removed."""
        while (address := await self._next_address()) is not None:
            failure = await self._try(address)
            self._queue.clear()
            self._wanted.clear()
            if type(failure) is not self._said:
                self._said = type(failure)
                # What the other side says is not trusted to be one line.
                _log.warning("no connection to node %s: %r", self.target, str(failure)[:SAID_MAX])
            await self._pause()

    async def _next_address(self) -> tuple[str, int] | None:
        """Return where to connect, once something waits; None if there is nowhere."""
        await self._wanted.wait()
        self._wanted.clear()
        return self._parts.where(self.target)

    async def _pause(self) -> None:
        """Wait before the next try; as short as may be where the member comes in meanwhile."""
        clock = self._parts.clock
        self._is_there.clear()
        begun_ms = clock.monotonic_ms()
        async with asyncio.TaskGroup() as tasks:
            timer = tasks.create_task(clock.sleep_ms(self._backoff.next_ms()))
            there = tasks.create_task(self._is_there.wait())
            await asyncio.wait([timer, there], return_when=asyncio.FIRST_COMPLETED)
            timer.cancel()
            there.cancel()
        left_ms = begun_ms + PAUSE_MS_MIN / 2 - clock.monotonic_ms()
        if left_ms > 0:
            await clock.sleep_ms(left_ms)

    async def _try(self, address: tuple[str, int]) -> PeerRefused | PeerUnreachable:
        """Connect, and send until the connection ends; return why it did."""
        try:
            client = await NodeClient.connect(self._parts.network, address)
        except PeerUnreachable as error:
            return error
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(client.run())
            try:
                theirs = await client.handshake(self._identity)
            except (PeerUnreachable, PeerRefused) as error:
                self._parts.note_refusal(error)
                client.close()
                reading.cancel()
                return error
            self._parts.on_damage(self.target, theirs.damaged)
            await self._serve(client, tasks, reading)
        assert client.ended is not None
        return PeerUnreachable(client.ended, sent=True)

    async def _serve(
        self, client: NodeClient, tasks: asyncio.TaskGroup, reading: asyncio.Task[None]
    ) -> None:
        self._on_heard()
        if self._said:
            _log.info("the connection to node %s stands again", self.target)
        self._said, self._said_full = None, False
        working = [tasks.create_task(self._pump(client)), tasks.create_task(self._probe(client))]
        await asyncio.wait([reading])
        for task in working:
            task.cancel()
        self._parts.watcher.on_lost(self.target)

    def _on_heard(self) -> None:
        self._backoff.reset()
        self._parts.watcher.on_heard(self.target)

    async def _pump(self, client: NodeClient) -> None:
        """Send what waits; no more than one message beyond what the stream takes waits there (INV-CLQ2)."""
        yielding = CooperativeYield()
        try:
            while True:
                waiting = self._queue.take()
                if waiting is None:
                    self._wanted.clear()
                    await self._wanted.wait()
                    continue
                data = encode_message(waiting.message)
                self._draining_bytes = len(data)
                client.notify(RaftNotice(group=waiting.group), (data,))
                await client.drain()
                self._draining_bytes = 0
                await yielding.row()
        except OSError:
            return  # whoever reads is told why

    async def _probe(self, client: NodeClient) -> None:
        """Hold the other side to its answers (INV-CLL3), and leave where it is not wanted any more."""
        while self._parts.where(self.target) is not None:
            await self._parts.clock.sleep_ms(NODE_PROBE_MS)
            patience_ms = NODE_PROBE_TIMEOUT_MS + self._draining_bytes / BYTES_PER_MS_MIN
            try:
                standing = self._parts.standing
                answer = await client.probe(
                    patience_ms / 1000,
                    damaged=standing.is_damaged(),
                    opens_logs=standing.opens_logs(),
                )
            except PeerUnreachable:
                return
            except PeerRefused as refused:
                _log.warning("node %s does not answer probes: %s", self.target, refused)
                break
            self._on_heard()
            self._parts.on_damage(self.target, answer.damaged)
        client.close()
