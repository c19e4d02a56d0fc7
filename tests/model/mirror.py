"""What a mirror reaches and shows (T10, T16, T17): tidemarks that name what moved, logs that are copied at their own pace.

Real, called at each move: what a tidemark's record says (`geo_replicator.tidemark_writer`), its codec and the vectors that
records add up to (`geo_replicator.tidemark`), what is reached (`geo_replicator.frontier`), how far readers may see
(`geo_replicator.whole_cut`, `idempotency.partition_state`). Plain: copying, a batch at a time; closing a round, at once,
which `primary` takes apart; a crash of the mirror, which keeps what was durable.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple
from uuid import UUID

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, LogKey, TidemarkPoint
from geo_replicator.tidemark import (
    LogPosition,
    Tidemark,
    TidemarkBook,
    decode,
    encode,
)
from geo_replicator.tidemark_writer import ClosedCut, TidemarkWriter
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import LogTransactions, whole_cut
from idempotency.decision import DecisionId, round_of
from idempotency.identity import LeaderEpoch, RegionEpoch, Round
from tests.model.explore import Broken, Move
from tests.model.log_rows import ABORT, COMMIT, DATA, Row, Rows, replayed
from tests.model.primary_states import put

EPOCH: Final = RegionEpoch(8)
LEADER_EPOCH: Final = LeaderEpoch(EPOCH << 16)
LEDGERS: Final = LedgerTopics(UUID(int=1), UUID(int=2))
TOPIC: Final = UUID(int=3)
PARTITIONS: Final = 2
KEYS: Final = tuple(LogKey(TOPIC, number) for number in range(PARTITIONS))


class Txn(NamedTuple):
    """One that may happen: its producer and epoch, what it writes in which order, and whether it may abort, too."""

    producer_id: int
    producer_epoch: int = 0
    writes: tuple[int, ...] = (0, 1)
    aborts: bool = False


class Cut(NamedTuple):
    """A closed round: L, D, and whether it was published or given up before its record."""

    round: int
    ledger: int
    ends: tuple[int, ...]
    published: bool = True


class State(NamedTuple):
    """The primary's logs, ledger (a transaction, whether it commits, its stamp) and rounds; then the mirror.

    `durable` is what a crash of the mirror keeps of each log, `reached` the durable fact, `shown` what readers see.
    """

    logs: tuple[Rows, ...] = ((),) * PARTITIONS
    ledger: tuple[tuple[int, bool, int], ...] = ()
    cuts: tuple[Cut, ...] = ()
    copied: tuple[int, ...] = (0,) * PARTITIONS
    durable: tuple[int, ...] = (0,) * PARTITIONS
    tides: int = 0
    reached: int = 0
    shown: int = 0
    ends: tuple[int, ...] = (0,) * PARTITIONS
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """What may happen; when all of `txns` are over, one more tidemark may be published than `tidemarks`."""

    txns: tuple[Txn, ...]
    tidemarks: int = 1
    abandoned: int = 0
    crashes: int = 0


@dataclass(frozen=True)
class Mirror:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        return State()

    def canonical(self, state: State) -> State:
        return state

    def good(self, state: State) -> bool:
        """Everything is over at the primary, and shown here (INV-WC3)."""
        return self._is_over(state) and state.ends == tuple(map(len, state.logs))

    def moves(self, state: State) -> Iterator[Move]:
        yield from self._transactions(state)
        yield from self._rounds(state)
        yield from self._copying(state)
        yield from self._reaching(state)

    # At the primary.

    def _transactions(self, state: State) -> Iterator[Move]:
        for number, txn in enumerate(self.size.txns):
            decision = _decision_of(state, number)
            before = [other for other in range(number) if self._is_before(other, txn)]
            if not all(self._is_ended(state, other) for other in before):
                continue
            missing = [p for p in txn.writes if not _holds(state.logs[p], number, DATA)]
            if missing:
                row = Row(txn.producer_id, txn.producer_epoch, DATA, number)
                label = ("T{} writes to partition {}", number, missing[0])
                yield Move(label, partial(_append, state, missing[0], row))
            elif decision is None:
                yield Move(("T{} is committed", number), partial(_decide, state, number, True))
                if txn.aborts:
                    yield Move(("T{} is aborted", number), partial(_decide, state, number, False))
            else:
                kind, row = _marker(txn, number, decision)
                for p in txn.writes:
                    if not _holds(state.logs[p], number, kind):
                        label = ("partition {} takes the marker of T{}", p, number)
                        yield Move(label, partial(_append, state, p, row))

    def _is_before(self, other: int, txn: Txn) -> bool:
        return self.size.txns[other].producer_id == txn.producer_id

    def _is_ended(self, state: State, number: int) -> bool:
        return all(
            _holds(state.logs[p], number, COMMIT) or _holds(state.logs[p], number, ABORT)
            for p in self.size.txns[number].writes
        )

    def _is_over(self, state: State) -> bool:
        return all(self._is_ended(state, number) for number in range(len(self.size.txns)))

    def _rounds(self, state: State) -> Iterator[Move]:
        ends = tuple(map(len, state.logs))
        last = next((cut for cut in reversed(state.cuts) if cut.published), None)
        published = sum(cut.published for cut in state.cuts)
        limit = self.size.tidemarks + self._is_over(state)
        cut = Cut(len(state.cuts) + 1, len(state.ledger), ends)
        if last is not None and (last.ledger, last.ends) == (cut.ledger, ends):
            return
        if published < limit:
            label = ("the primary publishes tidemark {}", published + 1)
            yield Move(label, partial(state._replace, cuts=(*state.cuts, cut)))
        if len(state.cuts) - published < self.size.abandoned:
            given_up = (*state.cuts, cut._replace(published=False))
            yield Move(
                ("the primary gives a closed round up",), partial(state._replace, cuts=given_up)
            )

    # On the mirror.

    def _copying(self, state: State) -> Iterator[Move]:
        for p, at in enumerate(state.copied):
            if at < len(state.logs[p]):
                yield Move(
                    ("the mirror copies from partition {}", p), partial(self._copy, state, p)
                )
            if state.durable[p] < at:
                durable = put(state.durable, p, at)
                label = ("what was copied of partition {} is durable", p)
                yield Move(label, partial(state._replace, durable=durable))
        if state.tides < sum(cut.published for cut in state.cuts):
            copied = partial(state._replace, tides=state.tides + 1)
            yield Move(("the mirror copies a tidemark",), copied)
        if state.crashes < self.size.crashes:
            yield Move(("the mirror crashes",), partial(self._crash, state))

    def _copy(self, state: State, p: int) -> State:
        after = state._replace(copied=put(state.copied, p, state.copied[p] + 1))
        lazy = self.size.crashes and p == 0  # the other one is like it
        return after if lazy else after._replace(durable=put(state.durable, p, after.copied[p]))

    def _crash(self, state: State) -> State:
        """Keep what was durable, and show again what was reached."""
        kept = state._replace(copied=state.durable, crashes=state.crashes + 1)
        again = state.ends if state.shown == state.reached else (0,) * PARTITIONS
        if "T16 whole ends are not kept" in self.mutants:
            again = (0,) * PARTITIONS
        return self._show(kept, state.reached, durable=True, before=again)

    def _reaching(self, state: State) -> Iterator[Move]:
        complete = self._complete(state)
        early = "T16 it is shown before it is durable" in self.mutants
        if complete > (state.shown if early else state.reached):
            label = ("the mirror reaches and shows tidemark {}", complete)
            yield Move(label, partial(self._show, state, complete, durable=not early))
        if state.reached < state.shown:
            durable = partial(state._replace, reached=state.shown)
            yield Move(("what is shown is durable",), durable)

    def _complete(self, state: State) -> int:
        if "T16 one log is enough" in self.mutants:
            cuts = [cut for cut in state.cuts if cut.published][: state.tides]
            held = [any(map(int.__ge__, state.durable, cut.ends)) for cut in cuts]
            return max((number for number, has in enumerate(held, 1) if has), default=0)
        ends = state.copied if "T16 what was copied counts" in self.mutants else state.durable
        return _complete(self._told(state), ends, state.reached)

    def _told(self, state: State) -> "Told":
        """Return what the mirror has copied of `__tidemarks`."""
        since_closed = "T10 what moved since the last closed round" in self.mutants
        return Told(state.cuts, state.tides, since_closed)

    def _show(
        self, state: State, number: int, *, durable: bool, before: tuple[int, ...] | None = None
    ) -> State:
        ends = self._ends_at(state, number, state.ends if before is None else before)
        reached = number if durable else state.reached
        after = state._replace(reached=reached, shown=number, ends=ends)
        if any(map(int.__lt__, ends, state.ends)):
            raise Broken("goes back", f"readers saw {state.ends}, and now {ends}")
        return after

    def _ends_at(self, state: State, number: int, before: tuple[int, ...]) -> tuple[int, ...]:
        positions = _positions(self._told(state), number)
        logs = [log[:end] for log, end in zip(state.logs, state.copied, strict=True)]
        if "T17 the last stable offset is the log's" in self.mutants:
            return tuple(
                min(replayed(log).last_stable_offset(len(log)), end)
                for log, end in zip(logs, positions, strict=True)
            )
        if "T17 each log is shown by itself" in self.mutants:
            return tuple(
                replayed(log).last_stable_offset(min(end, len(log)))
                for log, end in zip(logs, positions, strict=True)
            )
        return _whole_ends(tuple(logs), positions, before)

    # What must hold.

    def check(self, state: State) -> None:
        if not state.shown:
            return
        cut = [cut for cut in state.cuts if cut.published][state.shown - 1]
        self._check_bytes(state, cut)
        visible = [self._visible(state, p, cut.ends[p]) for p in range(PARTITIONS)]
        decided = {txn for txn, commits, _ in state.ledger[: cut.ledger] if commits}
        for number in set().union(*visible) - decided:
            raise Broken("taken back", f"T{number} is shown, and {cut} does not hold its commit")
        for number, txn in enumerate(self.size.txns):
            shown = [number in visible[p] for p in txn.writes]
            if any(shown) and not all(shown):
                raise Broken("by halves", f"T{number} is shown in a part of {txn.writes}")

    def _check_bytes(self, state: State, cut: Cut) -> None:
        """A takeover here and now is at the tidemark reached: all of it must be here."""
        for p, end in enumerate(cut.ends):
            if state.copied[p] < end:
                raise Broken("bytes lost", f"{state.copied[p]} of {end} in partition {p}")

    def _visible(self, state: State, p: int, bound: int) -> set[int]:
        log, end = state.logs[p][: state.copied[p]], state.ends[p]
        ranges = replayed(log).aborted_in(0, end, bound)
        return {
            row.txn
            for offset, row in enumerate(log[:end])
            if row.kind == DATA
            and not any(
                row.producer_id == aborted.producer_id
                and aborted.first_offset <= offset <= aborted.last_offset
                for aborted in ranges
            )
        }


def _append(state: State, p: int, row: Row) -> State:
    return state._replace(logs=put(state.logs, p, (*state.logs[p], row)))


def _decide(state: State, number: int, commit: bool) -> State:
    stamp = int(round_of(1, len(state.cuts)))
    return state._replace(ledger=(*state.ledger, (number, commit, stamp)))


def _decision_of(state: State, number: int) -> tuple[bool, DecisionId] | None:
    for offset, (txn, commit, stamp) in enumerate(state.ledger):
        if txn == number:
            return commit, DecisionId(0, LEADER_EPOCH, offset, Round(stamp))
    return None


def _marker(txn: Txn, number: int, decided: tuple[bool, DecisionId]) -> tuple[str, Row]:
    commit, decision = decided
    kind = COMMIT if commit else ABORT
    return kind, Row(txn.producer_id, txn.producer_epoch, kind, number, decision=decision)


def _holds(log: Rows, txn: int, kind: str) -> bool:
    return any(row.txn == txn and row.kind == kind for row in log)


class Told(NamedTuple):
    """Rounds, how many of the tidemarks of them were copied, and since when they name what moved."""

    cuts: tuple[Cut, ...]
    copied: int
    since_closed: bool


@lru_cache(maxsize=65536)
def _tidemarks(told: Told) -> tuple[Tidemark, ...]:
    """Return the records that the real writer makes of rounds, as a mirror reads them.

    Only logs that moved are asked (T10): since the last published tidemark, or since the last closed round.
    """
    writer = TidemarkWriter("main", TidemarkBook(LEDGERS))
    records: list[Tidemark] = []
    known: tuple[int, ...] = (0,) * PARTITIONS
    for cut in told.cuts:
        moved = {
            key: LogPosition(end, 0)
            for key, end, before in zip(KEYS, cut.ends, known, strict=True)
            if end > before or not records
        }
        if cut.published or told.since_closed:
            known = cut.ends
        if not cut.published:
            continue
        record = writer.prepare(_closed(cut, moved))
        key, value = encode(record)
        writer.published(len(records), len(value))
        read = decode(key, value)
        assert isinstance(read, Tidemark), read
        records.append(read)
    return tuple(records[: told.copied])


def _closed(cut: Cut, moved: dict[LogKey, LogPosition]) -> ClosedCut:
    return ClosedCut(
        round=Round(cut.round), region_epoch=EPOCH, metadata_version=1, ledger={0: cut.ledger},
        moved=moved, existing=frozenset({TOPIC}), wall_ms=0,
    )  # fmt: skip


@lru_cache(maxsize=65536)
def _complete(told: Told, ends: tuple[int, ...], reached: int) -> int:
    """Return the tidemark that is complete: in whichever order the frontier hears of it."""
    point = TidemarkPoint(EPOCH, reached) if reached else BEFORE_ALL
    early, late = Frontier(LEDGERS, reached=point), Frontier(LEDGERS, reached=point)
    keys = (*KEYS, LEDGERS.shard_key(0))
    for frontier in (early, late):
        frontier.reconciled(keys, EPOCH)
        frontier.advanced(LEDGERS.shard_key(0), 1 << 30)  # the ledger is copied at once
    for key, end in zip(KEYS, ends, strict=True):
        early.advanced(key, end)
    for record in _tidemarks(told):
        early.observe(record)
        late.observe(record)
    for key, end in zip(KEYS, ends, strict=True):
        late.advanced(key, end)
    assert early.complete == late.complete, "INV-FR1: the order in which it is heard decides"
    return early.complete.number


@lru_cache(maxsize=65536)
def _positions(told: Told, number: int) -> tuple[int, ...]:
    """Return D of each log at a tidemark, from the records alone."""
    book = TidemarkBook(LEDGERS)
    for at, record in enumerate(_tidemarks(told)):
        book.apply(at, record)
    cut = book.positions(TidemarkPoint(EPOCH, number))
    return tuple(0 if cut is None else cut.position_of(key) for key in KEYS)


@lru_cache(maxsize=65536)
def _whole_ends(
    logs: tuple[Rows, ...], positions: tuple[int, ...], before: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the real whole cut of logs at D, of what was not shown `before`."""
    seen = {}
    for key, rows, end, shown in zip(KEYS, logs, positions, before, strict=True):
        state, bound = replayed(rows), min(end, len(rows))
        hidden = [txn for txn in state.committed_below(bound, shown) if txn.last_offset >= shown]
        seen[key] = LogTransactions(
            state.last_stable_offset(bound), hidden, state.unended_at(bound)
        )
    ends = whole_cut(seen)
    return tuple(max(ends[key], shown) for key, shown in zip(KEYS, before, strict=True))
