"""Connections to other nodes of the region over which leaders ask each other, while leaders are spread: one to each, made when needed.

INV-ALL1 a call ends: with its answer, with a refusal, or with `PeerUnreachable` after `ANSWER_TIMEOUT_S` at the latest; then its connection,
         from which nothing may come any more, is given up
INV-ALL3 whoever began a call is told once, in a turn of the loop of its own, also of one that the end of `run` comes before; what is begun in
         that very turn, or later, is `PeerUnreachable`, too
INV-ALL2 what is begun when no connection stands waits for the one that is made, and fails with it: the next call makes another one
Not here: what is asked (`leader_messages`), trying again (whoever asks).
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Final, TypeVar

from idempotency.identity import Member
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.standing import StandingTowards
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import LEADING
from region_broker.region.peers.protocol import (
    AnyMessage,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
)

ANSWER_TIMEOUT_S: Final = 5.0
"""Longer than a coordinator holds a request (`hold_limit_ms`), and than a marker is waited for."""


Result = TypeVar("Result")


class _Line:
    """The connection to one member."""

    def __init__(self) -> None:
        self.connecting: Final = asyncio.Lock()
        self.client: NodeClient | None = None


class LeaderLines:
    """`run` owns the connections; `call` and `begin` may be used while it runs."""

    def __init__(self, parts: LineParts) -> None:
        """Connect to nobody yet."""
        self._parts = parts
        self._lines: dict[Member, _Line] = {}
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Serve connections until cancelled; what is under way then is `PeerUnreachable`."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                try:
                    await asyncio.Event().wait()
                finally:
                    self._tasks = None  # before the group takes no task any more (INV-ALL3)
        finally:
            lines, self._lines = self._lines, {}
            for line in lines.values():
                if line.client is not None:
                    line.client.close()

    async def call(
        self, member: Member, message: PeerMessage, answer_type: type[AnyMessage]
    ) -> AnyMessage:
        """Ask a member; raises `PeerRefused`, `PeerUnreachable` (INV-ALL1)."""
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                client = await self._connected(member)
                return await client.call(message, answer_type)
        except TimeoutError as error:
            self._give_up(member)
            reason = f"node {member} did not answer within {ANSWER_TIMEOUT_S:.0f} s"
            raise PeerUnreachable(reason, sent=True) from error

    def begin(
        self,
        member: Member,
        message: PeerMessage,
        answer_type: type[AnyMessage],
        done: Callable[[AnyMessage | PeerRefused | PeerUnreachable], None],
    ) -> None:
        """As `call`, without a task of the caller's: `done` is called once, later."""
        if self._tasks is None:
            failure = PeerUnreachable("this node does not speak to others now", sent=False)
            asyncio.get_running_loop().call_soon(done, failure)
            return
        task = self._spawn(self._call_for(member, message, answer_type))
        task.add_done_callback(lambda ended: done(_told(ended)))

    async def _call_for(
        self, member: Member, message: PeerMessage, answer_type: type[AnyMessage]
    ) -> AnyMessage | PeerRefused | PeerUnreachable:
        try:
            return await self.call(member, message, answer_type)
        except (PeerRefused, PeerUnreachable) as error:
            return error

    async def _connected(self, member: Member) -> NodeClient:
        line = self._lines.setdefault(member, _Line())
        async with line.connecting:
            if line.client is None or line.client.ended is not None:
                line.client = await self._connect(member)
            return line.client

    async def _connect(self, member: Member) -> NodeClient:
        parts = self._parts
        address = parts.where(member)
        if address is None:
            raise PeerUnreachable(f"nobody knows where node {member} is", sent=False)
        client = await NodeClient.connect(parts.network, address)
        if self._tasks is None:
            client.close()
            raise PeerUnreachable("this node speaks to others no more", sent=False)
        _ = self._spawn(client.run())
        try:
            await client.handshake(StandingTowards(parts.standing, member), LEADING)
        except BaseException as error:
            client.close()
            if isinstance(error, PeerRefused):
                parts.note_refusal(error)
            raise
        return client

    def _give_up(self, member: Member) -> None:
        line = self._lines.get(member)
        if line is not None and line.client is not None:
            line.client.close()

    def _spawn(self, work: Coroutine[None, None, Result]) -> asyncio.Task[Result]:
        assert self._tasks is not None
        return self._tasks.create_task(work)


def _told(ended: asyncio.Task[Result]) -> Result | PeerUnreachable:
    """Return what a call came to, also of one that was cancelled before it began (INV-ALL3)."""
    if ended.cancelled() or ended.exception() is not None:
        return PeerUnreachable("this node speaks to others no more", sent=True)
    return ended.result()
