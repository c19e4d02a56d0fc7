"""Regions of the model of histories: their folders, and what one can read in them."""

from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID
from zlib import crc32

from geo_replicator import failover, folder_life, history
from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import (
    EntryRecord,
    Event,
    HistoryRefuted,
)
from geo_replicator.history import HeldLog, HistoryDifference, LastBatch, ShownLog
from geo_replicator.lineage import (
    BEFORE_ALL,
    Cut,
    Lineage,
    LogKey,
    TidemarkPoint,
)
from idempotency.identity import LeaderEpoch

NAMES: Final = ("eu", "us", "ap")
TIDEMARKS: Final = LogKey(UUID(int=1), 0)
ORDERS: Final = LogKey(UUID(int=2), 0)
SECOND: Final = LogKey(UUID(int=3), 0)
FOLDER: Final = Path("folder")
Answer = TypeVar("Answer")


class Batch(NamedTuple):
    """One record; in `TIDEMARKS` the value is a tidemark: its point, what it cuts at, the metadata's version."""

    leader_epoch: int
    value: Any


Log = tuple[Batch, ...]
Kept = tuple[LogKey, int, Batch]


class Broken(Exception):
    """A rule does not hold."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a region's metadata says."""

    acting_region: str = ""
    region_epoch: int = 0
    lineage: tuple[EntryRecord, ...] = ()
    last_leader_epoch: int = -1
    topics: frozenset[UUID] = frozenset({TIDEMARKS.topic_id, ORDERS.topic_id})
    deleted: frozenset[UUID] = frozenset()
    version: int = 1
    starts: int = 0


@dataclass(frozen=True, slots=True)
class Folder:
    """All that a region has on disk. `manifest` names the logs that were made."""

    identity: folder_life.FolderIdentity | None = None
    metadata: Metadata | None = None
    journal: tuple[Event, ...] | None = None
    logs: Mapping[LogKey, Log] | None = None
    manifest: frozenset[LogKey] = frozenset()
    reached: TidemarkPoint = BEFORE_ALL
    kept: frozenset[Kept] = frozenset()
    drops: tuple[tuple[UUID, int], ...] = ()

    def held(self) -> frozenset[Kept]:
        """Return every record in the logs and in quarantine."""
        logs = self.logs or {}
        return self.kept | {
            (key, at, batch) for key, log in logs.items() for at, batch in enumerate(log)
        }


@dataclass(slots=True)
class Region:
    """A region: its folder, and what its process knows while it runs. `term` is above -1 while it serves."""

    name: str
    folder: Folder = Folder()
    state: State | None = None
    heard: dict[int, EntryRecord] = field(default_factory=dict)
    refuted: HistoryRefuted | None = None
    lost: frozenset[LogKey] = frozenset()
    term: int = -1
    open: bool = False
    refusal: str = ""

    @property
    def running(self) -> bool:
        return self.state is not None

    @property
    def metadata(self) -> Metadata:
        assert self.folder.metadata is not None, self.name
        return self.folder.metadata

    @property
    def logs(self) -> Mapping[LogKey, Log]:
        return self.folder.logs or {}

    @property
    def opened(self) -> Mapping[LogKey, Log]:
        """The logs of the topics that the metadata knows: all others lie on disk, and nobody sees them."""
        topics = self.metadata.topics
        return {key: log for key, log in self.logs.items() if key.topic_id in topics}

    @property
    def now(self) -> State:
        assert self.state is not None, self.name
        return self.state

    @property
    def acting(self) -> bool:
        return self.running and self.open and self.now.may_act

    @property
    def is_primary(self) -> bool:
        return self.running and self.now.phase in {Phase.ACTING, Phase.DRAINING, Phase.DISPUTED}

    def change(self, **changes: Any) -> None:
        self.folder = replace(self.folder, **changes)

    def note(self, **changes: Any) -> None:
        self.change(metadata=replace(self.metadata, **changes))

    def put(self, key: LogKey, log: Log) -> None:
        self.change(logs={**self.logs, key: log}, manifest=self.folder.manifest | {key})

    def record(self, event: Event) -> None:
        """Journal, then fold (INV-FA1)."""
        state = failover.fold(self.now, event)
        self.change(journal=(*(self.folder.journal or ()), event))
        self.state = state
        if not state.may_act:
            self.open = False
        if not state.phase.acts:
            self.term = -1

    def known_lineage(self) -> Lineage:
        known = self.heard | {entry.region_epoch: entry for entry in self.metadata.lineage}
        return Lineage(tuple(known[epoch].entry() for epoch in sorted(known)))

    def tidemarks(self) -> Iterator[tuple[Cut, int]]:
        """Yield the tidemarks of the log with the metadata versions that they name."""
        for batch in self.logs.get(TIDEMARKS, ()):
            point, positions, version = batch.value
            yield Cut(point, dict(positions)), version

    def shown(self) -> Cut:
        """Return what readers were shown at most: the fact on disk (T16)."""
        for cut, _ in self.tidemarks():
            if cut.point == self.folder.reached:
                return cut
        return Cut(BEFORE_ALL) if self.folder.reached == BEFORE_ALL else self.held_cut()

    def held_cut(self) -> Cut:
        """Return the greatest tidemark that the logs hold (T16)."""
        held = Cut(BEFORE_ALL)
        for cut, _ in self.tidemarks():
            whole = all(len(self.logs.get(key, ())) >= end for key, end in cut.positions.items())
            if whole and held.point < cut.point <= self.folder.reached:
                held = cut
        return held

    def claim(self) -> Cut:
        """Return where a takeover here cuts: `Outlook.claim`."""
        held, lineage = self.held_cut(), self.known_lineage()
        if not lineage.is_void(held.point):
            return held
        return lineage.fallback_of(held.point)


