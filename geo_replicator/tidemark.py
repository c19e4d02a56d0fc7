"""The tidemark record: its codec, the rules it obeys when written, and the vectors that records add up to.

INV-TM1  number k of a record is that of the one before plus 1 (T10)
INV-TM2  positions never go down: L, D and r of a record are >= those of the one before, r is greater (T11)
INV-TM4  a removed log is one whose topic was deleted; a log that was never named is younger than k (T15)
INV-TM6  a vector is the same whether the tidemarks before it were passed by or not (INV-FR9)
INV-TM5  what a mirror shows of every log moves with each tidemark reached, the ledgers' with L and `__tidemarks`
         itself with the tidemark's own record: raising the floor names them all

`__tidemarks` holds two kinds of records, told apart by the key: tidemarks, and the term records with which a
new cut leader makes sure that it leads (T1). One record per batch.
Not here: what the next record says (`tidemark_writer`), rounds (`rounds`), what a mirror has reached (`frontier`), the
log itself.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from struct import Struct
from struct import error as struct_error
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from geo_replicator.lineage import Cut, LogKey, TidemarkPoint
from geo_replicator.topology import LedgerTopics
from idempotency.identity import RegionEpoch, Round

NOWHERE: Final = -1
_KEY: Final = Struct(">hq")
_TIDEMARK: Final = 0
_TERM: Final = 1
_FORMAT: Final = 1
_TOPIC_IDS_KEPT: Final = 16_384


class TidemarkError(Exception):
    """A record of `__tidemarks` that cannot be read, or that breaks T10 or T11."""


class LogPosition(NamedTuple):
    """D of one log, and its log start at the primary (T14)."""

    cut_offset: int
    log_start_offset: int

    @property
    def deleted_below(self) -> int:
        """Return below which offset a region that reached this deletes the log: nothing that the cut does not hold."""
        return min(self.log_start_offset, self.cut_offset)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidemark:
    """One published cut. `ledger` is L per shard; `moved` holds D where it changed, or all if `full`.

    `previous_at` and `full_at` are offsets in `__tidemarks` (NOWHERE: none; `full_at` of a full record is
    NOWHERE too, it is the full one itself). `wall_ms` is the primary's clock at publication.
    """

    domain: str
    region_epoch: RegionEpoch
    number: int
    round: Round
    metadata_version: int
    ledger: Mapping[int, int]
    moved: Mapping[LogKey, LogPosition] = field(default_factory=dict)
    removed: tuple[LogKey, ...] = ()
    full: bool = False
    previous_at: int = NOWHERE
    full_at: int = NOWHERE
    wall_ms: int = 0

    @property
    def point(self) -> TidemarkPoint:
        """Return (region_epoch, k)."""
        return TidemarkPoint(self.region_epoch, self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class TermRecord:
    """A cut leader's first record: it publishes only once this one is below HW (T1)."""

    domain: str
    region_epoch: RegionEpoch
    term: int
    number: int
    previous_at: int = NOWHERE
    full_at: int = NOWHERE


class _TidemarkWire(msgspec.Struct, frozen=True, array_like=True):
    format: int
    domain: str
    region_epoch: RegionEpoch
    number: int
    round: Round
    metadata_version: int
    ledger: list[tuple[int, int]]
    moved: list[tuple[bytes, list[tuple[int, int, int]]]]
    removed: list[tuple[bytes, int]]
    full: bool
    previous_at: int
    full_at: int
    wall_ms: int


class _TermWire(msgspec.Struct, frozen=True, array_like=True):
    format: int
    domain: str
    region_epoch: RegionEpoch
    term: int
    number: int
    previous_at: int
    full_at: int


