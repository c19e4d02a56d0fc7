"""Loss statements on every node of the region: who lacks one of the lineage asks the others for it.

INV-LSC1 a node that runs has, in the end, every statement that the leader has of the lineage in its image: it asks when it begins to
         follow and when the lineage changes, and again for as long as the leader does not answer
INV-LSC2 what is kept is the statement that was asked for, whole, and of the base that the lineage names; what is there is never
         written over (INV-QS2), but one of another base: who stated it died before the base was chosen
INV-LSC3 only domains of the image are looked for on the disk, whatever another node asks
INV-LSC4 who leads, and lacks one, asks the other nodes: the one that led the takeover may have died before anybody copied it

A statement is written on the disk of the node that leads a takeover, before the base is chosen. Were that disk lost, the region could not
name any more what the takeover has lost. It is sent in pieces: it names each log that the takeover touched.
Not here: what a statement says (`geo_replicator.loss`), where it lies (`region.failover.quarantine_store`), tails
(`tail_copies`).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol

import msgspec

from geo_replicator.lineage import TidemarkPoint
from geo_replicator.loss import LossStatement
from idempotency.identity import Member, RegionEpoch
from region_broker.controller.metadata_image import MetadataImage
from region_broker.limits import MIB, STATEMENT_BYTES_MAX
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.node_asking import ask_node, wait_until
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import STATEMENTS
from region_broker.region.peers.protocol import (
    PEER_FRAME_BYTES_MAX,
    PeerMessage,
    PeerRefused,
)
from region_broker.region.peers.sessions import Handlers, NodeSession, Reply

PIECE_BYTES: Final = 4 * MIB
assert PIECE_BYTES * 2 < PEER_FRAME_BYTES_MAX
ANSWER_TIMEOUT_S: Final = 10.0
AGAIN_MS: Final = 1_000
NOT_THERE_AGAIN_MS: Final = 60_000
"""Who has it may come back, or never: a takeover of an older version, a disk that is gone."""

_log: Final = logging.getLogger("tidemark.failover")


class AskStatementPiece(PeerMessage, frozen=True, kw_only=True):
    """Send the loss statement made before acting under `region_epoch`, from a byte on."""

    domain: str
    region_epoch: RegionEpoch
    from_byte: int


class StatementPiece(PeerMessage, frozen=True, kw_only=True):
    """A piece of its JSON, in the attachment; `size_bytes` is that of the whole, -1 where there is none."""

    size_bytes: int


class StatementStore(Protocol):
    """`failover.quarantine_store.QuarantineStore`."""

    def statement_bytes(self, domain: str, region_epoch: RegionEpoch) -> bytes | None:
        """Return the statement's file, None where there is none; OSError."""
        ...

    def keep_statement(self, statement: LossStatement) -> None:
        """Store it durably; one that is there stays. OSError."""
        ...


class Named(NamedTuple):
    """Which statement; `base`: of the takeover's entry."""

    domain: str
    region_epoch: RegionEpoch
    base: TidemarkPoint


