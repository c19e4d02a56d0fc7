"""States of the model of rounds at the primary, and the real cores in them.

Not here: what can happen (`primary`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple
from uuid import UUID

from geo_replicator.cut_rounds import (
    LogAnswer,
    RoundPhase,
    RoundsCore,
)
from geo_replicator.events import (
    ShardEntered,
)
from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import LogPosition, Tidemark
from idempotency.cut_index import CutIndex
from idempotency.decision import round_number, round_of
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, RegionEpoch, Round
from txn_coordinator.rounds import RoundGate

SHARDS: Final = 2
PARTITIONS: Final = 2
KEYS: Final = tuple(LogKey(UUID(int=1), number) for number in range(PARTITIONS))
UNKNOWN: Final = -1
DATA, COMMIT, ABORT = "data", "commit", "abort"


class Entered(NamedTuple):
    """ROUND{round} in a ledger."""

    round: int


class Decision(NamedTuple):
    """PREPARE in a ledger: `saw` are the transactions that could be read when it was taken, one bit each."""

    txn: int
    commit: bool
    stamp: int
    saw: int


class Record(NamedTuple):
    """Data, or a marker with its stamp, in a partition."""

    txn: int
    kind: str
    stamp: int = 0


class Shard(NamedTuple):
    """A ledger shard: what a crash may leave begins at `durable`; its gate is in memory."""

    ledger: tuple[Entered | Decision, ...] = ()
    durable: int = 0
    current: int = 0
    released: int = 0
    alive: bool = True


class Log(NamedTuple):
    """A partition. `acked` is on all replicas, `known` the high watermark that its leader knows.

    `deposed` is a leader that does not know of its successor: its records, high watermark, epoch and epoch's start.
    """

    records: tuple[Record, ...] = ()
    acked: int = 0
    known: int = 0
    epoch: int = 0
    start: int = 0
    exists: bool = True
    deposed: tuple[tuple[Record, ...], int, int, int] | None = None


class Leader(NamedTuple):
    """A cut leader: what of its core goes on, the metadata it collects by, and D as far as it is known."""

    term: int
    phase: RoundPhase = RoundPhase.RECORDING_TERM
    began: int = 0
    entered: tuple[int, ...] = (UNKNOWN,) * SHARDS
    epochs: tuple[int, ...] = ()
    positions: tuple[int, ...] = (UNKNOWN,) * PARTITIONS

    @property
    def round(self) -> int:
        return int(round_of(self.term, self.began)) if self.began else 0


class Cut(NamedTuple):
    """A published tidemark."""

    round: int
    ledger: tuple[int, ...]
    positions: tuple[int, ...]


class State(NamedTuple):
    """Everything. Messages are never taken back: each may arrive late, or again."""

    shards: tuple[Shard, ...]
    logs: tuple[Log, ...]
    leaders: tuple[Leader, ...]
    recorded: int = 0
    enters: frozenset[int] = frozenset()
    releases: frozenset[int] = frozenset()
    answers: frozenset[tuple[int, int, int]] = frozenset()
    markers: frozenset[int] = frozenset()
    asked: tuple[int, ...] = ()
    published: tuple[Cut, ...] = ()
    faults: int = 0


class Txn(NamedTuple):
    """One that may happen: where it is decided and what it writes, in that order; `aborts`: also an abort is drawn."""

    shard: int
    writes: tuple[int, ...] = (0, 1)
    aborts: bool = False


@dataclass(frozen=True, slots=True)
class Size:
    """What may happen: `rounds` in each of `terms`, `crashes` of shards, `deaths` for ever, `elections` in partitions."""

    txns: tuple[Txn, ...] = (Txn(0), Txn(1))
    partitions: int = 2
    rounds: int = 1
    terms: int = 1
    crashes: int = 0
    deaths: int = 0
    elections: int = 0
    lags: bool = False
    grows: bool = False


def put(items: tuple, at: int, item: object) -> tuple:  # type: ignore[type-arg]  # of any one kind
    """Return `items` with another one at a place."""
    return (*items[:at], item, *items[at + 1 :])


def with_shard(state: State, at: int, shard: Shard) -> State:
    return state._replace(shards=put(state.shards, at, shard))


def with_leader(state: State, at: int, leader: Leader) -> State:
    return state._replace(leaders=put(state.leaders, at, leader))


def gate_of(shard: Shard) -> RoundGate:
    """Return the real gate in a shard's state."""
    gate = RoundGate()
    gate.current, gate.released = Round(shard.current), Round(shard.released)
    return gate