def encode(record: Tidemark | TermRecord) -> tuple[bytes, bytes]:
    """Return (key, value) of a `__tidemarks` record."""
    if isinstance(record, TermRecord):
        return _KEY.pack(_TERM, record.term), msgspec.msgpack.encode(
            _TermWire(
                _FORMAT,
                record.domain,
                record.region_epoch,
                record.term,
                record.number,
                record.previous_at,
                record.full_at,
            )
        )
    by_topic: dict[UUID, list[tuple[int, int, int]]] = {}
    for key, position in record.moved.items():
        by_topic.setdefault(key.topic_id, []).append((key.partition, *position))
    wire = _TidemarkWire(
        _FORMAT,
        record.domain,
        record.region_epoch,
        record.number,
        record.round,
        record.metadata_version,
        sorted(record.ledger.items()),
        # Topics are compared with each other, not logs: a comparison of ids is the dear part of it.
        [(topic_id.bytes, sorted(positions)) for topic_id, positions in sorted(by_topic.items())],
        [(key.topic_id.bytes, key.partition) for key in record.removed],
        record.full,
        record.previous_at,
        record.full_at,
        record.wall_ms,
    )
    return _KEY.pack(_TIDEMARK, record.number), msgspec.msgpack.encode(wire)


def decode(key: bytes, value: bytes) -> Tidemark | TermRecord:
    """Return what `encode` wrote; raises `TidemarkError`."""
    try:
        kind, _ = _KEY.unpack(key)
        if kind == _TERM:
            return _read_term(msgspec.msgpack.decode(value, type=_TermWire))
        if kind == _TIDEMARK:
            return _read_tidemark(msgspec.msgpack.decode(value, type=_TidemarkWire))
    except (msgspec.DecodeError, struct_error, ValueError) as error:
        raise TidemarkError(f"a record of __tidemarks is malformed: {error}") from error
    raise TidemarkError(f"a record of __tidemarks is of unknown kind {kind}: a newer Tidemark?")


def _check_format(number: int) -> None:
    if number != _FORMAT:
        raise TidemarkError(
            f"a record of __tidemarks has format {number}, this Tidemark reads {_FORMAT}: upgrade it"
        )


def _read_term(wire: _TermWire) -> TermRecord:
    _check_format(wire.format)
    return TermRecord(
        domain=wire.domain,
        region_epoch=wire.region_epoch,
        term=wire.term,
        number=wire.number,
        previous_at=wire.previous_at,
        full_at=wire.full_at,
    )


@lru_cache(maxsize=_TOPIC_IDS_KEPT)
def _topic_id(topic_bytes: bytes) -> UUID:
    """Return the id, the same object each time: a thousand tidemarks name the same topics, and one object is found by what it is."""
    return UUID(bytes=topic_bytes)


def _read_tidemark(wire: _TidemarkWire) -> Tidemark:
    _check_format(wire.format)
    moved: dict[LogKey, LogPosition] = {}
    for topic_bytes, positions in wire.moved:
        topic_id = _topic_id(topic_bytes)
        for partition, cut_offset, log_start_offset in positions:
            moved[LogKey(topic_id, partition)] = LogPosition(cut_offset, log_start_offset)
    return Tidemark(
        domain=wire.domain,
        region_epoch=wire.region_epoch,
        number=wire.number,
        round=wire.round,
        metadata_version=wire.metadata_version,
        ledger=dict(wire.ledger),
        moved=moved,
        removed=tuple(LogKey(UUID(bytes=topic_id), number) for topic_id, number in wire.removed),
        full=wire.full,
        previous_at=wire.previous_at,
        full_at=wire.full_at,
        wall_ms=wire.wall_ms,
    )


@dataclass(frozen=True, slots=True)
class Stretch:
    """All that moved from one tidemark to `newest`: the next one, or a later one where those in between were passed by.

    `at` is the offset of its record, `full_at` that of the last full record in it, NOWHERE where there is none.
    """

    newest: Tidemark
    at: int
    moved: Mapping[LogKey, LogPosition]
    removed: tuple[LogKey, ...]
    full_at: int

    @property
    def cost(self) -> int:
        """Return what it takes of memory, in positions."""
        own, newest = len(self.moved) + len(self.removed), self.newest
        is_one = self.moved is newest.moved
        return 1 + own + len(newest.ledger) + (0 if is_one else len(newest.moved))


def stretch_of(tidemark: Tidemark, at: int) -> Stretch:
    """Return what moved to `tidemark` from the one before it."""
    full_at = at if tidemark.full else NOWHERE
    return Stretch(tidemark, at, tidemark.moved, tidemark.removed, full_at)


