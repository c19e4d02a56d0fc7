"""Topics that are made, grown and deleted while they are mirrored (T15): what a takeover finds at the tidemark reached.

Real, called at each move: what separates two registries (`geo_replicator.topology`), the changes that wait for a tidemark
(`geo_replicator.link.topic_changes`), what a tidemark's record says of removed logs (`geo_replicator.tidemark_writer`), what
is reached (`geo_replicator.frontier`). Plain: a record per log, copied at once or never; the bytes of a deleted topic, which
are gone at the primary at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple
from uuid import UUID

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.link.topic_changes import TopicChanges
from geo_replicator.tidemark import LogPosition, Tidemark, TidemarkBook, decode, encode
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.topology import LedgerTopics, MirrorTopic, topic_difference
from idempotency.identity import RegionEpoch, Round
from tests.model.explore import Broken, Label, Move

EPOCH: Final = RegionEpoch(8)
LEDGERS: Final = LedgerTopics(UUID(int=1), UUID(int=2))
NAMES: Final = ("orders", "returns")
IDS: Final = tuple(UUID(int=3 + number) for number in range(len(NAMES)))
Counts = tuple[int, ...]
"""Partitions of each topic of `NAMES`; 0: there is none."""
Log = tuple[int, int]
Logs = frozenset[Log]
"""Those with a record: topic and partition."""


class Cut(NamedTuple):
    """A published tidemark: the registry's version, the registry then, and the logs that had a record."""

    version: int
    counts: Counts
    held: Logs


class State(NamedTuple):
    """The primary; then the mirror. `waiting` are deletions, each with the version that it was seen at."""

    counts: Counts = (1, 0)
    version: int = 0
    held: Logs = frozenset()
    cuts: tuple[Cut, ...] = ()
    deleted: bool = False
    mirrored: Counts = (0, 0)
    growing: Counts = (0, 0)
    waiting: tuple[tuple[int, int], ...] = ()
    followed: int = -1
    copied: Logs = frozenset()
    tides: int = 0
    reached: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How many tidemarks beside the last, how many partitions a topic grows to, and which logs get a record."""

    tidemarks: int = 1
    partitions: int = 2
    written: tuple[Log, ...] = ((0, 0), (1, 1))


@dataclass(frozen=True)
class Topics:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        return State()

    def canonical(self, state: State) -> State:
        return state

    def good(self, state: State) -> bool:
        """The mirror has the primary's topics, and has reached the last tidemark."""
        if not self._is_over(state) or not state.cuts:
            return False
        return state.mirrored == state.counts and state.reached == len(state.cuts)

    def moves(self, state: State) -> Iterator[Move]:
        yield from self._primary(state)
        yield from self._mirror(state)

    # At the primary.

    def _is_over(self, state: State) -> bool:
        return state.deleted and state.counts[1] == self.size.partitions

    def _primary(self, state: State) -> Iterator[Move]:
        first, second = state.counts
        if first:
            held = frozenset(log for log in state.held if log[0] != 0)
            gone = partial(self._changed, state, (0, second), held=held, deleted=True)
            yield Move(("{} is deleted", NAMES[0]), gone)
        if second < self.size.partitions:
            grown = partial(self._changed, state, (first, second + 1))
            yield Move(("{} has {} partitions", NAMES[1], second + 1), grown)
        for log in _logs_of(state.counts):
            if log in self.size.written and log not in state.held:
                label = ("a record is written to {} {}", NAMES[log[0]], log[1])
                yield Move(label, partial(state._replace, held=state.held | {log}))
        cut = Cut(state.version, state.counts, state.held)
        if (not state.cuts or state.cuts[-1] != cut) and (
            len(state.cuts) < self.size.tidemarks or self._is_over(state)
        ):
            publishes: Label = ("the primary publishes tidemark {}", len(state.cuts) + 1)
            yield Move(publishes, partial(state._replace, cuts=(*state.cuts, cut)))

    def _changed(
        self, state: State, counts: Counts, *, held: Logs | None = None, deleted: bool = False
    ) -> State:
        return state._replace(
            counts=counts, version=state.version + 1, deleted=state.deleted or deleted,
            held=state.held if held is None else held,
        )  # fmt: skip

    # On the mirror.

    def _mirror(self, state: State) -> Iterator[Move]:
        if state.followed != state.version:
            yield Move(("the mirror reads the registry",), partial(self._follow, state))
        known = {*_logs_of(state.mirrored), *_logs_of(state.growing)}
        for log in sorted((state.held - state.copied) & known):
            label = ("the mirror copies {} {}", NAMES[log[0]], log[1])
            yield Move(label, partial(state._replace, copied=state.copied | {log}))
        if state.tides < len(state.cuts):
            copied = partial(state._replace, tides=state.tides + 1)
            yield Move(("the mirror copies a tidemark",), copied)
        complete = _complete(self._told(state), _lengths(state), state.reached)
        if complete > state.reached:
            reaches: Label = ("the mirror reaches tidemark {}", complete)
            yield Move(reaches, partial(self._reach, state, complete))

    def _follow(self, state: State) -> State:
        """Read the registry as it is now; what is new is opened at once, all else waits for a tidemark."""
        difference = topic_difference(_topics(state.mirrored), _topics(state.counts))
        changes = _changes(state)
        changes.growing = difference.grown
        changes.delete(difference.gone, state.version)
        made = {topic.topic_id: topic.partition_count for topic in difference.created}
        mirrored = tuple(
            made.get(topic_id, count) for topic_id, count in zip(IDS, state.mirrored, strict=True)
        )
        state = _noted(state._replace(mirrored=mirrored, followed=state.version), changes)
        if "T15 what is gone is deleted at once" in self.mutants:
            return self._drop(state, state.version)
        return self._drop(state, state.cuts[state.reached - 1].version) if state.reached else state

    def _reach(self, state: State, number: int) -> State:
        """Grow, then count it as reached, then delete: each before a crash could be between them."""
        changes = _changes(state)
        mirrored = list(state.mirrored)
        named = [LogKey(IDS[topic], p) for topic, p in _positions(self._told(state), number)]
        if "T15 it is reached before it grows" not in self.mutants:
            for topic_id, count in changes.grown_at(named).items():
                mirrored[IDS.index(topic_id)] = count
                changes.grown(topic_id, count)
        after = _noted(state._replace(mirrored=tuple(mirrored), reached=number), changes)
        return self._drop(after, state.cuts[number - 1].version)

    def _drop(self, state: State, version: int) -> State:
        changes, mirrored, copied = _changes(state), list(state.mirrored), state.copied
        for drop in changes.due(version):
            number = IDS.index(drop.topic.topic_id)
            mirrored[number] = drop.keeps
            copied = frozenset(log for log in copied if log[0] != number or log[1] < drop.keeps)
            changes.done(drop)
        return _noted(state._replace(mirrored=tuple(mirrored), copied=copied), changes)

    def _told(self, state: State) -> "Told":
        forgets = "T15 a tidemark names no removal" in self.mutants
        return Told(state.cuts, state.tides, not forgets)

    # What must hold.

    def check(self, state: State) -> None:
        """A takeover at the tidemark reached has the topics of then, and the records."""
        if not state.reached:
            return
        cut = state.cuts[state.reached - 1]
        here = set(_logs_of(state.mirrored))
        for log in cut.held:
            if log not in here or log not in state.copied:
                raise Broken("records lost", f"{NAMES[log[0]]} {log[1]} is in {cut}, and not here")


