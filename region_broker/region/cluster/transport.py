"""Raft's messages between the nodes of a region, over the peer port: one outgoing connection for each other member.

INV-CLT1  `send` never waits; what cannot be sent is lost
INV-CLT2  a message that arrives is credited to the member whose handshake its connection made, and goes to the group that
          it names; one for a group that is not here, or that is no message, ends its connection and nothing else
INV-CLT3  there are lines to members that have an address, `LINES_MAX` at most: nobody makes this node connect anywhere by
          naming members
INV-CLT4  a member has one connection of this kind to here, its newest; while that stands, another start of the same member is refused: two
          processes run on copies of one folder, or the former one's end is not noticed yet (INV-PS9)

What one member says to another travels on the connection that the former made; the other direction has one of its own.
Not here: what Raft does with it (`controller.raft`), who is alive (a `Watcher`), addresses (`address_of`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final
from uuid import UUID

from region_broker.controller.raft.effects import Message, Received
from region_broker.controller.raft.entries import MEMBERS_MAX, Member
from region_broker.region.cluster.member_line import SAID_MAX, LineParts, MemberLine
from region_broker.region.cluster.raft_messages import (
    GROUP_NAME_BYTES_MAX,
    RaftNotice,
    decode_raft_message,
)
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import RAFT, REPLICA, Probe, Probed
from region_broker.region.peers.protocol import (
    RUNS_ELSEWHERE,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import NodeDoor, NodeSession

LINES_MAX: Final = 2 * MEMBERS_MAX
SEEK_PAUSE_MS: Final = 500
ANY_FOLDER: Final = UUID(int=0)
"""Where a node is met does not depend on whose folder it has."""
_log: Final = logging.getLogger("tidemark.cluster")


class GroupTransport:
    """The `Transport` of one Raft group."""

    def __init__(self, transport: "PeerTransport", name: str) -> None:
        """Use `PeerTransport.group`."""
        self._transport = transport
        self._name = name
        self._receive: Callable[[Received], None] | None = None

    def send(self, target: Member, message: Message) -> None:
        """See `Transport` (INV-CLT1)."""
        self._transport.send(self._name, target, message)

    def send_to_node(self, node_id: int, message: Message) -> None:
        """See `Transport` (INV-CLT1); until it is known whose folder the node has, that is asked, and the message is lost."""
        self._transport.send_to_node(self._name, node_id, message)

    def deliver_to(self, receive: Callable[[Received], None]) -> None:
        """Hand what arrives to `receive`, a `RaftGroup.request_handler`; until then it is lost."""
        self._receive = receive

    def take(self, received: Received) -> None:
        """Take what arrived."""
        if self._receive is not None:
            self._receive(received)


class PeerTransport:
    """All connections with the other nodes of the region. `run` is the only owner of its tasks."""

    def __init__(self, parts: LineParts) -> None:
        """Begin without a connection."""
        self._parts = parts
        self._groups: dict[str, GroupTransport] = {}
        self._lines: dict[Member, MemberLine] = {}
        self._not_begun: deque[MemberLine] = deque()
        self._line_waits = asyncio.Event()
        self._is_full = False
        self._sessions: dict[Member, NodeSession] = {}
        self._met: dict[int, Member] = {}
        self._of_a_region: set[int] = set()
        """The nodes that answered last, of those that are sought, and know of their region's metadata."""
        self._seeking: set[int] = set()
        self._told_not_met: dict[int, str] = {}
        """Why nodes are not met, as the log was told; it is told once for each reason."""
        self._to_seek: deque[int] = deque()

    def serve_on(self, server: PeerServer) -> None:
        """Let nodes of this region in at the peer port; call it before the port is bound."""
        assert server.node_door is None, "a node has one transport"
        door = NodeDoor(self._parts.standing, self._on_session)
        door.handlers_for(RAFT).register_notice(RaftNotice, self._on_notice)
        door.handlers_for(RAFT).register(Probe, self._on_probe)
        server.node_door = door

    def group(self, name: str) -> GroupTransport:
        """Return the transport of the group `name`, which is called so on all nodes."""
        assert name not in self._groups, f"group {name} has a transport already"
        assert 0 < len(name.encode()) <= GROUP_NAME_BYTES_MAX, name
        return self._groups.setdefault(name, GroupTransport(self, name))

    async def run(self) -> None:
        """Connect and send until cancelled; a second call begins anew."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._line_waits.wait()
                    self._line_waits.clear()
                    while self._not_begun:
                        tasks.create_task(self._keep(self._not_begun.popleft()))
                    while self._to_seek:
                        tasks.create_task(self._seek(self._to_seek.popleft()))
        finally:
            self._lines.clear()
            self._not_begun.clear()
            self._seeking.clear()
            self._to_seek.clear()

    async def _keep(self, line: MemberLine) -> None:
        await line.run()
        # In the step in which it ended: what is sent now makes another one.
        del self._lines[line.target]

    def life_of(self, member: Member) -> UUID | None:
        """Return the life that a member's connection to here named; None without one."""
        session = self._sessions.get(member)
        return None if session is None else session.life

    def opens_logs(self, member: Member) -> bool:
        """Return whether a member that has a connection to here said last that it is about to open its logs."""
        session = self._sessions.get(member)
        return session is not None and session.opens_logs

    def send(self, group: str, target: Member, message: Message) -> None:
        """Send a message of a group to a member, or lose it (INV-CLT1)."""
        line = self._lines.get(target) or self._new_line(target)
        if line is not None:
            line.send(group, message)

    def send_to_node(self, group: str, node_id: int, message: Message) -> None:
        """Send a message of a group to whatever member a node is; while nobody knows that, lose it. It is asked again and again."""
        member = self._met.get(node_id)
        if member is not None:
            self.send(group, member, message)
        if node_id not in self._seeking:
            self._seeking.add(node_id)
            self._to_seek.append(node_id)
            self._line_waits.set()

    async def _seek(self, node_id: int) -> None:
        """Ask a node whose folder it has; not again within `SEEK_PAUSE_MS`."""
        address = self._parts.address_of(Member(node_id, ANY_FOLDER))
        if address is not None:
            try:
                client = await NodeClient.connect(self._parts.network, address)
            except PeerUnreachable as error:
                self._tell_not_met(node_id, str(error))
            else:
                await self._meet(node_id, client)
        await self._parts.clock.sleep_ms(SEEK_PAUSE_MS)
        self._seeking.discard(node_id)

    async def _meet(self, node_id: int, client: NodeClient) -> None:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(client.run())
            try:
                theirs = await client.handshake(self._parts.standing, REPLICA)
                self._met[node_id] = theirs.member
                if theirs.finalized_level is not None:
                    self._of_a_region.add(node_id)
                if self._told_not_met.pop(node_id, None) is not None:
                    _log.info("node %d is met", node_id)
            except (PeerUnreachable, PeerRefused) as error:
                self._parts.note_refusal(error)
                self._tell_not_met(node_id, str(error))
            finally:
                client.close()
                reading.cancel()

    def met(self) -> list[int]:
        """Return which nodes answer, of those that are sought, and are part of a region that is not new."""
        return sorted(self._of_a_region)

    def _tell_not_met(self, node_id: int, why: str) -> None:
        self._of_a_region.discard(node_id)
        if self._told_not_met.get(node_id) != why:
            self._told_not_met[node_id] = why
            # What the other side says is not trusted to be one line.
            _log.info("node %d is not met yet: %r", node_id, why[:SAID_MAX])

    def _new_line(self, target: Member) -> MemberLine | None:
        if self._parts.where(target) is None:
            return None  # INV-CLT3
        if len(self._lines) >= LINES_MAX:
            if not self._is_full:
                self._is_full = True
                _log.warning("more than %d members are to be sent to: %s is not", LINES_MAX, target)
            return None
        line = self._lines[target] = MemberLine(target, self._parts)
        self._not_begun.append(line)
        self._line_waits.set()
        return line

    # -- what comes in ---------------------------------------------------------------------------

    def _on_session(self, session: NodeSession) -> None:
        """Take a member's connection in place of its former one (INV-CLT4)."""
        member = session.member
        former = self._sessions.get(member)
        if former is not None and former.life != session.life:
            raise PeerRefused(
                RUNS_ELSEWHERE,
                f"another process is connected as node {member} from {former.peer_address}: end one of the two",
            )
        self._sessions[member] = session
        self._met[member.node_id] = member
        session.on_close(lambda: self._on_end(session))
        if former is not None:
            former.cut_off()
        self._parts.watcher.on_heard(member)
        line = self._lines.get(member)
        if line is not None:
            line.note_there()

    def _on_end(self, session: NodeSession) -> None:
        if self._sessions.get(session.member) is session:
            del self._sessions[session.member]
            self._parts.watcher.on_lost(session.member)

    def _on_notice(self, session: NodeSession, notice: RaftNotice, attachment: memoryview) -> None:
        """Take a message of Raft (INV-CLT2)."""
        group = self._groups.get(notice.group)
        if group is None:
            raise PeerProtocolError(f"no group {notice.group[:GROUP_NAME_BYTES_MAX]!r} is here")
        self._expect_member(session)
        message = decode_raft_message(attachment)
        self._parts.watcher.on_heard(session.member)
        group.take(Received(session.member, message))

    async def _on_probe(
        self, session: NodeSession, probe: Probe, _attachment: memoryview
    ) -> Probed:
        self._expect_member(session)
        session.opens_logs = probe.opens_logs
        self._parts.watcher.on_heard(session.member)
        self._parts.on_damage(session.member, probe.damaged)
        return Probed(damaged=self._parts.standing.is_damaged())

    def _expect_member(self, session: NodeSession) -> None:
        """Raise `PeerProtocolError` for a member that was removed, or replaced, since it came in: it hears why as it comes again."""
        if self._parts.standing.is_gone(session.member):
            raise PeerProtocolError(
                f"the region goes on without the folder of node {session.member}"
            )
