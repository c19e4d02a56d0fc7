"""Where the state of the failover machine is kept: in the journal of a folder, or in the metadata of a region of several nodes.

INV-FRC1  `append` returns once a majority of the region has the state; at a node that leads no more it raises, `PeerRefused`: another
          region that asked is answered, and nobody who comes behind waits. The event may have been recorded, or not
          1. A leader is asked for a promise, and cannot record it: it is cut off from its region. 2. Another one is elected. 3. The
          first one is elected again. Whoever asked is gone; what is still waiting for its answer would hold up all further events.
INV-FRC2  whoever leads next reads back the state after the last event that was appended, whatever became of who appended it
INV-FRC3  a step for which an entry of the metadata has no room, or the journal, is said to be one as long as this node leads, and nothing else of
          the metadata waits for it, and no node ends. What another region says of its starts, and is too large, is not remembered

Not here: the journal's file (`failover.journal`), what events mean (`geo_replicator.failover`), who leads (`region.cluster`).
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple, NoReturn, Protocol

import msgspec

from geo_replicator.failover import State, replay
from geo_replicator.failover_events import Event, folder_named
from geo_replicator.folder_life import Birth, FolderIdentity, Shown
from idempotency.identity import LeaderEpoch
from idempotency.ports import Clock
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.refusals import COMMAND_TOO_LARGE, CommandRefused
from region_broker.controller.region_folder import (
    BeginRegionFolder,
    JoinHistory,
    NoteMet,
    RecordFailover,
    RegionFolder,
    RegionFolderCommand,
)
from region_broker.limits import KIB
from region_broker.region.failover.gathering import Gathering
from region_broker.region.failover.journal import EventTooLarge, FailoverJournal
from region_broker.region.peers.protocol import NOT_LEADING, PeerRefused
from region_broker.region.ports import MetadataSide

AGAIN_MS: Final = 100
TOO_LARGE_AGAIN_MS: Final = 10_000
MET_BYTES_MAX: Final = 64 * KIB
"""Of what a region says of its starts; one that keeps the rules says some 4 kB (`geo_replicator.folder_life`)."""
STATE_BYTES_MAX: Final = RaftSettings().payload_bytes_max - 64 * KIB
"""Of a state that is to have room in an entry of the metadata, with what the steps after it add: promises, reasons."""
_log: Final = logging.getLogger("tidemark.failover")


class Recorded(NamedTuple):
    """What is there: the state, None before the first event, and whether the folder that it belongs to is named."""

    state: State | None
    names_folder: bool


class LeadsNoMore(PeerRefused):
    """Whether an event is recorded is for whoever leads the region next to know (INV-FRC1)."""

    def __init__(self) -> None:
        """Say it to whoever asked for the event."""
        super().__init__(
            NOT_LEADING,
            "this node stops, or leads no more; it goes on at whoever leads the region next",
        )


class LeadersGathered(LeadsNoMore):
    """The same, as leaders were spread and are gathered now: nothing was recorded (INV-GTH1)."""


class FailoverRecord(Protocol):
    """Keeps the state durable."""

    def recover(self) -> Recorded:
        """Return what is there; raises as what it is kept in."""
        ...

    def has_room(self, event: Event, after: State) -> bool:
        """Return whether `append` takes them (INV-FRC3)."""
        ...

    async def append(self, event: Event, after: State) -> None:
        """Return once `event`, and with it the state `after` it, is durable; raises `LeadsNoMore`, `LeadersGathered`."""
        ...


class JournalRecord:
    """A `FailoverRecord` in the folder of a region's only node."""

    def __init__(self, journal: FailoverJournal, clock: Clock) -> None:
        """Keep it in `journal`, which is not recovered yet."""
        self._journal = journal
        self._clock = clock

    def recover(self) -> Recorded:
        """See `FailoverRecord`; once. Raises `JournalDamaged`, OSError."""
        events = self._journal.recover()
        return Recorded(replay(events), bool(folder_named(events)))

    def has_room(self, event: Event, _after: State) -> bool:
        """See `FailoverRecord`."""
        return self._journal.has_room(event)

    async def append(self, event: Event, _after: State) -> None:
        """See `FailoverRecord`; raises OSError, after which nothing was promised."""
        while True:
            try:
                return await self._journal.append(event)
            except EventTooLarge as refused:
                await told_too_large(self._clock, str(refused))


