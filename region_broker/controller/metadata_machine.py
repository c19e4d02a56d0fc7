"""What the commands in the quorum's log come to: the metadata image in memory, and in the database.

INV-M10  `current` is the fold of `metadata_commands.apply` over the commands of the log, in order: a command that must not take
         effect changes nothing, on every member alike
INV-M12  a database that cannot be written keeps nothing back: it lags behind, and gets all that it lacks with the next entry
INV-M14  a wish takes effect once, however often it is in the log: whoever cannot know what became of it wishes again, with the
         same id. What became of the last `KNOWN_WISHES_MAX` is part of a snapshot

Not here: what makes a command durable (`raft`), who may ask for one (`metadata_store`).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from region_broker.controller import metadata_commands
from region_broker.controller.image_database import ImageDatabase, MetadataUnwritable
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import Entry, EntryKind, Member

KNOWN_WISHES_MAX: Final = 1_000

_log: Final = logging.getLogger("tidemark.metadata")


class Wish(msgspec.Struct, frozen=True):
    """A command in the log, and the id that tells it from a repetition."""

    wish_id: UUID
    command: Command


class Refusal(msgspec.Struct, frozen=True):
    """Why a command changed nothing."""

    code: str
    reason: str


class Applied(msgspec.Struct, frozen=True):
    """One wish that was applied here: the image behind it, and why it changed nothing, if it was refused."""

    wish_id: UUID
    image: MetadataImage
    refusal: Refusal | None


class MachineState(msgspec.Struct, frozen=True, array_like=True):
    """All that the log comes to: the image, and what became of the newest wishes, the oldest first."""

    image: MetadataImage
    known: dict[UUID, Refusal | None] = {}


_WISH: Final = msgspec.msgpack.Decoder(Wish)
_STATE: Final = msgspec.msgpack.Decoder(MachineState)


def encode_wish(wish_id: UUID, command: Command) -> bytes:
    """Return the payload of a log entry."""
    return msgspec.msgpack.encode(Wish(wish_id, command))


def encode_state(state: MachineState) -> bytes:
    """Return the bytes of a snapshot."""
    return msgspec.msgpack.encode(state)


def decode_state(snapshot: bytes) -> MachineState:
    """Return the state of a snapshot; raises msgspec.MsgspecError."""
    return _STATE.decode(snapshot)


def fold(state: MachineState, entries: Iterable[Entry]) -> tuple[MachineState, list[Applied]]:
    """Return what `state` is after the wishes in `entries`, and what became of each (INV-M10, INV-M14).

    Raises msgspec.MsgspecError.
    """
    image, known = state.image, dict(state.known)
    applied: list[Applied] = []
    for entry in entries:
        if entry.kind is not EntryKind.COMMAND:
            continue
        wish = _WISH.decode(entry.payload)
        if wish.wish_id in known:
            continue
        refusal = None
        try:
            image = metadata_commands.apply(image, wish.command)
        except CommandRefused as refused:
            refusal = Refusal(refused.code, refused.reason)
            _log.info("metadata: entry %d changes nothing: %s", entry.index, refused)
        known[wish.wish_id] = refusal
        if len(known) > KNOWN_WISHES_MAX:
            del known[next(iter(known))]
        applied.append(Applied(wish.wish_id, image, refusal))
    return MachineState(image, known), applied


class MetadataMachine:
    """A `raft.group_setup.StateMachine`; it has no image before the group's snapshot is loaded."""

    def __init__(self, member: Member, database: ImageDatabase) -> None:
        """Bring `database` of `member` up to the log with each entry; nobody is told of it yet."""
        self._member = member
        self._database = database
        self._lags = False
        self._state = MachineState(database.stored.image)
        self.on_applied: Callable[[list[Applied]], None] = lambda _: None
        """Called with the wishes of each step, in order."""
        self.on_loaded: Callable[[], None] = lambda: None
        """Called when a snapshot of the leader's has taken the place of entries."""

    @property
    def current(self) -> MetadataImage:
        """Return the image after the last entry."""
        return self._state.image

    def became_of(self, wish_id: UUID) -> Applied | None:
        """Return what became of one of the newest wishes, with the image of now; None of one that is not known."""
        if wish_id not in self._state.known:
            return None
        return Applied(wish_id, self.current, self._state.known[wish_id])

    async def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`; the database has it, too, or a line in the log says why not (INV-M12)."""
        self._state, applied = fold(self._state, entries)
        last, stored = entries[-1], self._database.stored.position
        # After a start, entries come again that the database has; how far they are committed is not known at once.
        if stored is None or stored.index < last.index:
            await self._store(LogPosition(self._member, last.index, last.term))
        self.on_applied(applied)

    async def _store(self, position: LogPosition) -> None:
        try:
            await self._database.write(self.current, position)
        except MetadataUnwritable as error:
            if not self._lags:
                _log.warning("%s It lags behind the quorum's log; nothing is lost by that.", error)
            self._lags = True
        else:
            self._lags = False

    def image(self) -> bytes:
        """See `StateMachine`."""
        return encode_state(self._state)

    def load(self, image: bytes) -> None:
        """See `StateMachine`."""
        self._state = decode_state(image)
        self.on_loaded()
