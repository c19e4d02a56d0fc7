"""The cut leader: when a round starts, when it is closed or abandoned, and what D each log gives.

INV-RD1  nothing is sent before the term record is below HW (T1)
INV-RD2  a round number is used once; numbers of one term grow, those of a later term are higher (T1)
INV-RD3  a round is published only if every shard entered it, in this term, before it was abandoned (T4)
INV-RD4  RELEASE follows every ENTER: at close, or when the round is abandoned (T4)
INV-RD5  D is collected after close, from a leader whose HW covers the start of its leader epoch (T9)
INV-RD6  nothing changed: no round. A round starts no sooner than max(interval, factor x usual closing time)
         after the one before, or at once when someone waits. The factor is 10 while markers are held, so that at
         most a tenth of commits wait, and 3 once none was for a while: then nobody waits but the readers of
         mirrors. An interval that is changed counts from the last round on. A single slow closing counts for an eighth, or one hiccup of a disk would keep mirrors waiting
         for ten times as long

Not here: the record (`tidemark`), the ledger shard's side (txn_coordinator.rounds), I/O and time.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, assert_never

from geo_replicator.effects import (
    CollectPositions,
    EnterRound,
    PublishTidemark,
    RecordTerm,
    ReleaseRound,
    RoundEffect,
)
from geo_replicator.events import (
    IntervalChanged,
    PositionsCollected,
    RoundEvent,
    ShardEntered,
    SomethingChanged,
    TermRecorded,
    TidemarkDurable,
    TimePassed,
)
from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import LogPosition
from idempotency.decision import round_of
from idempotency.identity import LeaderEpoch, Round

ROUND_INTERVAL_MS: Final = 20
HOLD_MS_MIN: Final = 250
HOLD_MS_MAX: Final = 2_000
USUAL_FACTOR: Final = 4
REST_FACTOR: Final = 10
REST_FACTOR_NOTHING_HELD: Final = 3
# After a round that held markers, so many are taken to do so, too.
HOLDING_ROUNDS: Final = 16
# A closing that took long because the whole process stood still must not stop tidemarks ten times as long.
REST_MS_MAX: Final = REST_FACTOR * HOLD_MS_MIN


class RoundPhase(Enum):
    """Where the cut leader is."""

    NEW = auto()
    RECORDING_TERM = auto()
    RESTING = auto()
    ENTERING = auto()
    COLLECTING = auto()
    PUBLISHING = auto()


LEGAL: Final[Mapping[RoundPhase, Set[RoundPhase]]] = {
    RoundPhase.NEW: {RoundPhase.RECORDING_TERM},
    RoundPhase.RECORDING_TERM: {RoundPhase.RESTING},
    RoundPhase.RESTING: {RoundPhase.ENTERING},
    RoundPhase.ENTERING: {RoundPhase.COLLECTING, RoundPhase.RESTING},
    RoundPhase.COLLECTING: {RoundPhase.PUBLISHING},
    RoundPhase.PUBLISHING: {RoundPhase.RESTING},
}
"""What may follow what: from ENTERING back to RESTING a round was given up (T4)."""


@dataclass(slots=True)
class RoundsCore:
    """Decides the rounds of one term. Feed events, run the returned effects in order.

    `wake_at_ms` is when `TimePassed` is due (monotonic ms), None while there is nothing to wait for.
    """

    term: int
    shard_count: int
    interval_ms: int = ROUND_INTERVAL_MS
    phase: RoundPhase = RoundPhase.NEW
    wake_at_ms: int | None = None
    round: Round = Round(0)
    closed_count: int = 0
    abandoned_count: int = 0
    last_closing_ms: int = 0
    _count: int = 0
    _changed: bool = True
    _urgent: bool = False
    _started_ms: int = 0
    _rest_until_ms: int = 0
    _usual_closing_ms: float = 0.0
    _usual_rest_ms: float = 0.0
    _holding_rounds: int = HOLDING_ROUNDS
    _entered: dict[int, ShardEntered] = field(default_factory=dict)

    def start(self) -> list[RoundEffect]:
        """Begin the term (T1)."""
        assert self.phase is RoundPhase.NEW, self.phase
        self._go_to(RoundPhase.RECORDING_TERM)
        return [RecordTerm(self.term)]

    def step(self, event: RoundEvent, *, now_ms: int) -> list[RoundEffect]:
        """Take one event and return what to do; late events of other rounds change nothing."""
        match event:
            case TermRecorded():
                assert self.phase is RoundPhase.RECORDING_TERM, self.phase
                self._go_to(RoundPhase.RESTING)
            case SomethingChanged(urgent=urgent):
                self._changed = True
                self._urgent = self._urgent or urgent
            case IntervalChanged(interval_ms=interval_ms):
                self.interval_ms = interval_ms
                if self.closed_count + self.abandoned_count:
                    self._rest()
            case ShardEntered():
                return self._enter(event, now_ms)
            case PositionsCollected(round=number):
                return self._collected(number)
            case TidemarkDurable(round=number):
                self._durable(number)
            case TimePassed():
                if self.phase is RoundPhase.ENTERING and now_ms >= self._hold_until_ms():
                    return self._abandon(now_ms)
            case _:
                assert_never(event)
        return self._maybe_start(now_ms)

    def _go_to(self, phase: RoundPhase) -> None:
        assert phase in LEGAL[self.phase], (self.phase, phase)
        self.phase = phase

    def _maybe_start(self, now_ms: int) -> list[RoundEffect]:
        if self.phase is not RoundPhase.RESTING:
            return []
        if not self._changed:
            self.wake_at_ms = None
            return []
        if not self._urgent and now_ms < self._rest_until_ms:
            self.wake_at_ms = self._rest_until_ms
            return []
        self._count += 1
        self.round = round_of(self.term, self._count)
        self._go_to(RoundPhase.ENTERING)
        self._changed = self._urgent = False
        self._started_ms = now_ms
        self._entered = {}
        self.wake_at_ms = self._hold_until_ms()
        return [EnterRound(self.round)]

    def _hold_until_ms(self) -> int:
        hold_ms = max(HOLD_MS_MIN, min(USUAL_FACTOR * self._usual_closing_ms, HOLD_MS_MAX))
        return self._started_ms + int(hold_ms)

    def _enter(self, entered: ShardEntered, now_ms: int) -> list[RoundEffect]:
        if self.phase is not RoundPhase.ENTERING or entered.round != self.round:
            return []
        assert 0 <= entered.shard < self.shard_count, entered
        self._entered[entered.shard] = entered
        if entered.holds:
            self._holding_rounds = HOLDING_ROUNDS
        if len(self._entered) < self.shard_count:
            return []
        self._closing(now_ms)
        self.closed_count += 1
        self._go_to(RoundPhase.COLLECTING)
        self.wake_at_ms = None
        # RELEASE first: markers never wait for D (T9), and any later HW is fine.
        return [ReleaseRound(self.round), CollectPositions(self.round)]

    def _abandon(self, now_ms: int) -> list[RoundEffect]:
        self._holding_rounds = HOLDING_ROUNDS  # a shard that did not answer did not say
        self._closing(now_ms)
        self.abandoned_count += 1
        self._go_to(RoundPhase.RESTING)
        self._changed = True
        abandoned = self.round
        return [ReleaseRound(abandoned), *self._maybe_start(now_ms)]

    def _closing(self, now_ms: int) -> None:
        """Learn from a round that closed, or was given up: it would have taken at least so long.

        Without the latter, a disk that always needs longer than the least hold would end tidemarks for good.
        """
        self.last_closing_ms = now_ms - self._started_ms
        self._usual_closing_ms += (self.last_closing_ms - self._usual_closing_ms) / 8
        holding = self._holding_rounds > 0
        self._holding_rounds -= holding
        factor = REST_FACTOR if holding else REST_FACTOR_NOTHING_HELD
        self._usual_rest_ms = min(factor * self._usual_closing_ms, REST_MS_MAX)
        self._rest()

    def _rest(self) -> None:
        """Rest from the start of the last round on (INV-RD6)."""
        self._rest_until_ms = self._started_ms + int(max(self.interval_ms, self._usual_rest_ms))

    def _collected(self, number: int) -> list[RoundEffect]:
        assert self.phase is RoundPhase.COLLECTING, self.phase
        assert number == self.round, (number, self.round)
        self._go_to(RoundPhase.PUBLISHING)
        ledger = {shard: self._entered[shard].ledger_offset for shard in sorted(self._entered)}
        return [PublishTidemark(self.round, ledger)]

    def _durable(self, number: int) -> None:
        assert self.phase is RoundPhase.PUBLISHING, self.phase
        assert number == self.round, (number, self.round)
        self._go_to(RoundPhase.RESTING)


class AnswerVerdict(Enum):
    """What the cut leader makes of a log leader's answer (T9)."""

    TAKEN = auto()
    NOT_READY = auto()
    DEPOSED = auto()
    NEWER_METADATA = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAnswer:
    """A log leader's answer to the D request of a round.

    `first_commit_marker` is the offset of its first COMMIT marker with stamp >= r, None without one.
    """

    key: LogKey
    leader_epoch: LeaderEpoch
    leader_epoch_start_offset: int
    high_watermark: int
    log_start_offset: int
    first_commit_marker: int | None


