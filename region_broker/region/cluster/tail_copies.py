"""Quarantined tails on every node of the region: each node asks the others what they have cut off, and keeps what it lacks.

INV-TLC1 a node that runs has, in the end, every tail that another one has which runs: it asks when the nodes or the lineage change,
         again for as long as one does not answer or cannot be kept, and else every `LOOK_AGAIN_MS`
INV-TLC2 a copy counts as held when it is whole and durable here (INV-QS5); until then its node is outstanding
INV-TLC3 a node that has not cut all its logs by the lineage of the moment, because it is about to or one of them has stopped, is outstanding:
         what it will cut off is in no list yet
INV-TLC4 a disk that is nearly full takes no copies: writes go first
INV-TLC5 what another node names chooses no folder: only domains of the image, and tails of this region, are kept; only what is in the
         store's own list is sent
INV-TLC6 a loss is counted exactly only while fewer folders are outstanding than hold each record that acks=all has answered: then one that
         holds it is not outstanding. A folder that is gone for good (its node was removed, or came back with another one) counts among them, unless
         it was compared with: what it alone had cut off, or would have, nobody can tell any more. When it went is not known, so one that
         went before the takeover counts, too
INV-TLC7 a log that was put aside with what a takeover has made void (INV-T10) is in no list, and nothing is taken out of it by itself, as its disk
         has failed: its node is outstanding, to the others as to itself, until people have taken out of it what they want, and removed it

A tail is cut off by each node from its own logs. Who was away while the region still took writes has none of it, and may lead later: it
could not say what was lost, and were the disks of the others lost, nobody could. Tails are sent in pieces, and checked by their CRC.
Who is in sync is not asked for tails: a quarantine without room is to cost no writes.
Not here: cutting (`region.failover.log_surgery`), where tails lie (`region.failover.quarantine_store`), statements (`statement_copies`).
"""

import asyncio
import hashlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol
from uuid import UUID

import msgspec

from geo_replicator.quarantine import (
    CopyDamaged,
    CutCause,
    Provenance,
    QuarantineKey,
    TailIdentity,
)
from idempotency.identity import Member, RegionEpoch
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_image import MetadataImage
from region_broker.limits import MIB, TAILS_MAX
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.node_asking import ask_node, wait_until
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import STATEMENTS
from region_broker.region.peers.protocol import PEER_FRAME_BYTES_MAX, PeerMessage, PeerRefused
from region_broker.region.peers.sessions import Handlers, NodeSession, Reply

PIECE_BYTES: Final = 1 * MIB
"""Read and written on the event loop: as much as a chunk of the quarantine."""
assert PIECE_BYTES < PEER_FRAME_BYTES_MAX
NAMED_MAX: Final = 1_000
"""Tails in one piece of a list."""
ANSWER_TIMEOUT_S: Final = 10.0
AGAIN_MS: Final = 1_000
TROUBLE_AGAIN_MS: Final = 10_000
"""A tail that is damaged there, or has no room here: it is not sent each second for nothing."""
LOOK_AGAIN_MS: Final = 60_000
"""A log may be cut without a change that all hear of: one that has parted from its primary's."""

UNCUT: Final = "damaged logs were put aside that may hold what was lost, and nothing of them is listed (docs/runbooks/damaged_log.md)"
UNCUT_NAMED_MAX: Final = 10
GONE_REMOVED: Final = "it was removed, and what it alone had cannot be told any more"
GONE_REPLACED: Final = "it came back with another data folder, and what the former one alone had cannot be told any more"

_log: Final = logging.getLogger("tidemark.failover")


class AskTails(PeerMessage, frozen=True, kw_only=True):
    """Name the tails that are kept there, from one on; none where `known_digest` is that of all."""

    known_digest: str
    from_index: int


class TailList(PeerMessage, frozen=True, kw_only=True):
    """A piece of the list, as JSON in the attachment; `digest` and `tail_count` are of the whole.

    `cut_by`: the digest of the lineage that its node has cut its logs by.
    """

    digest: str
    tail_count: int
    cut_by: int


