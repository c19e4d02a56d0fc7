"""Markers, and a producer over a takeover (T6, T21, T22): one ledger shard, two partitions, one transactional producer.

Real, called at each move: the shard's coordinator, replayed from its ledger before each step (`txn_coordinator.core`),
which transactions no ledger knows (`txn_coordinator.serving.adoption`), what a partition says to data and to markers
(`idempotency.partition_state`). Plain: a ledger that is durable at once; a round of one shard, which closes as it is
entered; markers, which arrive late and again; an answer that is lost with its region. The region that takes over has the
cut, and may crash while it adopts it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId, round_of
from idempotency.fencing import leader_epoch
from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from idempotency.partition_state import OpenTxn
from idempotency.pieces import drained
from idempotency.verdicts import Verdict
from tests.model.explore import Broken, Label, Move
from tests.model.log_rows import ABORT, COMMIT, DATA, Row, Rows, header_of, marker_of, replayed
from tests.model.primary_states import put
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.effects import Answer, AppendRecord, AppendRound, SendMarkers
from txn_coordinator.ports import LedgerPosition
from txn_coordinator.serving.adoption import sort_out
from txn_coordinator.states import PREPARED
from txn_coordinator.verdicts import TxnVerdict

NAME: Final = "payments"
TPS: Final = tuple(TopicPartition(TopicName("t"), number) for number in range(2))
OLD, NEW = 8, 17
FIRST_ROUND: Final = int(round_of(1, 1))
CUT_ROUND: Final = Round(int(round_of(1, 2)))
PRODUCER: Final = 1000
UNKNOWN: Final = -1
SERVES, DECIDES, CARRIES_OUT = "serves", "decides", "carries out"


class LedgerRow(NamedTuple):
    """A record of the ledger shard."""

    leader_epoch: int
    key: bytes
    value: bytes


class Client(NamedTuple):
    """A producer: its pair, the transaction that it is in, what was acknowledged of that; `asked`: to be committed."""

    producer_id: int = PRODUCER
    producer_epoch: int = 0
    txn: int = 0
    acked: tuple[int, ...] = ()
    sequences: tuple[int, ...] = (0, 0)
    asked: bool = False
    fenced: bool = False


class State(NamedTuple):
    """The region that serves, or adopts: its ledger and logs; the cut; the client, and what it was told.

    `cut` is L, then D of each partition. `sent` are markers on their way, `confirmed` those that the shard need not send.
    `told` are the commits that must hold: after the takeover, those of the cut, and what the candidate answered.
    """

    region_epoch: int = OLD
    stage: str = SERVES
    ledger: tuple[LedgerRow, ...] = ()
    logs: tuple[Rows, ...] = ((), ())
    cut: tuple[int, ...] = ()
    sent: frozenset[SendMarkers] = frozenset()
    confirmed: frozenset[tuple[DecisionId, int]] = frozenset()
    waiting: tuple[ev.AbortOrphan, ...] = ()
    client: Client = Client()
    written: frozenset[tuple[int, int]] = frozenset()
    asked: frozenset[int] = frozenset()
    decided: frozenset[tuple[int, int]] = frozenset()
    told: frozenset[int] = frozenset()
    crashes: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """The client's generation, how many transactions it makes of which partitions, and crashes while adopting."""

    tv: int = 1
    writes: tuple[tuple[int, ...], ...] = ((0, 1), (0, 1))
    crashes: int = 0