def answer(work: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine that never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a coroutine's result
    raise AssertionError("it waits")


def last_batch(log: Log, end: int) -> LastBatch | None:
    """Return what is shown of the batch below `end`."""
    if not 0 < end <= len(log):
        return None
    return LastBatch(
        LeaderEpoch(log[end - 1].leader_epoch), end - 1, crc32(repr(log[end - 1].value).encode())
    )


def evidence(region: Region, cut: Cut, keys: Iterable[LogKey]) -> list[ShownLog]:
    """Return what shows that a region holds `cut`."""
    logs = {key: region.logs.get(key, ()) for key in keys}
    return [
        ShownLog(key, cut.position_of(key), len(log), last_batch(log, cut.position_of(key)))
        for key, log in logs.items()
    ]


def epoch_end(log: Log, epoch: int) -> tuple[LeaderEpoch, int]:
    """Return the largest leader epoch <= `epoch`, and where the log leaves it (KIP-101)."""
    below = [batch.leader_epoch for batch in log if batch.leader_epoch <= epoch]
    return LeaderEpoch(max(below, default=-1)), len(below)


def differences(region: Region, shown: Sequence[ShownLog]) -> list[HistoryDifference]:
    """Return what a region does not hold of what another one has shown."""
    found = []
    for log in shown:
        held = None
        if log.key in region.opened:
            own = region.opened[log.key]
            end = min(log.cut_offset, len(own))
            leaves = epoch_end(own, log.last.leader_epoch)[1] if log.last else 0
            held = HeldLog(0, len(own), last_batch(own, end), leaves)
        difference = history.difference_of(log, held)
        if log.key.topic_id not in region.metadata.deleted and difference is not None:
            found.append(difference)
    return found


def cut_log(region: Region, key: LogKey, end: int) -> None:
    """Move what lies at and beyond `end` to quarantine, and cut it off."""
    log = region.logs[key]
    tail = {(key, at, log[at]) for at in range(end, len(log))}
    region.change(kept=region.folder.kept | tail)
    region.put(key, log[:end])


def key_of(region: Region) -> tuple[Any, ...]:
    heard = [(epoch, entry.base_number) for epoch, entry in sorted(region.heard.items())]
    volatile = (region.running, heard, bool(region.refuted), region.term, region.open)
    return (*volatile, sorted(region.lost), repr(region.state), folder_key(region.folder))


def folder_key(folder: Folder) -> tuple[Any, ...]:
    identity = folder.identity
    named = identity and (identity.region, identity.folder_id, identity.whole, identity.history)
    behind = identity and folder.metadata and folder.metadata.starts < identity.starts_counted
    metadata = folder.metadata and replace(folder.metadata, starts=0)
    logs = None if folder.logs is None else sorted(folder.logs.items())
    journal = None if folder.journal is None else repr(failover.replay(list(folder.journal)))
    return named, behind, metadata, logs, journal, folder.reached, sorted(map(repr, folder.kept))