class AskTailPiece(PeerMessage, frozen=True, kw_only=True):
    """Send a tail, by its identity, from a byte on."""

    domain: str
    topic_id: UUID
    partition: int
    lineage_epoch: RegionEpoch
    first_offset: int
    last_offset: int
    cause: CutCause
    byte_count: int
    crc32c: int
    from_byte: int

    @classmethod
    def of(cls, tail: TailIdentity, from_byte: int) -> "AskTailPiece":
        """Ask for a piece of that tail."""
        key, cause, byte_count, crc = tail
        return cls(**key._asdict(), cause=cause, byte_count=byte_count, crc32c=crc, from_byte=from_byte)  # fmt: skip

    @property
    def identity(self) -> TailIdentity:
        """Return which tail it asks for."""
        key = QuarantineKey(
            self.domain, self.topic_id, self.partition, self.lineage_epoch, self.first_offset, self.last_offset
        )  # fmt: skip
        return TailIdentity(key, self.cause, self.byte_count, self.crc32c)


class TailPiece(PeerMessage, frozen=True, kw_only=True):
    """A piece, in the attachment; `there` is False where that node has no such tail (any more)."""

    there: bool


class TailStore(Protocol):
    """`failover.quarantine_store.QuarantineStore`."""

    async def kept(self) -> Mapping[TailIdentity, Provenance]:
        """Return the tails that are here; OSError."""
        ...

    async def has(self, tail: Provenance) -> bool:
        """Return whether the tail is here, by itself or within a longer one; OSError."""
        ...

    async def piece(self, identity: TailIdentity, from_byte: int, size_bytes: int) -> bytes | None:
        """Return a piece of a tail, None where it is not here; OSError."""
        ...

    async def keep_copy(self, tail: Provenance, pieces: AsyncIterator[bytes]) -> None:
        """Store it durably; raises `CopyDamaged`, OSError, and what `pieces` raises."""
        ...


class Outstanding(NamedTuple):
    """A node of which it is not certain that all it has cut off is here, and why."""

    node_id: int
    reason: str


class Elsewhere(NamedTuple):
    """What other nodes of the region may have cut off that is not here."""

    outstanding: tuple[Outstanding, ...] = ()
    may_hold_more: bool = False
    """A record that was acknowledged with acks=all may be among it (INV-TLC6)."""


class _NotYet(Exception):
    """What keeps this node from having all of the other's tails, and soon may not."""