@dataclass(frozen=True)
class Adoption:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        state = _entered(State(), FIRST_ROUND)
        shard = self._shard(state)
        shard.step(ev.InitProducerIdReceived(0, NAME, 60_000))
        answer = shard.answers[0]
        assert (answer.producer_id, answer.producer_epoch) == (PRODUCER, 0), answer
        return shard.after

    def canonical(self, state: State) -> State:
        return state

    def good(self, state: State) -> bool:
        """Nothing is open in a region that serves, and the client has ended its last transaction, or may not."""
        done = state.client.txn >= len(self.size.writes)
        return state.stage == SERVES and done and not any(map(_is_open, state.logs))

    def moves(self, state: State) -> Iterator[Move]:
        if state.stage == SERVES:
            yield from self._client(state)
        else:
            yield from self._adopting(state)
        if state.region_epoch == OLD:
            yield from self._cutting(state)
        if state.stage != DECIDES:
            yield from self._markers(state)

    # The client.

    def _client(self, state: State) -> Iterator[Move]:
        client = state.client
        if client.fenced:
            yield Move(("the client asks for a pair",), partial(self._init, state))
            return
        if client.txn >= len(self.size.writes):
            return
        writes = self.size.writes[client.txn]
        left = [p for p in writes if p not in client.acked]
        if left and not client.asked:
            label = ("T{} writes to partition {}", client.txn, left[0])
            yield Move(label, partial(self._write, state, left[0]))
        else:
            asks: Label = ("T{} is asked to commit", client.txn)
            yield Move(asks, partial(self._end, state, lost=False))
            if not client.asked and state.region_epoch == OLD:
                loses: Label = ("T{} is asked to commit, and the answer is lost", client.txn)
                yield Move(loses, partial(self._end, state, lost=True))

    def _write(self, state: State, p: int) -> State:
        client, shard = state.client, self._shard(state)
        pair = (ProducerId(client.producer_id), ProducerEpoch(client.producer_epoch))
        shard.step(ev.AddPartitionsReceived(1, NAME, *pair, (TPS[p],), self.size.tv))
        verdict = shard.verdict(1)
        if verdict is TxnVerdict.OK:
            verdict = shard.core.view.verify(NAME, *pair, TPS[p]) or TxnVerdict.FENCED
        after = shard.after
        if verdict is TxnVerdict.CONCURRENT:
            return after
        row = Row(*pair, DATA, client.txn, client.sequences[p])
        log = after.logs[p]
        judged = replayed(log).judge(header_of(row, len(log)), tv2=self.size.tv >= 2)
        if verdict is not TxnVerdict.OK or judged.verdict is not Verdict.FRESH:
            return after._replace(client=client._replace(fenced=True))
        sequences = put(client.sequences, p, client.sequences[p] + 1)
        return after._replace(
            logs=put(after.logs, p, (*log, row)),
            client=client._replace(acked=(*client.acked, p), sequences=sequences),
            written=after.written | {(client.txn, p)},
        )

    def _end(self, state: State, *, lost: bool) -> State:
        client, shard = state.client, self._shard(state)
        pair = (ProducerId(client.producer_id), ProducerEpoch(client.producer_epoch))
        shard.step(ev.EndTxnReceived(1, NAME, *pair, True, self.size.tv))
        after = shard.after._replace(asked=state.asked | {client.txn})
        if len(after.ledger) > len(state.ledger):
            after = after._replace(decided=state.decided | {(client.txn, len(state.ledger))})
        verdict = shard.verdict(1)
        if lost or verdict is TxnVerdict.CONCURRENT:
            return after._replace(client=client._replace(asked=True))
        if verdict is not TxnVerdict.OK:
            return after._replace(client=client._replace(asked=True, fenced=True))
        answer = shard.answers[1]
        following = Client(*pair, client.txn + 1, (), client.sequences)
        if self.size.tv >= 2:
            following = Client(answer.producer_id, answer.producer_epoch, client.txn + 1)
        return after._replace(client=following, told=after.told | {client.txn})

    def _init(self, state: State) -> State:
        """Ask with the pair that it has, and as a new instance where that is fenced; the transaction is given up."""
        client, shard = state.client, self._shard(state)
        pair = (ProducerId(client.producer_id), ProducerEpoch(client.producer_epoch))
        for number, carried in enumerate((pair, (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)), 1):
            shard.step(ev.InitProducerIdReceived(number, NAME, 60_000, *carried))
            if shard.verdict(number) is not TxnVerdict.FENCED:
                break
        if shard.verdict(number) is not TxnVerdict.OK:
            return shard.after
        answer = shard.answers[number]
        return shard.after._replace(
            client=Client(answer.producer_id, answer.producer_epoch, client.txn + 1)
        )

    # The cut, and the takeover.

    def _cutting(self, state: State) -> Iterator[Move]:
        if not state.cut:
            entered = partial(_cut_at, state)
            yield Move(("a round is entered and closed",), entered)
            return
        for p, end in enumerate(state.cut[1:]):
            if end == UNKNOWN:
                log = state.logs[p]
                first = replayed(log).first_commit_marker(CUT_ROUND)
                cut = put(state.cut, p + 1, len(log) if first is None else first)
                yield Move(("D of partition {} is asked", p), partial(state._replace, cut=cut))
        if UNKNOWN not in state.cut:
            yield Move(("another region takes over",), partial(self._take_over, state))

    def _take_over(self, state: State) -> State:
        end, *ends = state.cut
        logs = tuple(log[:cut] for log, cut in zip(state.logs, ends, strict=True))
        stage = DECIDES
        after = state._replace(
            region_epoch=NEW, stage=stage, ledger=state.ledger[:end], logs=logs, cut=(),
            sent=frozenset(), confirmed=frozenset(), decided=frozenset(),
            told=frozenset(txn for txn, offset in state.decided if offset < end),
        )  # fmt: skip
        return self._bumped(after) if "T22 the epoch goes up by one" in self.mutants else after

    def _bumped(self, state: State) -> State:
        """Give the epoch after the one in the ledger to the id that the client has."""
        shard = self._shard(state)
        record = shard.core.view.record_of(NAME)
        assert record is not None, NAME
        stamp = tr.Stamp(0, RegionEpoch(NEW))
        if record.status in PREPARED or record.status is lr.TxnStatus.ONGOING:
            return state
        shard.append(tr.bump_epoch(record, stamp, timeout_ms=60_000, keep_last=True))
        return shard.after

    # Adopting (T21).

    def _adopting(self, state: State) -> Iterator[Move]:
        standing = self._standing(state)
        own = round_of(leader_epoch(RegionEpoch(NEW), 0), 0)
        if own > standing.round and "T21 no round of its own" not in self.mutants:
            yield Move(("the candidate enters its own round",), partial(_entered, state, int(own)))
            return
        if state.stage == DECIDES:
            yield Move(*self._decide(state, standing))
        elif not standing.prepared:
            if state.waiting:
                waited = partial(self._feed, state._replace(waiting=()), state.waiting)
                yield Move(("orphans that waited are aborted",), waited)
            else:
                yield Move(("the candidate serves",), partial(state._replace, stage=SERVES))
        if state.crashes < self.size.crashes:
            crashed = state._replace(
                stage=DECIDES, sent=frozenset(), confirmed=frozenset(), waiting=(),
                crashes=state.crashes + 1,
            )  # fmt: skip
            yield Move(("the candidate crashes",), partial(crashed._replace))

    def _decide(self, state: State, standing: "Standing") -> Move:
        """Every outcome is in the ledger before its markers; the real order is that of `abort_open`."""
        found = [(TPS[p], txn) for p, log in enumerate(state.logs) for txn in _open_in(log)]
        for record in standing.ongoing:
            tps = tuple(tp for tp, txn in found if txn.producer_id == record.producer_id)
            adopt = ev.AdoptOngoing(record.transactional_id, tps)
            return Move(
                ("what is open in the ledger is aborted",), partial(self._feed, state, [adopt])
            )
        orphans: list[ev.AbortOrphan] = []
        waiting: list[ev.AbortOrphan] = []
        for orphan in drained(sort_out(found, standing.records)).orphans:
            is_owed = tr.orphan_id(orphan.producer_id) in standing.prepared
            (waiting if is_owed else orphans).append(orphan)
        if "T21 orphans are left" in self.mutants:
            orphans = []
        decided_state = state._replace(stage=CARRIES_OUT, waiting=tuple(waiting))
        return Move(("all that is open is decided",), partial(self._feed, decided_state, orphans))

    def _feed(self, state: State, events: Sequence[ev.TxnEvent]) -> State:
        shard = self._shard(state)
        shard.step(ev.MarkersDeferred(deferred=True))
        for event in events:
            shard.step(event)
        return shard.after

    # Markers.

    def _markers(self, state: State) -> Iterator[Move]:
        for order in self._standing(state).owed:
            if order not in state.sent:
                sent = state.sent | {order}
                yield Move(("markers are sent",), partial(state._replace, sent=sent))
        for order in state.sent:
            for tp in order.partitions:
                p = tp.partition
                row = self._marker(state, order)
                label = ("partition {} hears {} of {}", p, row.kind, order.decision.offset)
                after = self._marked(state, order, p, row)
                if after != state:
                    yield Move(label, partial(after._replace))

    def _marker(self, state: State, order: SendMarkers) -> Row:
        compared = "T6 decisions are not compared" not in self.mutants
        return Row(
            order.producer_id, order.producer_epoch, COMMIT if order.commit else ABORT,
            decision=order.decision if compared else None,
            coordinator_epoch=leader_epoch(RegionEpoch(state.region_epoch), 0),
        )  # fmt: skip

    def _marked(self, state: State, order: SendMarkers, p: int, row: Row) -> State:
        facts, log = marker_of(row), state.logs[p]
        assert facts is not None, row
        judged = replayed(log).judge_marker(facts, tv2=order.tv2)
        assert judged.verdict is not Verdict.COORDINATOR_FENCED, judged
        if judged.verdict is Verdict.FRESH and self._changes(log, row):
            state = state._replace(logs=put(state.logs, p, (*log, row)))
        if (order.decision, p) in state.confirmed:
            return state
        if order not in self._standing(state).owed:
            return state
        shard = self._shard(state)
        shard.step(ev.MarkerConfirmed(order.transactional_id, order.decision, TPS[p]))
        return shard.after._replace(confirmed=shard.after.confirmed | {(order.decision, p)})

    def _changes(self, log: Rows, row: Row) -> bool:
        """Without T6 a marker is written again without end: once more where something is open is enough."""
        return row.decision is not None or row not in log or _is_open(log)

    # What must hold.

    def check(self, state: State) -> None:
        committed = set()
        for p, log in enumerate(state.logs):
            for txn, kind in _outcomes(log):
                if kind == COMMIT:
                    committed.add((txn, p))
                    if txn not in state.asked:
                        raise Broken("not asked", f"T{txn} is committed in partition {p}")
        settled = state.stage == SERVES and not any(map(_is_open, state.logs))
        if state.region_epoch == NEW and settled:
            for txn, p in state.written - committed:
                if txn in state.told:
                    raise Broken("told committed", f"T{txn} is not in partition {p}")
                if any(other == txn for other, _ in committed):
                    raise Broken("half", f"T{txn} is not committed in partition {p}")

    def _shard(self, state: State) -> "Shard":
        return Shard(state, _core(*self._parts(state))[0])

    def _standing(self, state: State) -> "Standing":
        return _standing(*self._parts(state))

    def _parts(self, state: State) -> "Parts":
        kept = "T22 the pair goes on" in self.mutants
        together = "T21 orphans do not wait" in self.mutants
        acts_as = OLD if kept else state.region_epoch
        released = FIRST_ROUND if state.region_epoch == OLD else 0
        if state.cut:
            released = CUT_ROUND
        return Parts(state.ledger, state.confirmed, acts_as, released, together)