class RegionRecord:
    """A `FailoverRecord`, and a `FolderSide`, in the metadata of a region of several nodes (ADR 48).

    `leads_under`: the leader epoch under which this node leads, None where it does not.
    """

    def __init__(
        self, metadata: MetadataSide, own: FolderIdentity, clock: Clock,
        leads_under: Callable[[], LeaderEpoch | None],
    ) -> None:  # fmt: skip
        """Speak for the region of the node whose folder is `own`."""
        self._metadata = metadata
        self._own = own
        self._clock = clock
        self._leads_under = leads_under
        self._gathering = Gathering(metadata, clock, leads_under)

    async def begin(self, first: State | None) -> None:
        """Return once the region knows itself: by what the folder of its first leader says, and the `first` state, if that knows one."""
        if self._folder is None:
            own = self._own
            folder = RegionFolder(
                folder_id=own.folder_id, born=own.born, joined=own.joined, chain=own.chain,
                met=own.met, failover=_encoded(first), failover_number=0 if first is None else 1,
            )  # fmt: skip
            await self._change_or_wait(lambda epoch: BeginRegionFolder(epoch, folder))

    @property
    def _folder(self) -> RegionFolder | None:
        return self._metadata.image.region_folder

    # -- the state -------------------------------------------------------------------------------

    def recover(self) -> Recorded:
        """See `FailoverRecord`; as often as this node begins to lead."""
        folder = self._folder
        if folder is None or not folder.failover:
            return Recorded(None, names_folder=True)
        return Recorded(msgspec.json.decode(folder.failover, type=State), names_folder=True)

    def has_room(self, _event: Event, after: State) -> bool:
        """See `FailoverRecord`."""
        return len(_encoded(after)) <= STATE_BYTES_MAX

    async def append(self, event: Event, after: State) -> None:
        """See `FailoverRecord` (INV-FRC1)."""
        if self._gathering.is_due:
            await self._gather()
        folder, encoded = self._folder, _encoded(after)
        assert folder is not None, "begin comes first"
        follows = folder.failover_number
        try:
            await self._change(lambda epoch: RecordFailover(epoch, follows, encoded))
        except CommandRefused as refused:
            # Of an earlier try, of which this node had heard nothing.
            folder = self._folder
            assert folder is not None
            if (folder.failover_number, folder.failover) != (follows + 1, encoded):
                if self._metadata.image.spread is not None:
                    await self._gather()
                _log.warning("%s is not recorded by this node: %s", type(event).__name__, refused)
                raise LeadsNoMore from refused

    async def _gather(self) -> NoReturn:
        """Gather the leaders (INV-GTH1), with which this term ends."""
        await self._gathering.gather()
        raise LeadersGathered

    async def _change(self, command: Callable[[LeaderEpoch], RegionFolderCommand]) -> None:
        """Return once the command is carried out; ask again while nobody knows (INV-FRC1). Raises `CommandRefused`, `LeadsNoMore`."""
        epoch = self._leads_under()
        while epoch is not None and self._leads_under() == epoch:
            try:
                await self._metadata.apply(command(epoch))
            except MetadataUnwritable as error:
                _log.warning("a step of the failover is not recorded yet: %s", error)
                await self._clock.sleep_ms(AGAIN_MS)
            except CommandRefused as refused:
                if refused.code == COMMAND_TOO_LARGE:
                    await told_too_large(self._clock, refused.reason)
                    continue
                if refused.code != "not-the-leader":
                    raise
                raise LeadsNoMore from refused
            else:
                return
        raise LeadsNoMore

    async def _change_or_wait(self, command: Callable[[LeaderEpoch], RegionFolderCommand]) -> None:
        """Do the same for a task that is cancelled once this node has heard that another one leads."""
        try:
            await self._change(command)
        except LeadsNoMore:
            await until_cancelled()

    # -- the folder ------------------------------------------------------------------------------

    @property
    def identity(self) -> FolderIdentity:
        """See `FolderSide`: the region's, in place of a folder's."""
        folder, own = self._folder, self._own
        if folder is None:
            return own
        return msgspec.structs.replace(
            own, folder_id=folder.folder_id, born=folder.born, joined=folder.joined, chain=folder.chain, met=folder.met,
            elected=True,
        )  # fmt: skip

    async def join(self, history: Birth) -> None:
        """See `FolderSide`."""
        await self._change_or_wait(lambda epoch: JoinHistory(epoch, history))

    async def note_met(self, region: str, shown: Shown) -> None:
        """See `FolderSide`."""
        last = shown.to_remember()
        if self.identity.met.get(region) != last:
            size_bytes = len(msgspec.msgpack.encode(last))
            if size_bytes > MET_BYTES_MAX:
                raise MetadataUnwritable(
                    f"what it says of its starts has {size_bytes} bytes, and {MET_BYTES_MAX} are kept at most"
                )
            await self._change_or_wait(lambda epoch: NoteMet(epoch, region, last))


class PatientMetadata:
    """A `MetadataSide` whose commands wait for the quorum of the region, as long as that takes: a step of a failover must not end the
    node because two others are gone for a while. It is for commands that may be given twice.
    """

    def __init__(self, metadata: MetadataSide, clock: Clock) -> None:
        """Ask `metadata`, and again."""
        self._metadata = metadata
        self._clock = clock

    @property
    def image(self) -> MetadataImage:
        """See `MetadataSide`."""
        return self._metadata.image

    async def apply(self, command: Command) -> MetadataImage:
        """See `MetadataSide`; raises `CommandRefused`."""
        while True:
            try:
                return await self._metadata.apply(command)
            except MetadataUnwritable as error:
                _log.warning("a step of the failover waits: %s", error)
                await self._clock.sleep_ms(AGAIN_MS)
            except CommandRefused as refused:
                if refused.code != COMMAND_TOO_LARGE:
                    raise
                await told_too_large(self._clock, refused.reason)


async def told_too_large(clock: Clock, reason: str) -> None:
    """Say that a step of the failover has no room (INV-FRC3), and return when that is to be said again."""
    _log.error(
        "a failover cannot go on in this region: %s. A step of it names each log, once for each takeover that this region missed: another"
        " region can take over meanwhile. If this one has missed too many for the number of its logs, stop all its nodes, empty their data folders, and"
        " start them again: then they copy all from the region that acts",
        reason,
    )
    await clock.sleep_ms(TOO_LARGE_AGAIN_MS)


def _encoded(state: State | None) -> bytes:
    return b"" if state is None else msgspec.json.encode(state)


async def until_cancelled() -> NoReturn:
    """Another node leads: what this one was about is over, and is cancelled once it has heard of that."""
    await asyncio.Event().wait()
    raise AssertionError("an event that nobody sets")
