"""Mending a damaged segment: what is wrong is fetched from whoever still has it, judged, and put in place by one durable step.

INV-MND1  a crash at any point leaves the old segment or the mended one (INV-CLS1)
INV-MND2  nothing is fetched for offsets that a cleaning may have thinned out (INV-DR2), or of which nothing durable lies
         behind: the batch behind the range is what both sides must have alike (INV-HI1, INV-NRG2)
INV-MND3  what was begun before the log was cut, shortened or closed is void
Reads of the range answer as before meanwhile: it is refused, and what lies beside it is served. A file beside a segment
that is a function of the log is built again from it, by nobody's help.

Not here: what is damaged (`log.scrubbing`), which node or region is asked, and how far both hold the same (`RangeSource`).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Protocol

from geo_replicator.history import LastBatch
from idempotency.record_batch import BatchError, iter_headers
from region_broker.log.cleaning.state import Swap
from region_broker.log.failures import CorruptRange, LogDamaged, LogError, NoRangeFits, NotMended
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.log.log_config import NodeLogConfig
from region_broker.log.scrubbing.damage import DamagedRange, Joining, WrongPiece
from region_broker.log.scrubbing.examining import Examination, Subject
from region_broker.log.scrubbing.replacing import Replacement, aborted_file, index_file
from region_broker.log.segment import SealedCache, Segment
from region_broker.partitions.pace import Pace
from region_broker.partitions.partition import Partition
from region_broker.ports.disk import Disk

logger: Final = logging.getLogger(__name__)

MEND_FILES_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whole batches from `from_offset` up to `to_offset`, where `above` begins here."""

    from_offset: int
    to_offset: int
    above: LastBatch


class RangeSource(Protocol):
    """The other nodes of this region, and the other regions."""

    async def piece(self, partition: Partition, wanted: Wanted) -> bytes:
        """Return some of what is wanted, from its start on; raises `NotMended` where nobody gives it."""
        ...


@dataclass(slots=True, kw_only=True)
class MenderParts:
    """What is worked with. `on_sealed` gets each new segment; `room_refusal` says why the disk takes nothing large."""

    source: RangeSource
    disk: Disk
    pace: Pace
    on_sealed: Callable[[Path], None]
    room_refusal: Callable[[], str | None]