class Parts(NamedTuple):
    """What a coordinator is, as far as its ledger does not say it."""

    ledger: tuple[LedgerRow, ...]
    confirmed: frozenset[tuple[DecisionId, int]]
    region_epoch: int
    released: int
    together: bool


class Standing(NamedTuple):
    """What a loaded coordinator says: the markers that it owes, its round, and what is open, decided and known."""

    owed: tuple[SendMarkers, ...]
    round: int
    ongoing: tuple[lr.TransactionRecord, ...]
    prepared: frozenset[str]
    records: tuple[lr.TransactionRecord, ...]


def _core(
    ledger: tuple[LedgerRow, ...],
    confirmed: frozenset[tuple[DecisionId, int]],
    region_epoch: int,
    released: int,
    together: bool,
) -> tuple[TxnCoordinatorCore, tuple[SendMarkers, ...]]:
    """Load a real coordinator; return it with the markers that it owes: orphans' last (INV-TA2)."""
    core = TxnCoordinatorCore(0, region_epoch=RegionEpoch(region_epoch))
    for offset, row in enumerate(ledger):
        core.replay(LedgerPosition(LeaderEpoch(row.leader_epoch), offset), row.key, row.value)
    _silently(core, ev.ProducerIdsGranted(ProducerId(PRODUCER + len(ledger) - 1), 2))
    _silently(core, ev.ReleaseRound(Round(released)))
    orders = _silently(core, ev.MarkersResumed(orphans=False))
    owing = {record.transactional_id for record, _ in core.view.prepared()}
    if together or all(name.startswith(tr.ORPHAN_PREFIX) for name in owing):
        orders += _silently(core, ev.MarkersResumed(orphans=True))
    owed = tuple(order for order in orders if isinstance(order, SendMarkers))
    for decision, p in confirmed:
        for order in owed:
            if order.decision == decision:
                _silently(core, ev.MarkerConfirmed(order.transactional_id, decision, TPS[p]))
    return core, owed