def core_of(leader: Leader) -> RoundsCore:
    """Return the real core of a cut leader; times do not matter here, so it always has rested enough."""
    core = RoundsCore(term=leader.term, shard_count=SHARDS, interval_ms=0)
    core.phase, core.round = leader.phase, Round(leader.round)
    core._count, core._changed = leader.began, False
    core._entered = {
        shard: ShardEntered(Round(leader.round), shard, CoordinatorEpoch(0), offset)
        for shard, offset in enumerate(leader.entered)
        if offset != UNKNOWN
    }
    return core


def noted(leader: Leader, core: RoundsCore) -> Leader:
    """Return what a core goes on from."""
    entered = core._entered if core.phase is not RoundPhase.RESTING else {}
    offsets = tuple(
        entered[shard].ledger_offset if shard in entered else UNKNOWN for shard in range(SHARDS)
    )
    return leader._replace(phase=core.phase, began=core._count, entered=offsets)


@lru_cache(maxsize=4096)
def without_idle(leaders: tuple[Leader, ...]) -> tuple[tuple[Leader, ...], frozenset[int]]:
    """Return the leaders without what they need no more, and the rounds that they still enter."""
    resting = {RoundPhase.RESTING, RoundPhase.NEW}
    left = tuple(
        Leader(each.term, each.phase, each.began) if each.phase in resting else each
        for each in leaders
    )
    return left, frozenset(each.round for each in left if each.phase is RoundPhase.ENTERING)


def round_name(number: int) -> str:
    return f"{number >> 32}.{round_number(Round(number))}"


def metadata(state: State) -> tuple[int, ...]:
    """Return the leader epochs of all partitions that there are."""
    return tuple(log.epoch if log.exists else UNKNOWN for log in state.logs)


def answers_of(log: Log, p: int, round_: int, mutants: frozenset[str]) -> Iterator[LogAnswer]:
    """Yield what those say who think that they lead a partition: the leader, then a deposed one."""
    leaders = [(log.records, log.known, log.epoch, log.start)]
    for records, known, epoch, start in [*leaders, *([log.deposed] if log.deposed else [])]:
        index = CutIndex()
        for offset, record in enumerate(records):
            if record.kind == COMMIT or (record.kind == ABORT and "T5 aborts stop D" in mutants):
                index.record(Round(record.stamp), offset)
        first = index.first_commit_marker(Round(round_))
        yield LogAnswer(
            key=KEYS[p],
            leader_epoch=LeaderEpoch(epoch),
            leader_epoch_start_offset=start,
            high_watermark=known,
            log_start_offset=0,
            first_commit_marker=None if "T7 D is HW" in mutants else first,
        )


def tidemark_of(cut: Cut, number: int) -> Tidemark:
    """Return a full record of a cut."""
    return Tidemark(
        domain="", region_epoch=RegionEpoch(8), number=number, round=Round(cut.round), metadata_version=1,
        ledger=dict(enumerate(cut.ledger)),
        moved={key: LogPosition(end, 0) for key, end in zip(KEYS, cut.positions, strict=False)},
        removed=(), full=True, previous_at=-1, full_at=-1, wall_ms=0,
    )  # fmt: skip


def decision_of(state: State, txn: int) -> tuple[Decision, int] | None:
    """Return the decision of a transaction, and where it lies in its ledger."""
    for shard in state.shards:
        for offset, entry in enumerate(shard.ledger):
            if isinstance(entry, Decision) and entry.txn == txn:
                return entry, offset
    return None


def holds_data(log: Log, txn: int) -> bool:
    return Record(txn, DATA) in log.records


def is_marked(log: Log, txn: int) -> bool:
    return any(record.txn == txn and record.kind != DATA for record in log.records)