class Told(NamedTuple):
    """Tidemarks, how many of them were copied, and whether they name what was removed."""

    cuts: tuple[Cut, ...]
    copied: int
    names_removals: bool


def _logs_of(counts: Counts) -> list[Log]:
    return [(topic, p) for topic, count in enumerate(counts) for p in range(count)]


def _topics(counts: Counts) -> list[MirrorTopic]:
    return [
        MirrorTopic(topic_id, name, count)
        for topic_id, name, count in zip(IDS, NAMES, counts, strict=True)
        if count
    ]


def _changes(state: State) -> TopicChanges:
    changes = TopicChanges(growing=tuple(_topics(state.growing)))
    for topic, version in state.waiting:
        changes.delete([MirrorTopic(IDS[topic], NAMES[topic], 1)], version)
    return changes


def _noted(state: State, changes: TopicChanges) -> State:
    growing = {topic.topic_id: topic.partition_count for topic in changes.growing}
    waiting = tuple((IDS.index(d.topic.topic_id), d.metadata_version) for d in changes.due(1 << 30))
    return state._replace(
        growing=tuple(growing.get(topic_id, 0) for topic_id in IDS), waiting=waiting
    )


def _lengths(state: State) -> tuple[tuple[Log, int], ...]:
    """Return where each log ends that the mirror has open."""
    known = {*_logs_of(state.mirrored), *_logs_of(state.growing)}
    return tuple((log, int(log in state.copied)) for log in sorted(known))


@lru_cache(maxsize=65536)
def _records(told: Told) -> tuple[Tidemark, ...]:
    writer = TidemarkWriter("main", TidemarkBook(LEDGERS))
    records: list[Tidemark] = []
    for cut in told.cuts[: told.copied]:
        existing = frozenset(topic_id for topic_id, n in zip(IDS, cut.counts, strict=True) if n)
        record = writer.prepare(
            ClosedCut(
                round=Round(len(records) + 1), region_epoch=EPOCH, metadata_version=cut.version,
                ledger={}, wall_ms=0,
                moved={
                    LogKey(IDS[topic], p): LogPosition(int((topic, p) in cut.held), 0)
                    for topic, p in _logs_of(cut.counts)
                },
                existing=existing if told.names_removals else frozenset(IDS),
            )
        )  # fmt: skip
        key, value = encode(record)
        writer.published(len(records), len(value))
        read = decode(key, value)
        assert isinstance(read, Tidemark), read
        records.append(read)
    return tuple(records)


@lru_cache(maxsize=65536)
def _complete(told: Told, ends: tuple[tuple[Log, int], ...], reached: int) -> int:
    frontier = Frontier(LEDGERS, reached=TidemarkPoint(EPOCH, reached) if reached else BEFORE_ALL)
    for (topic, p), end in ends:
        frontier.advanced(LogKey(IDS[topic], p), end)
    frontier.reconciled([LogKey(IDS[topic], p) for (topic, p), _ in ends], EPOCH)
    for record in _records(told):
        frontier.observe(record)
    return frontier.complete.number


@lru_cache(maxsize=65536)
def _positions(told: Told, number: int) -> tuple[Log, ...]:
    book = TidemarkBook(LEDGERS)
    for at, record in enumerate(_records(told)):
        book.apply(at, record)
    vector = book.vector(TidemarkPoint(EPOCH, number))
    assert vector is not None, number
    return tuple((IDS.index(key.topic_id), key.partition) for key in vector.positions)