def _silently(core: TxnCoordinatorCore, event: ev.TxnEvent) -> list[object]:
    return list(core.step(event, now_ms=0, wall_ms=0))


@lru_cache(maxsize=65536)
def _standing(
    ledger: tuple[LedgerRow, ...],
    confirmed: frozenset[tuple[DecisionId, int]],
    region_epoch: int,
    released: int,
    together: bool,
) -> Standing:
    core, owed = _core(ledger, confirmed, region_epoch, released, together)
    prepared = frozenset(record.transactional_id for record, _ in core.view.prepared())
    return Standing(
        owed, core.view.round, tuple(core.view.ongoing()), prepared, tuple(core.view.records())
    )


class Shard:
    """The real coordinator of a state, which is moved by each step; `after` is the state then."""

    def __init__(self, state: State, core: TxnCoordinatorCore) -> None:
        self.after = state
        self.answers: dict[int, Answer] = {}
        self.core = core

    def verdict(self, request: int) -> TxnVerdict:
        """Return the answer to a request; one that waits is asked again."""
        return self.answers[request].verdict if request in self.answers else TxnVerdict.CONCURRENT

    def step(self, event: ev.TxnEvent) -> None:
        """Take one event, and make durable what it appends."""
        effects = _silently(self.core, event)
        while effects:
            effect = effects.pop(0)
            match effect:
                case AppendRecord(record=record, report=report):
                    position = self.append(record)
                    if report:
                        durable = ev.RecordDurable(record.transactional_id, position)
                        effects += _silently(self.core, durable)
                case Answer(request_id=number):
                    self.answers[number] = effect
                case AppendRound():
                    raise AssertionError("rounds are entered by `_entered`")
                case _:
                    pass  # markers are asked of `owed`; who waits asks again

    def append(self, record: lr.TransactionRecord) -> LedgerPosition:
        """Append a record to the ledger."""
        epoch = int(leader_epoch(RegionEpoch(self.after.region_epoch), 0))
        name = record.transactional_id
        key = lr.encode_transaction_key(name)
        if name.startswith(tr.ORPHAN_PREFIX):
            key = lr.encode_orphan_key(record.producer_id)
        row = LedgerRow(epoch, key, lr.encode_transaction_value(record))
        position = LedgerPosition(LeaderEpoch(epoch), len(self.after.ledger))
        self.after = self.after._replace(ledger=(*self.after.ledger, row))
        return position


def _entered(state: State, number: int) -> State:
    epoch = int(leader_epoch(RegionEpoch(state.region_epoch), 0))
    value = lr.encode_round_value(lr.RoundRecord(Round(number), CoordinatorEpoch(epoch)))
    return state._replace(ledger=(*state.ledger, LedgerRow(epoch, lr.encode_round_key(), value)))


def _cut_at(state: State) -> State:
    return _entered(state, CUT_ROUND)._replace(cut=(len(state.ledger), UNKNOWN, UNKNOWN))


def _open_in(log: Rows) -> list[OpenTxn]:
    return replayed(log).open_transactions()


def _is_open(log: Rows) -> bool:
    return bool(replayed(log).open_transactions())


@lru_cache(maxsize=65536)
def _outcomes(log: Rows) -> tuple[tuple[int, str], ...]:
    """Return the transactions that a reader finds in a log, each with how it ended there."""
    found = []
    waiting: dict[int, list[int]] = {}
    for row in log:
        if row.kind == DATA:
            waiting.setdefault(row.producer_id, []).append(row.txn)
        else:
            found += [(txn, row.kind) for txn in waiting.pop(row.producer_id, [])]
    return tuple(found)