class _CannotBe(Exception):
    """The other node sent what is no such statement: why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementCopiesParts:
    """What it is joined with."""

    me: Member
    image: Callable[[], MetadataImage]
    store: StatementStore
    line: LineParts


class StatementCopies:
    """`serve_on` before the port is bound, `take_image` hears of each image, `run` is its only task."""

    def __init__(self, parts: StatementCopiesParts) -> None:
        """Nothing was looked for yet."""
        self._parts = parts
        self._changed = asyncio.Event()
        self._followed: tuple[Member | None, tuple[Named, ...]] | None = None
        self._kept: set[Named] = set()
        self._said = ""

    # -- answering -------------------------------------------------------------------------------

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Serve what this node's store has."""
        handlers.register(AskStatementPiece, self._on_ask)

    async def _on_ask(
        self, _session: NodeSession, message: AskStatementPiece, _attachment: memoryview
    ) -> Reply:
        data = None
        if message.domain in self._parts.image().domains:  # INV-LSC3
            try:
                data = self._parts.store.statement_bytes(message.domain, message.region_epoch)
            except OSError as error:
                raise PeerRefused("unreadable", str(error)) from error
        if data is None:
            return Reply(StatementPiece(size_bytes=-1))
        start = max(message.from_byte, 0)
        piece = memoryview(data)[start : start + PIECE_BYTES]
        return Reply(StatementPiece(size_bytes=len(data)), [piece])

    # -- asking ----------------------------------------------------------------------------------

    def take_image(self, image: MetadataImage) -> None:
        """Hear of an image: another leader, or another lineage, has all looked at again."""
        leader = None if image.leadership is None else image.leadership.leader
        followed = leader, _named(image)
        if followed != self._followed:
            self._followed = followed
            self._changed.set()

    async def run(self) -> None:
        """Look for what is lacking, until cancelled."""
        while True:
            self._changed.clear()
            pause_ms = await self._look()
            if pause_ms is None:
                await self._changed.wait()
            else:
                await wait_until(self._changed, self._parts.line.clock, pause_ms)

    async def _look(self) -> int | None:
        """Ask for what is lacking; return after how long to look again, None where only news can help."""
        try:
            pause_ms = NOT_THERE_AGAIN_MS
            for member in self._asked():
                lacking = self._lacking()
                if not lacking:
                    break
                copying = partial(self._copy_each, lacking)
                failure = await ask_node(self._parts.line, member, STATEMENTS, copying)
                if failure is not None:
                    self._say(f"node {member}: {failure!r}")
                    pause_ms = AGAIN_MS
            return pause_ms if self._asked() and self._lacking() else None
        except OSError as error:  # of this node's disk
            self._say(str(error))
            return AGAIN_MS

    def _asked(self) -> list[Member]:
        """Return whom to ask: who leads, or the others where this node does (INV-LSC4)."""
        image = self._parts.image()
        leader = None if image.leadership is None else image.leadership.leader
        if leader is None:
            return []
        others = [node.member for node in image.nodes.values() if node.member != self._parts.me]
        return others if leader == self._parts.me else [leader]

    def _lacking(self) -> list[Named]:
        """Return which statements of the lineage are not here, the newest first; OSError."""
        store = self._parts.store
        for named in _named(self._parts.image()):
            if named not in self._kept:
                data = store.statement_bytes(named.domain, named.region_epoch)
                if data is not None and not _is_of_another_base(data, named):
                    self._kept.add(named)
        return [each for each in reversed(_named(self._parts.image())) if each not in self._kept]

    async def _copy_each(self, lacking: list[Named], client: NodeClient) -> Exception | None:
        """Keep those that this member has; return what kept this from ending. One that cannot be keeps no other one back."""
        failure: Exception | None = None
        for named in lacking:
            try:
                await self._copy_one(client, named)
            except _CannotBe as error:
                failure = error
        return failure

    async def _copy_one(self, client: NodeClient, named: Named) -> None:
        data = await _fetched(client, named)
        if data is None:
            return
        try:
            statement = msgspec.json.decode(data, type=LossStatement)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise _CannotBe(f"what it keeps for {named} is no statement: {error}") from error
        if (statement.domain, statement.region_epoch) != named[:2]:
            raise _CannotBe(f"what it keeps for {named} is another one (INV-LSC2)")
        if statement.base != named.base:
            return  # as if it had none
        self._parts.store.keep_statement(statement)
        self._kept.add(named)
        _log.info("the loss statement of region epoch %d is kept here, too", named.region_epoch)

    def _say(self, reason: str) -> None:
        if reason != self._said:
            self._said = reason
            _log.warning("loss statements are not copied yet: %s", reason[:300])


def _named(image: MetadataImage) -> tuple[Named, ...]:
    """Return the statements that the lineage speaks of, oldest first."""
    return tuple(
        Named(
            domain.name,
            entry.region_epoch,
            TidemarkPoint(entry.base_region_epoch, entry.base_number),
        )
        for domain in image.domains.values()
        for entry in domain.lineage
    )


def _is_of_another_base(data: bytes, named: Named) -> bool:
    try:
        statement = msgspec.json.decode(data, type=LossStatement)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False  # it is damaged, and that is told where it is read
    return statement.base != named.base


async def _fetched(client: NodeClient, named: Named) -> bytes | None:
    """Return the whole of it, None where the other node has none (INV-LSC2)."""
    data, size_bytes = bytearray(), 0
    while not data or len(data) < size_bytes:
        ask = AskStatementPiece(
            domain=named.domain, region_epoch=named.region_epoch, from_byte=len(data)
        )
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            answer, piece = await client.begin(ask, StatementPiece)
        if answer.size_bytes < 0 and not data:
            return None
        if not 0 < answer.size_bytes <= STATEMENT_BYTES_MAX or not len(piece):
            raise _CannotBe(f"it says of {named} that it has {answer.size_bytes} bytes")
        if data and answer.size_bytes != size_bytes:
            raise _CannotBe(f"{named} has changed meanwhile")
        size_bytes = answer.size_bytes
        data += piece
    if len(data) != size_bytes:
        raise _CannotBe(f"{named} has {len(data)} bytes, not {size_bytes}")
    return bytes(data)
