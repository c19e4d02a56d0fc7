"""What the commands in the quorum's log come to: the metadata image in memory, and in the database.

INV-M10  `image` is the fold of `metadata_commands.apply` over the commands of the log, in order: a command that must not take
         effect changes nothing, on every member alike
INV-M14  who follows the image hears of each one in the step in which it is there, whoever asked for the change, and whether or
         not that one still waits
INV-M12  a database that cannot be written keeps nothing back: it lags behind, and gets all that it lacks with the next entry

Not here: what makes a command durable (`raft`), who may ask for one (`metadata_store`).
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from region_broker.controller import metadata_commands
from region_broker.controller.image_database import ImageDatabase, MetadataUnwritable
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import Entry, EntryKind, Member

_log: Final = logging.getLogger("tidemark.metadata")
_COMMAND: Final = msgspec.msgpack.Decoder(Command)
_IMAGE: Final = msgspec.msgpack.Decoder(MetadataImage)


def encode_command(command: Command) -> bytes:
    """Return the payload of a log entry."""
    return msgspec.msgpack.encode(command)


def encode_image(image: MetadataImage) -> bytes:
    """Return the bytes of a snapshot."""
    return msgspec.msgpack.encode(image)


def decode_image(snapshot: bytes) -> MetadataImage:
    """Return the image of a snapshot; raises msgspec.MsgspecError."""
    return _IMAGE.decode(snapshot)


def fold(image: MetadataImage, entries: Iterable[Entry]) -> MetadataImage:
    """Return what `image` is after the commands in `entries` (INV-M10); raises msgspec.MsgspecError."""
    for entry in entries:
        if entry.kind is not EntryKind.COMMAND:
            continue
        try:
            image = metadata_commands.apply(image, _COMMAND.decode(entry.payload))
        except CommandRefused as refused:
            _log.info("metadata: entry %d changes nothing: %s", entry.index, refused)
    return image


class MetadataMachine:
    """A `raft.group_setup.StateMachine`; it has no image before the group's snapshot is loaded."""

    def __init__(self, member: Member, database: ImageDatabase) -> None:
        """Bring `database` of `member` up to the log with each entry."""
        self._member = member
        self._database = database
        self._lags = False
        self.current = database.stored.image
        self.on_image: Callable[[MetadataImage], None] = lambda _: None

    async def apply(self, entries: Sequence[Entry]) -> None:
        """See `StateMachine`; the database has it, too, or a line in the log says why not (INV-M12)."""
        self._take(fold(self.current, entries))
        last = entries[-1]
        try:
            await self._database.write(
                self.current, LogPosition(self._member, last.index, last.term)
            )
        except MetadataUnwritable as error:
            if not self._lags:
                _log.warning("%s It lags behind the quorum's log; nothing is lost by that.", error)
            self._lags = True
        else:
            self._lags = False

    def image(self) -> bytes:
        """See `StateMachine`."""
        return encode_image(self.current)

    def load(self, image: bytes) -> None:
        """See `StateMachine`."""
        self._take(decode_image(image))

    def _take(self, image: MetadataImage) -> None:
        self.current = image
        self.on_image(image)  # INV-M14