class _Trouble(Exception):
    """What keeps this node from having a tail, and will for a while."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCopiesParts:
    """What it is joined with.

    `cut_by`: the digest of the lineage that this node has cut all its logs by; `lineage`: of the one in the image. `no_room` says why
    nothing is to be written to this disk, None where it may. `acknowledged_on`: on how many nodes each record is, at the least, that
    acks=all has answered.
    """

    me: Member
    region: str
    image: Callable[[], MetadataImage]
    store: TailStore
    line: LineParts
    cut_by: Callable[[], int]
    lineage: Callable[[], int]
    no_room: Callable[[], str | None]
    acknowledged_on: Callable[[], int]
    aside_uncut: Callable[[], Sequence[str]] = tuple
    """The logs of this node that were put aside before they were cut, by folder."""


class TailCopies:
    """`serve_on` before the port is bound, `take_image` hears of each image, `run` is its only task."""

    def __init__(self, parts: TailCopiesParts) -> None:
        """Nobody was asked yet."""
        self._parts = parts
        self._changed = asyncio.Event()
        self._followed: object = None
        self._listed: tuple[int, str, Sequence[Provenance]] | None = None
        self._digests: dict[Member, str] = {}
        self._compared: dict[Member, tuple[UUID, int]] = {}
        self._why: dict[Member, str] = {}

    def elsewhere(self) -> Elsewhere:
        """Return which nodes may have cut off what is not here (INV-TLC2, INV-TLC3)."""
        lineage = self._parts.lineage()
        if not any(domain.lineage for domain in self._parts.image().domains.values()):
            return Elsewhere()  # nobody ever took over
        outstanding = tuple(
            Outstanding(
                node.node_id,
                "it is not heard"
                if node.fenced
                else self._why.get(node.member, "it is being asked"),
            )
            for node in self._others()
            if self._compared.get(node.member) != (node.life, lineage)
        )
        if uncut := self._parts.aside_uncut():  # INV-TLC7
            reason = f"{UNCUT}: {', '.join(uncut[:UNCUT_NAMED_MAX])}"
            outstanding = (Outstanding(self._parts.me.node_id, reason), *outstanding)
        gone = self._gone(lineage)
        may_hold_more = len(outstanding) + len(gone) >= self._parts.acknowledged_on()
        return Elsewhere((*outstanding, *gone) if may_hold_more else outstanding, may_hold_more)

    def _gone(self, lineage: int) -> tuple[Outstanding, ...]:
        """Return the folders that no node has any more, as far as they are remembered (INV-TLC6)."""
        image = self._parts.image()
        present = {node.incarnation for node in image.nodes.values()}
        compared = {
            member.incarnation for member, (_, by) in self._compared.items() if by == lineage
        }
        return tuple(
            Outstanding(folder.node_id, GONE_REMOVED if folder.removed else GONE_REPLACED)
            for incarnation, folder in sorted(image.folders.items(), key=lambda row: row[1].node_id)
            if incarnation not in present and incarnation not in compared
        )

    def _others(self) -> list[NodeImage]:
        nodes = self._parts.image().nodes
        return [nodes[at] for at in sorted(nodes) if nodes[at].member != self._parts.me]

    # -- answering -------------------------------------------------------------------------------

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Serve what this node's store has."""
        handlers.register(AskTails, self._on_ask)
        handlers.register(AskTailPiece, self._on_ask_piece)

    async def _on_ask(
        self, _session: NodeSession, message: AskTails, _attachment: memoryview
    ) -> Reply:
        cut_by = (
            self._parts.cut_by()
        )  # before the list: what is cut off meanwhile is in it, or is asked for again
        try:
            digest, tails = await self._list()
        except OSError as error:
            raise PeerRefused("unreadable", str(error)) from error
        answer = TailList(digest=digest, tail_count=len(tails), cut_by=cut_by)
        if message.known_digest == digest:
            return Reply(answer)
        start = max(message.from_index, 0)
        return Reply(answer, [msgspec.json.encode(tails[start : start + NAMED_MAX])])

    async def _list(self) -> tuple[str, Sequence[Provenance]]:
        kept = await self._parts.store.kept()
        if self._listed is None or self._listed[0] != len(kept):
            tails = [kept[identity] for identity in sorted(kept)]
            named = hashlib.sha256(repr([tail.identity for tail in tails]).encode())
            self._listed = len(kept), named.hexdigest(), tails
        return self._listed[1:]

    async def _on_ask_piece(
        self, _session: NodeSession, message: AskTailPiece, _attachment: memoryview
    ) -> Reply:
        start = max(message.from_byte, 0)
        try:
            piece = await self._parts.store.piece(message.identity, start, PIECE_BYTES)
        except OSError as error:
            raise PeerRefused("unreadable", str(error)) from error
        if piece is None:
            self._listed = None
            return Reply(TailPiece(there=False))
        return Reply(TailPiece(there=True), [piece])

    # -- asking ----------------------------------------------------------------------------------

    def take_image(self, image: MetadataImage) -> None:
        """Hear of an image: other nodes, or another lineage, have all asked again."""
        nodes = tuple((node.member, node.life, node.fenced) for node in image.nodes.values())
        followed = nodes, tuple(domain.lineage for domain in image.domains.values())
        if followed != self._followed:
            self._followed = followed
            self._changed.set()

    async def run(self) -> None:
        """Ask the others, until cancelled."""
        while True:
            self._changed.clear()
            pause_ms = await self._look()
            await wait_until(self._changed, self._parts.line.clock, pause_ms)

    async def _look(self) -> int:
        """Ask every node that is heard; return after how long to ask again."""
        pause_ms = LOOK_AGAIN_MS
        for node in self._others():
            if node.fenced:
                continue  # once it is heard, the image says so
            ask = partial(self._compare, node, self._parts.lineage())
            failure = await ask_node(self._parts.line, node.member, STATEMENTS, ask)
            self._note(node, failure)
            if failure is not None:
                has_trouble = isinstance(failure, _Trouble)
                pause_ms = min(pause_ms, TROUBLE_AGAIN_MS if has_trouble else AGAIN_MS)
        return pause_ms

    def _note(self, node: NodeImage, failure: Exception | None) -> None:
        why = "" if failure is None else (str(failure) or repr(failure))[:300]
        if why and why != self._why.get(node.member):
            # A node that starts, or is of an older version, does not answer yet: no trouble.
            level = logging.WARNING if isinstance(failure, _Trouble) else logging.INFO
            _log.log(level, "what node %d has cut off is not all here yet: %s", node.node_id, why)
        self._why[node.member] = why

    async def _compare(self, node: NodeImage, lineage: int, client: NodeClient) -> Exception | None:
        """Keep what this node lacks, and take note that it has all of the other's; return why it has not."""
        try:
            answer, tails = await _listed(client, self._digests.get(node.member, ""))
            await self._copy_lacking(client, tails)
        except (_NotYet, _Trouble) as error:
            return error
        self._digests[node.member] = answer.digest
        if answer.cut_by != lineage:
            return _NotYet(
                "it has not cut all its logs by the newest takeover yet, or has put one aside uncut (docs/runbooks/damaged_log.md)"
            )
        self._compared[node.member] = node.life, lineage
        return None

    async def _copy_lacking(self, client: NodeClient, tails: Sequence[Provenance]) -> None:
        """Keep what is not here; one that cannot be keeps no other one back."""
        trouble: _Trouble | None = None
        for tail in tails:
            try:
                await self._copy(client, tail)
            except _Trouble as error:
                trouble = error
            await asyncio.sleep(0)
        if trouble is not None:
            raise trouble

    async def _copy(self, client: NodeClient, tail: Provenance) -> None:
        domains = self._parts.image().domains
        if tail.domain not in domains or tail.region != self._parts.region:  # INV-TLC5
            raise _Trouble(f"it names a tail of domain {tail.domain} and region {tail.region}")
        store, named = self._parts.store, f"{tail.topic}-{tail.partition} from {tail.first_offset}"
        try:
            if await store.has(tail):
                return
            async with aclosing(self._pieces(client, tail.identity)) as pieces:
                await store.keep_copy(tail, pieces)
        except TimeoutError:
            raise
        except (CopyDamaged, OSError) as error:
            raise _Trouble(f"{named} cannot be kept here: {error}") from error
        _log.info("what was cut off of %s is kept here, too", named)

    async def _pieces(self, client: NodeClient, tail: TailIdentity) -> AsyncGenerator[bytes, None]:
        position = 0
        while position < tail.byte_count:
            if (why := self._parts.no_room()) is not None:  # INV-TLC4
                raise _Trouble(f"nothing is copied to this disk: {why}")
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                answer, piece = await client.begin(AskTailPiece.of(tail, position), TailPiece)
            if not answer.there:
                raise _NotYet("a tail is not there any more: an operator may have taken it away")
            if not 0 < len(piece) <= tail.byte_count - position:
                raise _Trouble(f"a tail of {tail.byte_count} bytes ends there at byte {position}")
            position += len(piece)
            yield bytes(piece)


async def _listed(client: NodeClient, known_digest: str) -> tuple[TailList, list[Provenance]]:
    """Return the other node's list, empty where its digest is the one that is known."""
    tails: list[Provenance] = []
    first: TailList | None = None
    while first is None or len(tails) < first.tail_count:
        ask = AskTails(known_digest=known_digest, from_index=len(tails))
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer, piece = await client.begin(ask, TailList)
        if answer.digest == known_digest:
            return answer, []
        if first is not None and answer.digest != first.digest:
            raise _NotYet("it has cut off more meanwhile")
        if answer.tail_count > TAILS_MAX:
            raise _Trouble(f"it names {answer.tail_count} tails, more than {TAILS_MAX}")
        first = answer if first is None else first
        more = _decoded(piece)
        if not more and first.tail_count:
            raise _Trouble(f"its list ends after {len(tails)} of {first.tail_count} tails")
        tails += more
    return first, tails


def _decoded(piece: memoryview) -> list[Provenance]:
    try:
        return msgspec.json.decode(piece, type=list[Provenance])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _Trouble(f"its list is not readable: {error}") from error