def joined(stretches: Sequence[Stretch]) -> Stretch:
    """Return neighbours as one, oldest first (INV-TM6)."""
    if len(stretches) == 1:
        return stretches[0]
    moved: dict[LogKey, LogPosition] = {}
    removed: dict[LogKey, None] = {}
    full_at = NOWHERE
    for stretch in stretches:
        if stretch.full_at != NOWHERE:
            moved, full_at = {}, stretch.full_at
        moved.update(stretch.moved)
        for key in stretch.removed:
            moved.pop(key, None)
            removed[key] = None
    gone = tuple(key for key in removed if key not in moved)
    return Stretch(stretches[-1].newest, stretches[-1].at, moved, gone, full_at)


@dataclass(slots=True)
class Vector:
    """All positions of one tidemark; `at` is the offset of its record in `__tidemarks`."""

    newest: Tidemark
    positions: dict[LogKey, LogPosition]
    at: int
    full_at: int

    def advanced(self, stretch: Stretch) -> None:
        """Become the vector of the tidemark that `stretch` leads to."""
        is_whole = stretch.full_at != NOWHERE
        if is_whole:
            self.positions = dict(stretch.moved)
        else:
            self.positions.update(stretch.moved)
            for key in stretch.removed:
                self.positions.pop(key, None)
        self.newest = stretch.newest
        self.at = stretch.at
        self.full_at = stretch.full_at if is_whole else self.full_at

    def copy(self) -> "Vector":
        """Return an independent vector."""
        return Vector(self.newest, dict(self.positions), self.at, self.full_at)


def first_vector(tidemark: Tidemark, at: int) -> Vector:
    """Return the vector of a full record."""
    assert tidemark.full, tidemark.point
    return Vector(tidemark, dict(tidemark.moved), at, at)


def broken_rules(before: Vector, after: Tidemark) -> list[str]:
    """Return what `after` breaks of T10 and T11 as the successor of `before`; nothing if it may follow."""
    last = before.newest
    broken = []
    if after.number != last.number + 1:
        broken.append(f"T10: number {after.number} follows {last.number}")
    if after.region_epoch < last.region_epoch:
        broken.append(f"T11: region epoch {after.region_epoch} follows {last.region_epoch}")
    if after.round <= last.round:
        broken.append(f"T11: round {after.round} follows {last.round}")
    if sorted(after.ledger) != sorted(last.ledger):
        broken.append(f"T15: ledger shards {sorted(after.ledger)} follow {sorted(last.ledger)}")
    broken += [
        f"T11: L of shard {shard} goes from {last.ledger[shard]} down to {offset}"
        for shard, offset in after.ledger.items()
        if offset < last.ledger.get(shard, 0)
    ]
    broken += [
        f"T11: D of {key.encode()} goes from {before.positions[key].cut_offset} down to"
        f" {position.cut_offset}"
        for key, position in after.moved.items()
        if key in before.positions and position.cut_offset < before.positions[key].cut_offset
    ]
    return broken


