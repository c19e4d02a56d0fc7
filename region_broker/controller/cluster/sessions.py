"""Who is heard: sessions of the nodes that the metadata name, as the quorum's leader sees them.

INV-CS1  a node is fenced for silence only after a whole session time-out under this leader of the quorum, counted in time during which
         this one looked; for a reset connection after the grace, unless it was heard again
         It is judged when the controller looks, behind what has arrived: a heartbeat that waited behind another one counts
INV-CS2  only what is heard from the registered life counts, and only a node that is heard is unfenced
INV-CS3  a node that flaps waits before it is unfenced: longer each time, and never longer than the limit; one that is awaited to lead
         does not wait
There is one session for each registered node, whatever peers say. Not here: the clock, what is proposed (`core`).
"""

from dataclasses import dataclass
from uuid import UUID

from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.group_rows import groups_of
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member


@dataclass(slots=True)
class _Session:
    """One life of a node. `heard_ms`: when it was last heard, or was given a session; `lost_ms`: when its connection was reset."""

    life: UUID
    heard_ms: int
    is_heard: bool = False
    opens_logs: bool = False
    is_silent: bool = False
    lost_ms: int | None = None


@dataclass(slots=True)
class _Flaps:
    """How often a node was fenced, and since when it is what it is now (ms)."""

    count: int
    since_ms: int


class Sessions:
    """The sessions under one leader of the quorum."""

    def __init__(self, settings: ControllerSettings, image: MetadataImage, now_ms: int) -> None:
        """Give each node of `image` a whole session."""
        self._settings = settings
        self._sessions: dict[int, _Session] = {}
        self._flaps: dict[int, _Flaps] = {}
        self._fenced: dict[int, bool] = {}
        self._image = image
        self.follow(image, now_ms)

    def follow(self, image: MetadataImage, now_ms: int) -> None:
        """Take the nodes of `image`: a new life has a session of its own, who is gone has none."""
        self._image = image
        for node in image.nodes.values():
            session = self._sessions.get(node.node_id)
            if session is None or session.life != node.life:
                self._sessions[node.node_id] = _Session(node.life, now_ms)
            self._count_flap(node, now_ms)
        for gone in self._sessions.keys() - image.nodes.keys():
            del self._sessions[gone]
            del self._fenced[gone]
            self._flaps.pop(gone, None)

    def _count_flap(self, node: NodeImage, now_ms: int) -> None:
        was_fenced, flaps = self._fenced.get(node.node_id), self._flaps.get(node.node_id)
        self._fenced[node.node_id] = node.fenced
        if was_fenced is None or was_fenced == node.fenced:
            return
        if node.fenced:
            stayed_ms = 0 if flaps is None else now_ms - flaps.since_ms
            is_new = flaps is None or stayed_ms >= self._settings.forgiven_after_ms
            self._flaps[node.node_id] = _Flaps(
                1 if flaps is None or is_new else flaps.count + 1, now_ms
            )
        elif flaps is not None:
            flaps.since_ms = now_ms

    def heard(self, member: Member, life: UUID, now_ms: int, *, opens_logs: bool = False) -> None:
        """Note that the process was heard."""
        session = self._session_of(member, life)
        if session is not None:
            session.heard_ms, session.is_heard = now_ms, True
            session.opens_logs = opens_logs
            session.lost_ms, session.is_silent = None, False

    def lost(self, member: Member, life: UUID, now_ms: int) -> None:
        """Note that a connection of the process was reset."""
        session = self._session_of(member, life)
        if session is not None and session.lost_ms is None:
            session.lost_ms = now_ms

    def _session_of(self, member: Member, life: UUID) -> _Session | None:
        node = self._image.node_of(member)
        return self._sessions[member.node_id] if node is not None and node.life == life else None

    def opening(self) -> frozenset[int]:
        """Return the ids of the nodes that said last that they are about to open their logs (INV-CV4)."""
        return frozenset(node_id for node_id, each in self._sessions.items() if each.opens_logs)

    def look(self, now_ms: int) -> None:
        """Judge who is silent (INV-CS1)."""
        for session in self._sessions.values():
            session.is_silent = self._is_silent(session, now_ms)

    def silent(self) -> list[NodeImage]:
        """Return who is to be fenced, by node id."""
        return [
            node
            for _, node in sorted(self._image.nodes.items())
            if not node.fenced and self._sessions[node.node_id].is_silent
        ]

    def _is_silent(self, session: _Session, now_ms: int) -> bool:
        if now_ms - session.heard_ms >= self._settings.session_timeout_ms:
            return True
        return (
            session.lost_ms is not None
            and now_ms - session.lost_ms >= self._settings.reset_grace_ms
        )

    def returned(self, now_ms: int) -> list[NodeImage]:
        """Return who is to be unfenced (INV-CS2, INV-CS3), by node id."""
        return [
            node
            for _, node in sorted(self._image.nodes.items())
            if node.fenced
            and self._is_there(self._sessions[node.node_id], now_ms)
            and (self._is_awaited(node) or now_ms >= self._may_return_ms(node))
        ]

    def _is_there(self, session: _Session, now_ms: int) -> bool:
        return session.is_heard and session.lost_ms is None and not self._is_silent(session, now_ms)

    def _is_awaited(self, node: NodeImage) -> bool:
        return any(
            row.leader is None and node.member in row.in_sync
            for row in groups_of(self._image).values()
        )

    def _may_return_ms(self, node: NodeImage) -> int:
        flaps = self._flaps.get(node.node_id)
        if flaps is None or flaps.count < 2:
            return 0
        longest = self._settings.unfence_pause_max_ms
        doublings = min(flaps.count - 2, longest.bit_length())
        return flaps.since_ms + min(self._settings.unfence_pause_ms << doublings, longest)
