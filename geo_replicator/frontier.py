"""Which tidemark a mirror region has reached (T16).

INV-FR1  a tidemark is complete when every position of it, and of all before it, is below the mirror's HW
INV-FR2  a complete tidemark is shown only after the fact {region epoch, k} is durable
INV-FR3  reached never goes down here; only a lineage that voids it lowers it, at a restart of the role (T25)
INV-FR4  a void tidemark is never complete, nor is any behind it of the same epoch (T25)
INV-FR5  a tidemark whose bytes were deleted at the primary before they came is skipped, with all up to the one
         that no longer names the deleted log; what else they need is needed still
INV-FR6  only logs that were checked against the primary under the tidemark's region epoch count for it (T23)
INV-FR7  a log that was copied with the holes of a cleaning counts for no tidemark inside them: its keys have their
         newest values only from the end of what was cleaned on (T13)
INV-FR8  a log that the tidemark reached names and that is not here is needed by whatever comes next: nothing is complete
         without it, unless a tidemark names its removal (T16)
INV-FR9  one that is passed by is not reached itself: the next one that is kept needs what it needed. Each that is kept is complete, or cannot
         be reached, when it would be so without that

Cost: one counter per pending tidemark, one queue of awaited positions per log; O(moved) altogether.
Not here: reading `__tidemarks` (`tidemark.TidemarkBook`), durability (`ports.ReachedStore`), showing.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from geo_replicator.lineage import BEFORE_ALL, Lineage, LogKey, TidemarkPoint
from geo_replicator.tidemark import Tidemark
from geo_replicator.topology import LedgerTopics
from idempotency.identity import RegionEpoch


@dataclass(slots=True)
class _Pending:
    point: TidemarkPoint
    missing: int
    unreachable: bool = False


@dataclass(slots=True)
class _Log:
    """One log of the mirror: its HW as it counts here, and who waits for more, lowest first."""

    high_watermark: int = 0
    reconciled_region_epoch: RegionEpoch = RegionEpoch(0)
    whole_from: int = 0
    cut: int = 0
    awaited: deque[tuple[int, _Pending]] = field(default_factory=deque)


@dataclass(slots=True)
class Frontier:
    """Feed it tidemarks in order, reconciliations and high watermarks; it says what is complete.

    `reached` is durable and shown; `complete` may be ahead of it until `persisted` is called.
    """

    ledgers: LedgerTopics
    lineage: Lineage = field(default_factory=Lineage)
    reached: TidemarkPoint = BEFORE_ALL
    complete: TidemarkPoint = BEFORE_ALL
    void_count: int = 0
    _pending: deque[_Pending] = field(default_factory=deque)
    _logs: dict[LogKey, _Log] = field(default_factory=dict)
    _seeded: dict[LogKey, _Log] = field(default_factory=dict)
    _absent: dict[LogKey, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start from what was durable before."""
        assert not self.lineage.is_void(self.reached), (self.reached, "lowered before (T25)")
        self.complete = self.reached

    def observe(self, tidemark: Tidemark) -> None:
        """Take the next tidemark of the mirror's `__tidemarks`, in log order."""
        if self.lineage.is_void(tidemark.point):
            self.void_count += 1
            return
        if tidemark.point <= self.reached:
            return
        newest = self._pending[-1].point if self._pending else self.complete
        assert newest < tidemark.point, f"INV-FR1: {tidemark.point} comes behind {newest}"
        self._give_up(tidemark.removed)
        pending = _Pending(tidemark.point, 0)
        pending.unreachable = self._inside_holes(tidemark)
        for key, position in {**self._still_absent(tidemark), **self._needs(tidemark)}.items():
            if not self._has(key, position, tidemark.region_epoch):
                pending.missing += 1
                self._logs.setdefault(key, _Log()).awaited.append((position, pending))
        self._pending.append(pending)
        self._settle()

    @property
    def pending_count(self) -> int:
        """Return how many tidemarks were observed and are not reached."""
        return len(self._pending)

    def pass_by(self, stride: int, spared: Collection[TidemarkPoint]) -> set[TidemarkPoint]:
        """Keep of what is pending every `stride`th number, the newest one and `spared`; return what is kept (INV-FR9).

        Kept is also what can be reached where the next one that is kept cannot.
        """
        kept: deque[_Pending] = deque()
        heirs: dict[int, _Pending] = {}
        for pending in reversed(self._pending):
            is_asked_for = pending.point.number % stride == 0 or pending.point in spared
            if is_asked_for or not kept or (kept[0].unreachable and not pending.unreachable):
                kept.appendleft(pending)
                pending.missing = 0
            heirs[id(pending)] = kept[0]
        for log in self._logs.values():
            log.awaited = _inherited(log.awaited, heirs)
        self._pending = kept
        return {pending.point for pending in kept}

    def absent(self, positions: Mapping[LogKey, int]) -> None:
        """Name the logs of the tidemark reached that are not here, with their positions; before any is observed (INV-FR8).

        1. The primary deletes a topic, and is lost before a tidemark says so. 2. Another region takes over at a tidemark
        that names the topic. 3. The lost one returns to that tidemark, without the topic; later tidemarks do not name
        it again while nobody writes to it. 4. It would count as reached, and be taken over at, without those records.
        """
        assert not self._pending, "what was observed already does not wait for them"
        self._absent = dict(positions)

    def _still_absent(self, tidemark: Tidemark) -> Mapping[LogKey, int]:
        """Return what the next tidemark needs beside its own: those behind it wait for it."""
        absent, self._absent = self._absent, {}
        gone = set(tidemark.removed)
        return {key: position for key, position in absent.items() if key not in gone}

    def _give_up(self, removed: Iterable[LogKey]) -> None:
        """Skip the pending tidemarks that need bytes which are gone at the primary: a later one does not."""
        lost: list[_Pending] = []
        for key in removed:
            log = self._logs.get(key)
            if log is not None:
                lost += [pending for _, pending in log.awaited]
                log.awaited.clear()
        for pending in lost:
            pending.missing -= 1
        if lost:
            first = min(pending.point for pending in lost)
            for pending in self._pending:
                pending.unreachable = pending.unreachable or pending.point >= first

    def seeded(self, key: LogKey, whole_from: int) -> None:
        """Say that offsets below `whole_from` may be missing in a log; to be called before they count as durable."""
        log = self._logs.setdefault(key, _Log())
        if whole_from <= log.whole_from:
            return
        log.whole_from = whole_from
        self._seeded[key] = log
        named = {id(pending): position for position, pending in log.awaited}
        for pending in self._pending:
            log.cut = named.get(id(pending), log.cut)
            pending.unreachable = pending.unreachable or 0 < log.cut < whole_from

    def _inside_holes(self, tidemark: Tidemark) -> bool:
        inside = False
        needs = self._needs(tidemark) if self._seeded else {}
        for key, log in self._seeded.items():
            log.cut = needs.get(key, log.cut)
            inside = inside or 0 < log.cut < log.whole_from
        return inside

    def _needs(self, tidemark: Tidemark) -> Mapping[LogKey, int]:
        needs = {key: place.cut_offset for key, place in tidemark.moved.items()}
        for shard, offset in tidemark.ledger.items():
            needs[self.ledgers.shard_key(shard)] = offset
        return needs

    def _has(self, key: LogKey, position: int, region_epoch: RegionEpoch) -> bool:
        if position == 0:
            return True
        log = self._logs.get(key)
        return (
            log is not None
            and log.reconciled_region_epoch >= region_epoch
            and log.high_watermark >= position
            and not log.awaited
        )

    def reconciled(self, keys: Iterable[LogKey], region_epoch: RegionEpoch) -> None:
        """Note that these logs were checked against the primary under `region_epoch` (INV-FR6)."""
        for key in keys:
            log = self._logs.setdefault(key, _Log())
            log.reconciled_region_epoch = max(log.reconciled_region_epoch, region_epoch)
            self._serve(log)
        self._settle()

    def unreconcile(self) -> None:
        """A session ended: HWs count again once the logs were checked in the next one (INV-FR6)."""
        for log in self._logs.values():
            log.reconciled_region_epoch = RegionEpoch(0)

    def advanced(self, key: LogKey, high_watermark: int) -> None:
        """Note that the mirror's HW of `key` is `high_watermark`."""
        log = self._logs.setdefault(key, _Log())
        log.high_watermark = high_watermark
        self._serve(log)
        self._settle()

    def logs_of(self, topic_id: UUID, first: int) -> tuple[LogKey, ...]:
        """Return the known logs of a topic, from partition `first` on."""
        return tuple(
            key for key in self._logs if key.topic_id == topic_id and key.partition >= first
        )

    def removed(self, key: LogKey) -> None:
        """Forget a log whose topic was deleted on the mirror."""
        log = self._logs.pop(key, None)
        self._seeded.pop(key, None)
        assert log is None or not log.awaited, f"{key.encode()} is still awaited"

    def _serve(self, log: _Log) -> None:
        while log.awaited:
            position, pending = log.awaited[0]
            if log.high_watermark < position:
                return
            if log.reconciled_region_epoch < pending.point.region_epoch:
                return
            log.awaited.popleft()
            pending.missing -= 1
            assert pending.missing >= 0, pending

    def _settle(self) -> None:
        while self._pending and self._pending[0].missing == 0:
            pending = self._pending.popleft()
            if not pending.unreachable:
                self.complete = pending.point

    def persisted(self, point: TidemarkPoint) -> None:
        """Note that {region epoch, k} is durable: it may be shown now (INV-FR2)."""
        assert self.reached <= point, f"INV-FR3: {point} is below {self.reached}, which was reached"
        assert point <= self.complete, f"INV-FR2: {point} is not complete: {self.complete} is"
        self.reached = point


def _inherited(
    awaited: Iterable[tuple[int, _Pending]], heirs: Mapping[int, _Pending]
) -> deque[tuple[int, _Pending]]:
    """Return who waits for how much of one log, now that the heirs wait: positions never go down (T11)."""
    left: deque[tuple[int, _Pending]] = deque()
    for position, pending in awaited:
        heir = heirs[id(pending)]
        if left and left[-1][1] is heir:
            left.pop()
        else:
            heir.missing += 1
        left.append((position, heir))
    return left
