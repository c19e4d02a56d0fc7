"""From where retention must keep each log for mirrors (T14): what they have still to copy, and where a takeover may cut.

INV-RH1  no segment goes that a mirror has not copied whole, or that lies above D of a tidemark that some mirror has not
         reached: a takeover may cut there, and this region must be able to go back to it. What an order has deleted does not
         go before all mirrors have reached a tidemark that says so: a takeover may void the order
INV-RH2  a mirror that has copied once is known durably, before its first answer; while it is away, or has not been heard
         since this node started, everything is held from where it was held last
INV-RH3  a mirror that was not heard for `MIRROR_HOLD_MS`, of the time that this node has been through, is gone until it is heard
         again, and retention passes it: a disk is finite, and the mirror is told which of its logs must be copied anew
INV-RH6  silence is counted while this region acts, and anew under each region epoch: while another one acts, nobody comes here
         1. A region mirrors the primary for more than a week. 2. The primary is lost, and this one takes over. 3. Was the time in which
         it mirrored the old primary's silence, nothing would be held for that one when it comes back two days later.
INV-RH5  a node that begins to lead a region of several holds everything for each region that this one has met, until that tells what it
         has: the node's file is of the time when it led last, and the others have met mirrors since
         1. A mirror copies from a node, which notes it. 2. Mirror and node are lost, and another node leads. 3. Its file names no
         mirror, or counts one as silent for as long as this node did not lead: retention would delete what the mirror has not copied.
INV-RH4  a disk that takes no note keeps nobody from deleting: what was noted last holds more, and the next look tries again

The offsets are looked at once in each round of maintenance, and written down before anything is deleted by them.
Not here: which segments retention would delete (`partitions.trimming`), compaction (`clean_bounds`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

import msgspec

from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from idempotency.identity import RegionEpoch
from idempotency.ports import Clock
from region_broker.limits import MIRROR_HOLD_MS
from region_broker.partitions.partition import Partition
from region_broker.partitions.trimming import Hold
from region_broker.ports.disk import Disk
from region_broker.region.mirror.mirror_log import key_of

FILE_NAME: Final = "mirrors"
_log: Final = logging.getLogger("tidemark.mirror")


class _Held(msgspec.Struct):
    """The file: for how long each known mirror was not heard while this node ran and acted under `region_epoch`, and what is
    held of each log."""

    silent_ms: dict[str, int] = {}
    logs: dict[str, int] = {}
    region_epoch: RegionEpoch = RegionEpoch(0)  # an older version counted under any


@dataclass(slots=True, kw_only=True)
class HoldParts:
    """What is asked. `published_cut`: None where this region does not act. `published_starts`: where that tidemark says that
    logs start by order. `region_epoch`: the newest that is recorded here, whoever acts under it. `regions`: all others of the
    configuration.

    `copied`: a mirror's positions, None if it has not asked since this node started; so is `reached`. `heard_ms_ago`:
    None if it was never heard. `acted`: the other regions that acted before this one, and come back some day.
    """

    partitions: Callable[[], Iterable[Partition]]
    published_cut: Callable[[], Cut | None]
    published_starts: Callable[[], Mapping[LogKey, int]]
    region_epoch: Callable[[], RegionEpoch]
    regions: Callable[[], Iterable[str]]
    acted: Callable[[], Iterable[str]]
    copied: Callable[[str], Mapping[LogKey, int] | None]
    reached: Callable[[str], TidemarkPoint | None]
    heard_ms_ago: Callable[[str], int | None]


class _Published(NamedTuple):
    """A tidemark, and where it says that logs start by order."""

    cut: Cut
    starts: Mapping[LogKey, int]


class RetentionHold:
    """Answers `of`. `open` it with the folder; `look` before each round of retention."""

    def __init__(self, disk: Disk, path: Path, clock: Clock, held: _Held) -> None:
        """Use `open`."""
        self._disk = disk
        self._path = path
        self._clock = clock
        self._held = held
        self._noted = msgspec.json.encode(held)
        self._looked_ms = clock.monotonic_ms()
        self._meeting, self._saving = asyncio.Lock(), asyncio.Lock()
        self._watched: _Published | None = None
        self._confirmed: _Published | None = None

    @classmethod
    def open(cls, disk: Disk, folder: Path, clock: Clock, regions: Iterable[str]) -> Self:
        """Read the file in `folder`, which exists. If it is damaged, everything is held for all `regions`."""
        path = folder / FILE_NAME
        if not disk.exists(path):
            return cls(disk, path, clock, _Held())
        try:
            return cls(disk, path, clock, msgspec.json.decode(disk.read_file(path), type=_Held))
        except msgspec.MsgspecError as error:
            _log.exception(
                "%s is not readable: everything is kept for all mirrors: %s", path, error
            )
            return cls(disk, path, clock, _Held(dict.fromkeys(regions, 0)))

    @property
    def mirrors(self) -> tuple[str, ...]:
        """Return the mirrors that something is held for (INV-RH3)."""
        known = self._held.silent_ms.items()
        return tuple(name for name, silent_ms in known if silent_ms <= MIRROR_HOLD_MS)

    def of(self, partition: Partition) -> Hold | None:
        """Return what of `partition` must be kept; None where no mirror is known."""
        if not self.mirrors:
            return None
        key = key_of(partition)
        starts = {} if self._confirmed is None else self._confirmed.starts
        return Hold(self._held.logs.get(key.encode(), 0), starts.get(key, 0))

    def begin_anew(self, met: Iterable[str]) -> None:
        """Begin to lead a region of several nodes, which has `met` these regions (INV-RH5)."""
        self._looked_ms = self._clock.monotonic_ms()
        self._watched = self._confirmed = None
        self._held = _Held(dict.fromkeys((*self._held.silent_ms, *met), 0))

    async def meet(self, region: str) -> None:
        """Know a mirror, durably, before it is answered (INV-RH2); raises OSError, and then it is not known."""
        async with self._meeting:
            if region in self.mirrors:
                return
            before = self._held.silent_ms.get(region)
            self._held.silent_ms[region] = 0
            try:
                await self._save()
            except OSError:
                del self._held.silent_ms[region]
                if before is not None:
                    self._held.silent_ms[region] = before
                raise

    async def look(self, parts: HoldParts) -> None:
        """See how far the mirrors are by now, and write it down; to be called before retention deletes."""
        self._note_mirrors(parts)
        self._note_logs(parts)
        if msgspec.json.encode(self._held) != self._noted:
            try:
                await self._save()
            except OSError:  # INV-RH4: retention is what makes room on a full disk
                _log.exception("%s cannot be written", self._path)

    def _note_mirrors(self, parts: HoldParts) -> None:
        """Count for how long each was silent (INV-RH3).

        1. Both regions are off for a week, or a wall clock is set a week ahead. 2. The primary's first round of
        retention comes before the mirror does. Counted by the wall, the mirror would be forgotten, and what it lacks
        deleted.
        """
        now_ms, known, regions = (
            self._clock.monotonic_ms(),
            self._held.silent_ms,
            set(parts.regions()),
        )
        passed_ms, self._looked_ms = now_ms - self._looked_ms, now_ms
        held_for = self.mirrors
        self._count_silence(parts, passed_ms)
        for name in parts.acted():
            known.setdefault(name, 0)
        for name in known.keys() - regions:
            del known[name]
        for name in held_for:
            if name not in self.mirrors:
                _log.warning(
                    "nothing is kept for region %s any more: it is gone for too long", name
                )

    def _count_silence(self, parts: HoldParts, passed_ms: int) -> None:
        known, region_epoch = self._held.silent_ms, parts.region_epoch()
        if region_epoch != self._held.region_epoch:  # INV-RH6
            self._held.region_epoch = region_epoch
            known.update(dict.fromkeys(known, 0))
        elif parts.published_cut() is not None:
            for name in known:
                heard_ms_ago = parts.heard_ms_ago(
                    name
                )  # before this region acted at all, it may be
                silent_ms = known[name] + passed_ms
                known[name] = silent_ms if heard_ms_ago is None else min(silent_ms, heard_ms_ago)

    def _note_logs(self, parts: HoldParts) -> None:
        cut = self._confirmed_cut(parts)
        copied = [parts.copied(name) for name in self.mirrors]
        logs: dict[str, int] = {}
        for partition in parts.partitions():
            key = key_of(partition)
            held = self._held.logs.get(key.encode(), 0)
            positions = [None if known is None else known.get(key) for known in copied]
            told = [position for position in positions if position is not None]
            if told and cut is not None and len(told) == len(positions):
                held = min(*told, cut.position_of(key))
            logs[key.encode()] = held
        self._held.logs = logs

    def _confirmed_cut(self, parts: HoldParts) -> Cut | None:
        """Return a cut that all known mirrors have reached; two vectors are kept, however far they lag."""
        published = parts.published_cut()
        if published is None:
            self._watched = self._confirmed = None
            return None
        known = self._watched or self._confirmed
        if known is not None and known.cut.point.region_epoch != published.point.region_epoch:
            # Another region acted between two looks: they may be void.
            self._watched = self._confirmed = None
        if self._watched is not None and self._all_reached(parts, self._watched.cut.point):
            self._confirmed, self._watched = self._watched, None
        confirmed = BEFORE_ALL if self._confirmed is None else self._confirmed.cut.point
        if self._watched is None and published.point > confirmed:
            self._watched = _Published(published, parts.published_starts())
            if self._all_reached(parts, published.point):
                self._confirmed, self._watched = self._watched, None
        return None if self._confirmed is None else self._confirmed.cut

    def _all_reached(self, parts: HoldParts, point: TidemarkPoint) -> bool:
        reached = [parts.reached(name) for name in self.mirrors]
        return all(known is not None and known >= point for known in reached)

    async def _save(self) -> None:
        async with self._saving:
            data = msgspec.json.encode(self._held)
            await asyncio.to_thread(self._disk.write_file_atomic, self._path, data)
            self._noted = data
