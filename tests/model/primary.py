"""Rounds at the primary (T1 to T11): ledger shards, partitions, a cut leader or two, and transactions that read each other.

Real, called at each move: `RoundsCore` and `Collection` (`geo_replicator.cut_rounds`), `RoundGate`
(`txn_coordinator.rounds`), `CutIndex` (`idempotency.cut_index`), `broken_rules` (`geo_replicator.tidemark`). Plain: the
network, which delivers each message late, often or never; what a crash leaves of a ledger; the election of a leader.
`Size` says what may happen, so that each instance stays small enough to be looked at whole.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from geo_replicator.cut_rounds import (
    HOLD_MS_MIN,
    AnswerVerdict,
    Collection,
    LogAnswer,
    RoundPhase,
    RoundsCore,
)
from geo_replicator.effects import EnterRound, PublishTidemark, ReleaseRound, RoundEffect
from geo_replicator.events import (
    PositionsCollected,
    RoundEvent,
    ShardEntered,
    SomethingChanged,
    TermRecorded,
    TidemarkDurable,
    TimePassed,
)
from geo_replicator.tidemark import broken_rules, first_vector
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, Round
from tests.model.explore import Broken, Label, Move
from tests.model.primary_states import (
    ABORT,
    COMMIT,
    DATA,
    KEYS,
    PARTITIONS,
    SHARDS,
    UNKNOWN,
    Cut,
    Decision,
    Entered,
    Leader,
    Log,
    Record,
    Shard,
    Size,
    State,
    Txn,
    answers_of,
    core_of,
    decision_of,
    gate_of,
    holds_data,
    is_marked,
    metadata,
    noted,
    put,
    round_name,
    tidemark_of,
    with_leader,
    with_shard,
    without_idle,
)
from txn_coordinator.rounds import RoundGate


@dataclass(frozen=True)
class Primary:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        logs = tuple(
            Log(exists=not (self.size.grows and p == 1)) for p in range(self.size.partitions)
        )
        first = Leader(1, RoundPhase.RESTING)
        asked = (UNKNOWN,) * len(self.size.txns)
        return State((Shard(),) * SHARDS, logs, (first,), recorded=1, asked=asked)

    def moves(self, state: State) -> Iterator[Move]:
        yield from self._transactions(state)
        yield from self._shards(state)
        yield from self._markers(state)
        for at in range(len(state.leaders)):
            yield from self._leader(state, at)
        if self.size.lags or self.size.grows:
            yield from self._partitions(state)
        if state.faults < self.size.crashes + self.size.deaths:
            yield from self._crashes(state)
        if len(state.leaders) < self.size.terms:
            yield Move(("another cut leader is elected",), partial(self._elected, state))

    def canonical(self, state: State) -> State:
        """Forget messages that change nothing any more, and what an idle cut leader knew."""
        leaders, entering = without_idle(state.leaders)
        lowest = min(shard.current for shard in state.shards)
        releases = state.releases
        if not self.size.crashes and any(number < lowest for number in releases):
            releases = frozenset(number for number in releases if number >= lowest)
        enters = state.enters
        if any(number <= lowest and number not in entering for number in enters):
            enters = frozenset(n for n in enters if n > lowest or n in entering)
        answers = state.answers
        if any(answer[0] not in entering for answer in answers):
            answers = frozenset(answer for answer in answers if answer[0] in entering)
        return state._replace(
            leaders=leaders, enters=enters, releases=releases, answers=answers,
            published=state.published[-1:],
        )  # fmt: skip

    def good(self, state: State) -> bool:
        """Transactions go on, whatever becomes of a shard or of rounds (T4)."""
        return all(
            not state.shards[txn.shard].alive
            or (
                (found := decision_of(state, number)) is not None
                and all(is_marked(state.logs[p], number) for p in txn.writes)
                and found[1] < state.shards[txn.shard].durable
            )
            for number, txn in enumerate(self.size.txns)
        )

    def check(self, state: State) -> None:
        """T2, T10: a decision of stamp s is covered by the first tidemark with r > s, and by no earlier one."""
        for cut in state.published:
            for shard, end in zip(state.shards, cut.ledger, strict=True):
                if end >= len(shard.ledger):
                    raise Broken("cut lost", f"a ledger lost the offset {end} of round {cut.round}")
                for offset, entry in enumerate(shard.ledger):
                    if isinstance(entry, Decision) and (entry.stamp < cut.round) != (offset < end):
                        raise Broken("stamp", f"{entry} at {offset}, L of {cut.round} is {end}")

    # Transactions.

    def _transactions(self, state: State) -> Iterator[Move]:
        for number, txn in enumerate(self.size.txns):
            if not state.shards[txn.shard].alive or decision_of(state, number) is not None:
                continue
            missing = [p for p in txn.writes if not holds_data(state.logs[p], number)]
            if not self._moves_partitions and missing:
                yield Move(("T{} writes", number), partial(self._write, state, number, missing))
            elif missing and state.logs[missing[0]].exists:
                label = ("T{} writes to partition {}", number, missing[0])
                yield Move(label, partial(self._write, state, number, missing[:1]))
            elif not missing and self._all_acked(state, number):
                yield from self._decisions(state, number)

    def _all_acked(self, state: State, number: int) -> bool:
        if "T8 acks=1" in self.mutants:
            return True
        logs = [state.logs[p] for p in self.size.txns[number].writes]
        return all(Record(number, DATA) in log.records[: log.acked] for log in logs)

    def _write(self, state: State, number: int, partitions: list[int]) -> State:
        for p in partitions:
            state = self._append(state, p, Record(number, DATA))
        return state

    def _append(self, state: State, p: int, record: Record) -> State:
        log = state.logs[p]
        records = (*log.records, record)
        end = len(records)
        if not self.size.lags:
            log = log._replace(acked=end, known=end)
        return state._replace(logs=put(state.logs, p, log._replace(records=records)))

    def _decisions(self, state: State, number: int) -> Iterator[Move]:
        if "T2 stamp before log" in self.mutants and state.asked[number] == UNKNOWN:
            stamp = state.shards[self.size.txns[number].shard].current
            asked = put(state.asked, number, stamp)
            yield Move(("T{} is asked to end", number), partial(state._replace, asked=asked))
            return
        yield Move(("T{} is committed", number), partial(self._decide, state, number, True))
        if self.size.txns[number].aborts:
            yield Move(("T{} is aborted", number), partial(self._decide, state, number, False))

    def _decide(self, state: State, number: int, commit: bool) -> State:
        at = self.size.txns[number].shard
        shard, stamp = state.shards[at], state.asked[number]
        saw = sum(
            {1 << r.txn for log in state.logs for r in log.records[: log.known] if r.kind == COMMIT}
        )
        decision = Decision(number, commit, shard.current if stamp == UNKNOWN else stamp, saw)
        return with_shard(state, at, self._log(at, shard, decision))

    def _log(self, at: int, shard: Shard, entry: Entered | Decision) -> Shard:
        ledger = (*shard.ledger, entry)
        crashes = self.size.crashes and at == 0
        return shard._replace(ledger=ledger, durable=shard.durable if crashes else len(ledger))

    # Ledger shards.

    def _shards(self, state: State) -> Iterator[Move]:
        for at, shard in enumerate(state.shards):
            if not shard.alive:
                continue
            if shard.durable < len(shard.ledger):
                synced = shard._replace(durable=len(shard.ledger))
                yield Move(("shard {} is durable", at), partial(with_shard, state, at, synced))
            for number in state.enters:
                if number > shard.current:
                    label = ("shard {} hears ENTER {}", at, round_name(number))
                    yield Move(label, partial(self._enter, state, at, number))
            for number in state.releases:
                if number > shard.released and number >= shard.current:
                    gate = gate_of(shard)
                    gate.release(Round(number))
                    after = shard._replace(released=gate.released)
                    label = ("shard {} hears RELEASE {}", at, round_name(number))
                    yield Move(label, partial(with_shard, state, at, after))
            answer = self._answer(state, at)
            if answer is not None and answer not in state.answers:
                answers = state.answers | {answer}
                yield Move(("shard {} answers", at), partial(state._replace, answers=answers))

    def _enter(self, state: State, at: int, number: int) -> State:
        shard = state.shards[at]
        gate = gate_of(shard)
        gate.enter(Round(number))
        after = self._log(at, shard, Entered(number))._replace(
            current=gate.current,
            released=0,  # what was released before is free by its stamp
        )
        entered = with_shard(state, at, after)
        if self.size.crashes and at == 0:
            return entered
        answer = self._answer(entered, at)
        return entered if answer is None else entered._replace(answers=state.answers | {answer})

    def _answer(self, state: State, at: int) -> tuple[int, int, int] | None:
        shard = state.shards[at]
        end = len(shard.ledger) if "T2 answered at once" in self.mutants else shard.durable
        if shard.current not in state.enters or Entered(shard.current) not in shard.ledger[:end]:
            return None
        return shard.current, at, shard.ledger.index(Entered(shard.current))

    def _crashes(self, state: State) -> Iterator[Move]:
        shard = state.shards[0]  # the other one is like it
        if self.size.deaths:
            dead = with_shard(state, 0, shard._replace(alive=False))
            yield Move(("shard 0 dies",), partial(dead._replace, faults=1))
            return
        for kept in range(shard.durable, len(shard.ledger) + 1):
            label = ("shard 0 crashes and keeps {} records", kept)
            yield Move(label, partial(self._reload, state, 0, kept))

    def _reload(self, state: State, at: int, kept: int) -> State:
        ledger = state.shards[at].ledger[:kept]
        gate = RoundGate()
        if "T2 round in memory" not in self.mutants:
            for offset, entry in enumerate(ledger):
                if isinstance(entry, Entered):
                    gate.restore(Round(entry.round), offset)
        if "T3 all is sent again at load" in self.mutants:
            gate.release(gate.current)
        after = Shard(ledger, kept, gate.current, gate.released)
        return with_shard(state, at, after)._replace(faults=state.faults + 1)

    # Markers.

    def _markers(self, state: State) -> Iterator[Move]:
        for number, txn in enumerate(self.size.txns):
            found = decision_of(state, number)
            if found is None:
                continue
            decision, offset = found
            sent = number in state.markers
            free = sent or self._is_free(state, txn, decision)
            if free and not sent and offset < state.shards[txn.shard].durable:
                markers = state.markers | {number}
                if self.size.crashes:
                    yield Move(
                        ("markers of T{} are sent", number),
                        partial(state._replace, markers=markers),
                    )
                sent = not self.size.crashes  # without a crash what is free now is so for ever
            for p in txn.writes if sent else ():
                if not is_marked(state.logs[p], number):
                    record = Record(number, COMMIT if decision.commit else ABORT, decision.stamp)
                    label = ("partition {} takes the marker of T{}", p, number)
                    yield Move(label, partial(self._append, state, p, record))

    def _is_free(self, state: State, txn: Txn, decision: Decision) -> bool:
        shard = state.shards[txn.shard]
        free = not decision.commit or gate_of(shard).is_free(Round(decision.stamp))
        return shard.alive and (free or "T3 nothing is held" in self.mutants)

    # The cut leader.

    def _leader(self, state: State, at: int) -> Iterator[Move]:
        leader = state.leaders[at]
        match leader.phase:
            case RoundPhase.RECORDING_TERM:
                label = ("cut leader {} has recorded its term", at)
                yield Move(label, partial(self._record_term, state, at))
            case RoundPhase.RESTING if leader.began < self.size.rounds:
                event = SomethingChanged(urgent=True)
                yield Move(
                    ("cut leader {} begins a round", at), partial(self._tell, state, at, event)
                )
            case RoundPhase.ENTERING:
                for number, shard, offset in state.answers:
                    if number == leader.round and leader.entered[shard] == UNKNOWN:
                        entered = ShardEntered(Round(number), shard, CoordinatorEpoch(0), offset)
                        heard: Label = ("cut leader {} hears that shard {} entered", at, shard)
                        yield Move(heard, partial(self._tell, state, at, entered))
                if "T4 a round is waited for" not in self.mutants:
                    abandon: Label = ("cut leader {} abandons its round", at)
                    yield Move(abandon, partial(self._tell, state, at, TimePassed()))
            case RoundPhase.COLLECTING:
                yield from self._collect(state, at)
            case _:
                pass

    def _record_term(self, state: State, at: int) -> State:
        recorded = max(state.recorded, state.leaders[at].term)
        return self._tell(state._replace(recorded=recorded), at, TermRecorded())

    def _tell(self, state: State, at: int, event: RoundEvent) -> State:
        core = core_of(state.leaders[at])
        if isinstance(event, TimePassed) and "T4 what was released is published" in self.mutants:
            return self._performed(state, at, core, [ReleaseRound(core.round)])
        effects = core.step(event, now_ms=HOLD_MS_MIN if isinstance(event, TimePassed) else 0)
        return self._performed(state, at, core, effects)

    def _performed(
        self, state: State, at: int, core: RoundsCore, effects: Iterable[RoundEffect]
    ) -> State:
        leader = noted(state.leaders[at], core)
        for effect in effects:
            match effect:
                case EnterRound(round=number):
                    state = state._replace(enters=state.enters | {number})
                    leader = leader._replace(epochs=(), positions=(UNKNOWN,) * PARTITIONS)
                    if "T9 metadata before the round" in self.mutants:
                        leader = leader._replace(epochs=metadata(state))
                case ReleaseRound(round=number):
                    state = state._replace(releases=state.releases | {number})
                case PublishTidemark(round=number, ledger=ledger):
                    state = self._publish(state, leader, number, tuple(ledger.values()))
                    core.step(TidemarkDurable(number), now_ms=0)
                    leader = noted(leader, core)
                case _:
                    pass
        if (
            leader.phase is RoundPhase.COLLECTING
            and not leader.epochs
            and not self._moves_partitions
        ):
            leader = leader._replace(epochs=metadata(state))
        return state._replace(leaders=put(state.leaders, at, leader))

    @property
    def _moves_partitions(self) -> bool:
        return bool(self.size.elections) or self.size.grows

    def _collect(self, state: State, at: int) -> Iterator[Move]:
        leader = state.leaders[at]
        if not leader.epochs:
            fresh = leader._replace(epochs=metadata(state), positions=(UNKNOWN,) * PARTITIONS)
            label = ("cut leader {} reads the metadata", at)
            yield Move(label, partial(with_leader, state, at, fresh))
            return
        for p, epoch in enumerate(leader.epochs):
            if epoch == UNKNOWN or leader.positions[p] != UNKNOWN:
                continue
            for which, answer in enumerate(
                answers_of(state.logs[p], p, leader.round, self.mutants)
            ):
                who = "its deposed leader" if which else "its leader"
                asks: Label = ("cut leader {} asks partition {} for D, and {} answers", at, p, who)
                yield Move(asks, partial(self._take, state, at, answer))

    def _take(self, state: State, at: int, answer: LogAnswer) -> State:
        leader = state.leaders[at]
        epochs = {KEYS[p]: epoch for p, epoch in enumerate(leader.epochs) if epoch != UNKNOWN}
        if "T9 a lagging leader answers" in self.mutants:
            answer = replace(answer, leader_epoch_start_offset=0)
        if "T9 a deposed leader answers" in self.mutants:
            answer = replace(answer, leader_epoch=LeaderEpoch(epochs[answer.key]))
        collection = Collection(Round(leader.round), epochs)
        verdict = collection.take(answer)
        if verdict is AnswerVerdict.NEWER_METADATA:
            return with_leader(state, at, leader._replace(epochs=()))
        if verdict is not AnswerVerdict.TAKEN:
            return state
        cut = collection.positions[answer.key].cut_offset
        leader = leader._replace(positions=put(leader.positions, answer.key.partition, cut))
        state = with_leader(state, at, leader)
        if any(
            epoch != UNKNOWN and leader.positions[p] == UNKNOWN
            for p, epoch in enumerate(leader.epochs)
        ):
            return state
        if leader.term < state.recorded and "T1 a deposed one publishes" not in self.mutants:
            deposed = leader._replace(phase=RoundPhase.NEW)
            return with_leader(state, at, deposed)  # its record never gets below HW
        return self._tell(state, at, PositionsCollected(Round(leader.round)))

    def _elected(self, state: State) -> State:
        last = state.leaders[-1].term
        again = "T1 a round is driven again" in self.mutants
        return state._replace(leaders=(*state.leaders, Leader(last if again else last + 1)))

    # Tidemarks.

    def _publish(self, state: State, leader: Leader, number: int, ledger: tuple[int, ...]) -> State:
        ends = leader.positions[: len(state.logs)]
        cut = Cut(number, ledger, tuple(max(end, 0) for end in ends))
        if state.published:
            broken = broken_rules(
                first_vector(tidemark_of(state.published[-1], 1), 0), tidemark_of(cut, 2)
            )
            if broken:
                raise Broken("monotone", "; ".join(broken))
        self._judge(state, cut)
        return state._replace(published=(*state.published, cut))

    def _judge(self, state: State, cut: Cut) -> None:
        inside = [
            entry
            for shard, end in zip(state.shards, cut.ledger, strict=True)
            for entry in shard.ledger[:end]
            if isinstance(entry, Decision) and entry.commit
        ]
        names = {decision.txn for decision in inside}
        covered = sum(1 << txn for txn in names)
        for decision in inside:
            if decision.saw & ~covered:
                raise Broken("dependency", f"T{decision.txn} read what {cut} does not hold")
        for log, end in zip(state.logs, cut.positions, strict=True):
            for offset, record in enumerate(log.records):
                if record.txn in names and record.kind == DATA and offset >= end:
                    raise Broken("torn", f"data of T{record.txn} lies above {cut}")
                if record.txn not in names and record.kind == COMMIT and offset < end:
                    raise Broken("torn", f"a marker of T{record.txn} lies below {cut}")

    # Partitions.

    def _partitions(self, state: State) -> Iterator[Move]:
        for p, log in enumerate(state.logs):
            if not log.exists:
                made = put(state.logs, p, log._replace(exists=True))
                yield Move(("partition {} is made", p), partial(state._replace, logs=made))
            end = len(log.records)
            if min(log.acked, log.known) < end:
                copied = put(state.logs, p, log._replace(acked=end, known=end))
                yield Move(("partition {} is copied", p), partial(state._replace, logs=copied))
            if sum(each.epoch for each in state.logs) < self.size.elections:
                for kept, known in product(range(log.acked, end + 1), sorted({0, log.acked})):
                    elected = _elected_log(log, kept, known)
                    label = (
                        "partition {} gets a leader that holds {} and knows HW {}",
                        p,
                        kept,
                        known,
                    )
                    moved = partial(state._replace, logs=put(state.logs, p, elected))
                    yield Move(label, moved)


def _elected_log(log: Log, kept: int, known: int) -> Log:
    return log._replace(
        records=log.records[:kept], known=known, epoch=log.epoch + 1, start=kept,
        deposed=(log.records, log.known, log.epoch, log.start),
    )  # fmt: skip