@dataclass(slots=True)
class Collection:
    """D of every asked log under one metadata version (T9).

    `leader_epochs` are those of the metadata read after close.
    """

    round: Round
    leader_epochs: Mapping[LogKey, int]
    positions: dict[LogKey, LogPosition] = field(default_factory=dict)

    def take(self, answer: LogAnswer) -> AnswerVerdict:
        """Judge one answer; only a TAKEN one counts, the others are asked again."""
        expected = self.leader_epochs[answer.key]
        if answer.leader_epoch < expected:
            return AnswerVerdict.DEPOSED
        if answer.leader_epoch > expected:
            return AnswerVerdict.NEWER_METADATA
        if answer.high_watermark < answer.leader_epoch_start_offset:
            return AnswerVerdict.NOT_READY
        cut_offset = answer.high_watermark
        if answer.first_commit_marker is not None:
            cut_offset = min(cut_offset, answer.first_commit_marker)
        assert cut_offset <= answer.high_watermark, answer
        self.positions[answer.key] = LogPosition(cut_offset, answer.log_start_offset)
        return AnswerVerdict.TAKEN

    @property
    def missing(self) -> tuple[LogKey, ...]:
        """Return the logs that have not answered (well) yet."""
        return tuple(key for key in self.leader_epochs if key not in self.positions)
