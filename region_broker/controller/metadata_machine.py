"""What the commands in the quorum's log come to: the metadata image in memory, and in the database.

INV-M10  `current` is the fold of `metadata_commands.apply` over the commands of the log, in order: a command that must not take
         effect changes nothing, on every member alike
INV-M12  a database that cannot be written keeps nothing back: it lags behind, and gets all that it lacks with the next entry
INV-M14  a wish takes effect once, however often it is in the log: whoever cannot know what became of it wishes again, with the
         same id. What became of the last `KNOWN_WISHES_MAX` is part of a snapshot

INV-M22  what a node asks for as the leader of its region's logs changes nothing once they are led under another leader epoch
         1. A node that leads a mirror is cut off, and takes over users and ACLs of its primary, or deletes a topic at a tidemark. 2. Another one leads,
         takes over from an older tidemark, and acts. 3. The first one is back, and its wish comes into the log

Not here: what makes a command durable (`raft`), who may ask for one (`metadata_store`).
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

import msgspec

from idempotency.identity import LeaderEpoch
from region_broker.controller import metadata_commands
from region_broker.controller.feature_levels import SUPPORTED, objection_to, since, told
from region_broker.controller.image_database import (
    ImageDatabase,
    MetadataUnreadable,
    MetadataUnwritable,
)
from region_broker.controller.leadership_rules import judge_still_led
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import Entry, EntryKind, Member
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.refusals import COMMAND_TOO_LARGE
from region_broker.limits import KIB
from region_broker.security.access import ACCESS_BYTES_MAX

KNOWN_WISHES_MAX: Final = 1_000
WISH_BYTES: Final = 128
"""What an entry holds beside the command, at most."""
_TOO_LARGE: Final = "this change has {} bytes, and one change of the metadata {} at most: nothing of it was done. Ask for less at once, in several requests"

_UNKNOWN: Final = (
    "entry {entry} of the quorum's log is not known to this version of Tidemark ({why}): it was written by a newer one. Install the"
    " version that the other nodes run, and start this one again; nothing is lost."
)

_KIND: Final = "$.command.type"
"""Where msgspec finds fault with a command that it has no type for."""

_log: Final = logging.getLogger("tidemark.metadata")
assert RaftSettings().payload_bytes_max >= ACCESS_BYTES_MAX + KIB + WISH_BYTES, "INV-SAC5"


class Wish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command in the log, and the id that tells it from a repetition.

    `leader_epoch`: under which whoever wishes leads the region's logs; it changes nothing once they are led under another one (INV-M22).
    """

    wish_id: UUID
    command: Command
    leader_epoch: LeaderEpoch | None = None


class _EncodedWish(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `Wish` whose command is encoded already."""

    wish_id: UUID
    command: msgspec.Raw
    leader_epoch: LeaderEpoch | None = None


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


def encode_wish(wish_id: UUID, command: bytes, leader_epoch: LeaderEpoch | None = None) -> bytes:
    """Return the payload of a log entry; `command`: as `encode_command` made it."""
    return msgspec.msgpack.encode(_EncodedWish(wish_id, msgspec.Raw(command), leader_epoch))


def encode_command(command: Command, payload_bytes_max: int) -> bytes:
    """Return a command as an entry holds it; `CommandRefused` where that would be larger than the log takes (INV-M23)."""
    encoded = msgspec.msgpack.encode(command)
    bytes_max = payload_bytes_max - WISH_BYTES
    if len(encoded) > bytes_max:
        raise CommandRefused(COMMAND_TOO_LARGE, _TOO_LARGE.format(len(encoded), bytes_max))
    return encoded


def encode_state(state: MachineState) -> bytes:
    """Return the bytes of a snapshot."""
    return msgspec.msgpack.encode(state)


def decode_state(snapshot: bytes) -> MachineState:
    """Return the state of a snapshot; raises msgspec.MsgspecError."""
    return _STATE.decode(snapshot)


def _wish_in(entry: Entry, levels: range) -> Wish:
    """Return the wish of an entry; one that this code does not know ends the node: whoever skips it has other metadata (INV-M10)."""
    try:
        wish = _WISH.decode(entry.payload)
    except msgspec.ValidationError as error:
        if _KIND not in str(error):
            raise
        raise MetadataUnreadable(_UNKNOWN.format(entry=entry.index, why=error)) from error
    if since(wish.command) > levels[-1]:
        why = f"{type(wish.command).__name__} came with level {since(wish.command)}, the code knows {told(levels)}"
        raise MetadataUnreadable(_UNKNOWN.format(entry=entry.index, why=why))
    return wish


def fold(
    state: MachineState, entries: Iterable[Entry], levels: range = SUPPORTED
) -> tuple[MachineState, list[Applied]]:
    """Return what `state` is after the wishes in `entries`, and what became of each (INV-M10, INV-M14).

    `levels`: the feature levels that the code knows. Raises msgspec.MsgspecError, and `MetadataUnreadable` for a wish of a newer one.
    """
    image, known = state.image, dict(state.known)
    applied: list[Applied] = []
    for entry in entries:
        if entry.kind is not EntryKind.COMMAND:
            continue
        wish = _wish_in(entry, levels)
        if wish.wish_id in known:
            continue
        refusal = None
        try:
            if wish.leader_epoch is not None:
                judge_still_led(image, wish.leader_epoch)
            image = metadata_commands.apply(image, wish.command)
        except CommandRefused as refused:
            refusal = Refusal(refused.code, refused.reason)
            _log.info("metadata: entry %d changes nothing: %s", entry.index, refused)
        known[wish.wish_id] = refusal
        if len(known) > KNOWN_WISHES_MAX:
            del known[next(iter(known))]
        applied.append(Applied(wish.wish_id, image, refusal))
    return MachineState(image, known), applied


async def _nothing_to_do(_image: MetadataImage) -> None:
    return


class MetadataMachine:
    """A `raft.group_setup.StateMachine`; it has no image before the group's snapshot is loaded."""

    def __init__(self, member: Member, database: ImageDatabase, levels: range = SUPPORTED) -> None:
        """Bring `database` of `member` up to the log with each entry; nobody is told of it yet.

        `levels`: the feature levels that the code knows.
        """
        self._member = member
        self._levels = levels
        self._database = database
        self._judge_level(database.stored.image)
        self._lags = False
        self._state = MachineState(database.stored.image)
        self.on_applied: Callable[[list[Applied]], None] = lambda _: None
        """Called with the wishes of each step, in order."""
        self.on_coming: Callable[[MetadataImage], Awaitable[None]] = _nothing_to_do
        """Waited for before `on_applied`, once what it is given is durable (INV-M20)."""
        self.on_going: Callable[[MetadataImage], Awaitable[None]] = _nothing_to_do
        """Waited for before the database has what it is given, which is committed (INV-M21)."""
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
        self._state, applied = fold(self._state, entries, self._levels)
        self._judge_level(self.current)
        last, stored = entries[-1], self._database.stored.position
        # After a start, entries come again that the database has; how far they are committed is not known at once.
        if stored is None or stored.index < last.index:
            await self.on_going(self.current)
            await self._store(LogPosition(self._member, last.index, last.term))
            await self.on_coming(self.current)
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
        state = decode_state(image)
        self._judge_level(state.image)
        self._state = state
        self.on_loaded()

    def _judge_level(self, image: MetadataImage) -> None:
        """Raise `MetadataUnreadable` where `image` may hold what this code does not know (INV-FL3)."""
        why = objection_to(self._levels, image.feature_level, who=f"node {self._member.node_id}")
        if why is not None:
            raise MetadataUnreadable(why)