class Mend:
    """One try to mend one segment. `run`, then `reasons` are why something of it is left, one for each range or file."""

    def __init__(
        self, partition: Partition, segment: Segment, subject: Subject, parts: MenderParts
    ) -> None:
        """Hold the log as it is now."""
        self.reasons: list[str] = []
        self.mended: list[DamagedRange] = []
        self.no_range_fits = False
        """Whether something of it can be mended by no range, by nobody (INV-SCB11)."""
        self._partition = partition
        self._log = partition.log
        self._segment = segment
        self._subject = subject
        self._parts = parts
        self._interruptions = partition.log.cleaning.interruptions
        self._cache = SealedCache(parts.disk, NodeLogConfig(open_files_max=MEND_FILES_MAX))
        self._stop_reason = ""

    def is_void(self) -> bool:
        """Return whether the log has changed since (INV-MND3)."""
        return self._interruptions != self._log.cleaning.interruptions

    async def run(self, found: Examination) -> bool:
        """Mend what was found; return whether all of it is. False and no reason: it is to be looked at again."""
        state = self._log.cleaning
        if not state.take():
            return False
        try:
            await self._parts.pace.once(state.settle)  # the end of the swap before may have failed
            if found.damages:
                return await self._replace(found)
            return await self._beside(found)
        except (LogError, BatchError, OSError) as error:
            self.reasons.append(str(error))
            if self._stop_reason:
                self._log.fail(f"{self._stop_reason}: {error}")
            return False
        finally:
            state.release()
            self._cache.close()

    # -- batches ---------------------------------------------------------------------------------

    async def _replace(self, found: Examination) -> bool:
        parts = self._parts
        if refusal := parts.room_refusal():
            raise NotMended(refusal)
        made: list[Replacement] = []
        await parts.pace.once(lambda: made.append(Replacement(self._subject, self._cache)))
        replacement, is_done = made[0], False
        try:
            for damage in found.damages:
                try:
                    await self._fetch(damage, replacement)
                    self.mended.append(damage)
                except NotMended as error:
                    self.no_range_fits |= isinstance(error, NoRangeFits)
                    self.reasons.append(str(error))
            left = [each for each in found.damages if each not in self.mended]
            if self.mended and not self.is_void():
                is_done = await self._put_in_place(replacement, left)
        finally:
            if not is_done:
                self.mended = []
            await parts.pace.once(replacement.close if is_done else replacement.discard)
        return is_done and not left

    async def _fetch(self, damage: DamagedRange, replacement: Replacement) -> None:
        """Write what belongs into a range beside the segment; raises `NotMended`."""
        holes_below = self._log.cleaning.holes_below
        if damage.from_offset < holes_below:  # INV-MND2
            raise NoRangeFits(
                f"[{damage.from_offset}, {damage.to_offset}) lies below {holes_below}, where compaction may have left other"
                " bytes on each node and in each region: what the runbook damaged_log says of compacted topics is to be done by hand"
            )
        above = await self._above(damage.to_offset)
        joining = Joining(damage, self._log.epochs)
        try:
            while not joining.is_whole:
                wanted = Wanted(joining.next_offset, damage.to_offset, above)
                data = await self._parts.source.piece(self._partition, wanted)
                position = joining.position
                await self._parts.pace.once(partial(joining.take, data))
                await self._parts.pace.once(partial(replacement.put, position, data))
                await self._parts.pace.rest(len(data))
        except WrongPiece as error:
            raise NotMended(f"what others hold there does not fit: {error}") from error

    async def _above(self, offset: int) -> LastBatch:
        """Return the batch that begins at `offset`, which is what proves that another log is the same below it."""
        try:
            data = await self._partition.reader.cold_reads.read(
                partial(self._partition.reader.read_raw, offset, 1)
            )
        except CorruptRange as error:
            raise NotMended(f"what lies behind it is damaged, too: {error}") from error
        found = next((header for _, header in iter_headers(data)), None)
        if found is None or found.base_offset != offset:
            raise NotMended(f"nothing durable begins at {offset} that both sides could compare")
        return LastBatch(found.leader_epoch, found.base_offset, found.crc)

    async def _put_in_place(self, replacement: Replacement, left: list[DamagedRange]) -> bool:
        pace, state = self._parts.pace, self._log.cleaning
        before = self._before()
        if not await pace.through(replacement.write(self.mended, left, before), self.is_void):
            return False
        # If this fails, whether the durable step was made is not known: only a start can find out.
        self._stop_reason = f"putting a mended segment into {self._log.folder} failed"
        prepared: list[bool] = []
        await pace.once(
            lambda: prepared.append(state.prepare(replacement.swap, self._interruptions))
        )
        if not prepared[0] or not self._swap(replacement.swap):
            self._stop_reason = ""
            return False
        self._stop_reason = ""
        self._partition.watchers.notify()  # a mirror that could not be sent the range waits for news
        await pace.once(state.settle)
        await pace.once(self._digest)
        return True

    def _swap(self, swap: Swap) -> bool:
        """On the event loop: let names and memory follow what is durable, in one step."""
        log, old = self._log, self._segment
        if not log.cleaning.apply(swap):
            return False
        fresh = Segment(
            old.path, old.base_offset, old.cache, log.config,
            size_bytes=old.size_bytes, next_offset=old.next_offset,
        )  # fmt: skip
        log.segments.replace([old], fresh)
        return True

    def _digest(self) -> None:
        try:
            self._parts.on_sealed(self._segment.path)
        except OSError as error:
            # The segment itself is durable; a digest that is missing is made by the next start.
            logger.warning("no digest was written for %s: %s", self._segment.path, error)

    def _before(self) -> list[Segment]:
        """Return the log's segments up to this one, for use in a thread."""
        segments = self._log.segments.segments
        upto = [each for each in segments if each.base_offset <= self._segment.base_offset]
        return [
            Segment(
                each.path, each.base_offset, self._cache, each.config,
                size_bytes=each.size_bytes, next_offset=each.next_offset,
            )
            for each in upto
        ]  # fmt: skip

    # -- files beside it -------------------------------------------------------------------------

    async def _beside(self, found: Examination) -> bool:
        """Build files again that are functions of the segment, which is sound."""
        before = self._before()
        kept: list[bool] = []
        for suffix in found.side_faults:
            await self._parts.pace.once(partial(self._build, suffix, before, kept))
        self._segment.cache.indexes.forget(self._segment.path)
        self._segment.cache.aborted.forget(self._segment.path)
        return all(kept)

    def _build(self, suffix: str, before: list[Segment], kept: list[bool]) -> None:
        data: bytes | None
        if suffix == INDEX_SUFFIX:
            data = index_file(before[-1])
        elif suffix == ABORTED_SUFFIX:
            data = aborted_file(self._subject, before)
        else:
            raise LogDamaged(f"{self._subject.beside(suffix)} is no function of its segment")
        if data is None:
            self.reasons.append(
                f"{self._subject.beside(suffix)} cannot be built again where the log was compacted"
            )
            kept.append(False)
            return
        path = self._subject.beside(suffix)
        kept.append(self._log.cleaning.keep_file(path, data, self._interruptions))