class TidemarkBook:
    """The tidemarks from a floor on: what was read of `__tidemarks`, resolved to full vectors on demand.

    The floor is the last tidemark reached (mirror) or published (primary): nobody asks for older ones. Feed it
    every record in log order from a full one on (or from offset 0).
    """

    def __init__(self, ledgers: LedgerTopics) -> None:
        """Start empty."""
        self._ledgers = ledgers
        self._floor: Vector | None = None
        self._newest: Vector | None = None
        self._above: list[Stretch] = []
        self._cost_above = 0

    @property
    def newest(self) -> Vector | None:
        """Return the vector of the last tidemark read, None before the first."""
        return self._newest

    @property
    def floor(self) -> Vector | None:
        """Return the vector of the floor, None before the first tidemark."""
        return self._floor

    @property
    def cost_above(self) -> int:
        """Return what is kept above the floor takes of memory, in positions."""
        return self._cost_above

    def known(self) -> tuple[TidemarkPoint, ...]:
        """Return the tidemarks whose positions can be asked for, oldest first."""
        return tuple(vector.point for vector in self._known())

    def _known(self) -> Iterator[Tidemark]:
        if self._floor is not None:
            yield self._floor.newest
        for stretch in self._above:
            yield stretch.newest

    def apply(self, at: int, record: Tidemark | TermRecord) -> Tidemark | None:
        """Take the record at offset `at`; return it if it is a tidemark. Raises `TidemarkError`."""
        if isinstance(record, TermRecord):
            return None
        if self._newest is None or self._floor is None:
            if not record.full:
                raise TidemarkError(
                    f"__tidemarks is read from {record.point} at offset {at}, which is not a full one"
                )
            self._floor = first_vector(record, at)
            self._newest = first_vector(record, at)
            return record
        broken = broken_rules(self._newest, record)
        if broken:
            raise TidemarkError(f"{record.point} at offset {at}: {'; '.join(broken)}")
        stretch = stretch_of(record, at)
        self._newest.advanced(stretch)
        self._above.append(stretch)
        self._cost_above += stretch.cost
        return record

    def pass_by(self, kept: Container[TidemarkPoint]) -> None:
        """Forget the tidemarks above the floor that are not `kept`, but for the newest one: nobody asks for them (INV-TM6)."""
        above: list[Stretch] = []
        waiting: list[Stretch] = []
        for stretch in self._above:
            waiting.append(stretch)
            if stretch.newest.point in kept or stretch is self._above[-1]:
                above.append(joined(waiting))
                waiting.clear()
        self._above = above
        self._cost_above = sum(stretch.cost for stretch in above)

    def moved_since_floor(self, point: TidemarkPoint) -> dict[LogKey, int]:
        """Return where each log that moved from the floor to `point` ends there (INV-TM5).

        That is D (0: removed), L of a ledger shard, and one past the record of `point` for `__tidemarks`.
        """
        assert self._floor is not None, point
        changed: dict[LogKey, int] = {}
        newest: Stretch | None = None
        for stretch in self._above:
            if stretch.newest.point > point:
                break
            changed.update({key: position.cut_offset for key, position in stretch.moved.items()})
            for key in stretch.removed:
                changed[key] = 0
            newest = stretch
        if newest is not None:
            changed.update(self._ledgers_since(self._floor.newest.ledger, newest))
        return changed

    def raise_floor(self, point: TidemarkPoint) -> dict[LogKey, int]:
        """Make `point` the floor; return where each log that moved since the old floor ends now (INV-TM5)."""
        assert self._floor is not None, point
        changed = self.moved_since_floor(point)
        taken = 0
        for stretch in self._above:
            if stretch.newest.point > point:
                break
            self._floor.advanced(stretch)
            self._cost_above -= stretch.cost
            taken += 1
        del self._above[:taken]
        return changed

    def _ledgers_since(self, before: Mapping[int, int], stretch: Stretch) -> dict[LogKey, int]:
        moved = {
            self._ledgers.shard_key(shard): offset
            for shard, offset in stretch.newest.ledger.items()
            if before.get(shard) != offset
        }
        return moved | {self._ledgers.tidemark_key: stretch.at + 1}

    def vector(self, point: TidemarkPoint) -> Vector | None:
        """Return the full vector of `point`, None when it is not known (any more)."""
        if self._floor is None or point < self._floor.newest.point:
            return None
        vector = self._floor.copy()
        for stretch in self._above:
            if stretch.newest.point > point:
                break
            vector.advanced(stretch)
        return vector if vector.newest.point == point else None

    def positions(self, point: TidemarkPoint) -> Cut | None:
        """Return the cut at `point`: L, D, and one past its own record; None when it is not known."""
        vector = self.vector(point)
        return None if vector is None else self.cut_of(vector)

    def cut_of(self, vector: Vector) -> Cut:
        """Return `vector` as a cut over all logs."""
        positions = {key: position.cut_offset for key, position in vector.positions.items()}
        for shard, offset in vector.newest.ledger.items():
            positions[self._ledgers.shard_key(shard)] = offset
        positions[self._ledgers.tidemark_key] = vector.at + 1
        return Cut(vector.newest.point, positions, vector.newest.wall_ms)
