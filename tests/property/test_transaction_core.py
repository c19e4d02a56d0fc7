"""The coordinator core against random schedules, and the epoch corners state by state (C16, P6, P7)."""

import itertools

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from idempotency.decision import round_of
from idempotency.identity import ProducerEpoch, ProducerId, ProducerPair
from idempotency.ledger_records import TransactionRecord, TxnStatus
from tests.fixtures.coordinator import CoreFixture, tp
from txn_coordinator import events as ev
from txn_coordinator.effects import Answer
from txn_coordinator.transitions import unborn
from txn_coordinator.verdicts import TxnVerdict as V

S = TxnStatus
STATES = (
    S.EMPTY,
    S.ONGOING,
    S.PREPARE_COMMIT,
    S.PREPARE_ABORT,
    S.COMPLETE_COMMIT,
    S.COMPLETE_ABORT,
)
OPS = ("init", "init-pair", "add", "commit", "abort", "timeout")


def entry(status: TxnStatus, epoch: int, tv: int) -> TransactionRecord:
    """Return an entry of producer 5."""
    prepared = status in (S.PREPARE_COMMIT, S.PREPARE_ABORT)
    return msgspec.structs.replace(
        unborn("t"),
        producer_id=5,
        producer_epoch=epoch,
        # a TV2 decision that used up the last epoch has its successor with it
        next_producer_id=900 if prepared and epoch == 32_767 else -1,
        timeout_ms=60_000,
        status=status,
        partitions=(tp("a"),) if status is S.ONGOING or prepared else (),
        stamp=0 if prepared else None,
        region_epoch=8,
        client_tv=tv,
    )


@pytest.mark.parametrize("epoch", [32_764, 32_765, 32_766, 32_767])
@pytest.mark.parametrize("tv", [1, 2])
def test_C16_P6_P7_every_state_and_operation_at_the_last_epochs(epoch: int, tv: int) -> None:
    for status, op, sent_epoch in itertools.product(STATES, OPS, (epoch - 1, epoch)):
        fixture = CoreFixture()
        fixture.install(entry(status, epoch, tv))
        fixture.resume()
        before = fixture.record()
        number = 0
        match op:
            case "init":
                number = fixture.init()
            case "init-pair":
                number = fixture.init(pid=5, epoch=sent_epoch)
            case "add":
                number = fixture.add(5, sent_epoch, tp("b"), tv=tv)
            case "commit" | "abort":
                number = fixture.end(5, sent_epoch, op == "commit", tv=tv)
            case _:
                fixture.now_ms = 10**9
                fixture.step(ev.TransactionTimedOut("t"))
        fixture.deliver()
        after = fixture.record()
        where = (status, op, sent_epoch, epoch, tv)
        assert after.status not in (S.PREPARE_COMMIT, S.PREPARE_ABORT), where  # nothing is stuck
        assert after.producer_epoch >= 0, where
        if after.producer_id == 5:
            assert after.producer_epoch - before.producer_epoch in (0, 1, 2), where
            assert after.producer_epoch <= max(epoch, 32_766), where
        else:
            assert after.producer_epoch in (0, 1), where
        if number:
            answer = fixture.answers[number]
            if (before.status, epoch) != (S.COMPLETE_COMMIT, 32_767):  # none is made (INV-TS3)
                assert answer.producer_epoch <= 32_766, where
            if answer.verdict is V.OK and op.startswith("init"):
                pair = (answer.producer_id, answer.producer_epoch)
                assert pair == (after.producer_id, after.producer_epoch), where
        # whatever happened, a new instance can always go on
        again = fixture.init()
        fixture.deliver()
        assert fixture.answers[again].verdict is V.OK, where
        assert 0 <= fixture.answers[again].producer_epoch <= 32_766, where


class CoreMachine(RuleBasedStateMachine):
    """Random requests, durability, markers, rounds, time-outs and restarts over two ids."""

    @initialize(epoch=st.sampled_from([0, 32_763, 32_765]))
    def start(self, epoch: int) -> None:
        """Begin near the end of the epochs, or at 0."""
        self.fixture = CoreFixture()
        self.pairs: dict[str, ProducerPair] = {}
        self.given: dict[tuple[int, int], str] = {}
        self.asked: list[tuple[int, str, CoreFixture]] = []
        self.round = 0
        for name, pid in (("t", 5), ("u", 6)):
            record = entry(S.EMPTY, epoch, 2)
            self.fixture.install(
                msgspec.structs.replace(record, transactional_id=name, producer_id=pid)
            )
            self.pairs[name] = (ProducerId(pid), ProducerEpoch(epoch))

    names = st.sampled_from(["t", "u"])
    tvs = st.sampled_from([1, 2])

    def _note(self, name: str, number: int) -> None:
        self.fixture.stock(2)
        self.asked.append((number, name, self.fixture))

    def _learn(self) -> None:
        """Let clients take the pairs they were answered."""
        for number, name, fixture in list(self.asked):
            answer = fixture.answers.get(number)
            if fixture is self.fixture and answer is not None:
                self.asked.remove((number, name, fixture))
                self._learn_one(name, answer)

    def _learn_one(self, name: str, answer: Answer) -> None:
        if answer.verdict is V.OK and answer.producer_id >= 0:
            pair = (answer.producer_id, answer.producer_epoch)
            assert self.given.setdefault(pair, name) == name, "one pair, two transactional ids"
            assert 0 <= pair[1] <= 32_766
            self.pairs[name] = pair

    @rule(name=names, keep=st.booleans())
    def init(self, name: str, keep: bool) -> None:
        """InitProducerId, with or without the pair."""
        pid, epoch = self.pairs[name] if keep else (-1, -1)
        self._note(name, self.fixture.init(name, pid=pid, epoch=epoch))

    @rule(name=names, number=st.integers(0, 3), tv=tvs)
    def add(self, name: str, number: int, tv: int) -> None:
        """AddPartitions."""
        pid, epoch = self.pairs[name]
        self._note(name, self.fixture.add(pid, epoch, tp("a", number), name=name, tv=tv))

    @rule(name=names, commit=st.booleans(), tv=tvs)
    def end(self, name: str, commit: bool, tv: int) -> None:
        """EndTxn."""
        pid, epoch = self.pairs[name]
        self._note(name, self.fixture.end(pid, epoch, commit, name=name, tv=tv))

    @rule()
    @precondition(lambda self: self.fixture.unconfirmed)
    def durable(self) -> None:
        """One record becomes durable."""
        position, name = self.fixture.unconfirmed.pop(0)
        self.fixture.step(ev.RecordDurable(name, position))
        self._learn()

    @rule()
    @precondition(lambda self: self.fixture.sent)
    def marker(self) -> None:
        """All markers of one decision arrive."""
        order = self.fixture.sent.pop(0)
        for partition in order.partitions:
            self.fixture.step(ev.MarkerConfirmed(order.transactional_id, order.decision, partition))
        self._learn()

    @rule()
    def enter(self) -> None:
        """ENTER of the next round."""
        self.round += 1
        self.fixture.step(ev.EnterRound(round_of(7, self.round)))

    @rule()
    def release(self) -> None:
        """RELEASE of the current round."""
        self.fixture.step(ev.ReleaseRound(round_of(7, self.round)))

    @rule(name=names)
    def time_out(self, name: str) -> None:
        """The transaction runs out of time."""
        self.fixture.now_ms += 100_000
        self.fixture.stock(1)
        self.fixture.step(ev.TransactionTimedOut(name))

    @rule(lost=st.integers(0, 4))
    def crash(self, lost: int) -> None:
        """Lose a part of what is not durable, and load again."""
        durable = max([0, *(len(self.fixture.rows) - lost,)])
        if self.fixture.unconfirmed:
            durable = max(durable, self.fixture.unconfirmed[0][0].offset)
        else:
            durable = len(self.fixture.rows)
        self.fixture = self.fixture.reload(rows=durable)
        self.fixture.stock(50)
        self.fixture.resume()

    @invariant()
    def live_is_replay(self) -> None:
        """What is applied is what the ledger says, up to what is pending."""
        if not hasattr(self, "fixture"):
            return
        replayed = self.fixture.reload()
        assert replayed.core.view.round == self.fixture.core.view.round
        for name, live in self.fixture.entries.items():
            again = replayed.entries.get(name)
            expected = live.pending or live.record
            if expected.producer_id >= 0:
                assert again is not None
                assert again.record == expected

    @invariant()
    def commit_markers_of_the_current_round_wait(self) -> None:
        """T3, for every order that was sent."""
        for order in getattr(self, "fixture", CoreFixture()).sent:
            if order.commit:
                assert self.fixture.core._gate.is_free(order.decision.stamp)

    def teardown(self) -> None:
        """Let everything finish: nothing is stuck, every request is answered."""
        if not hasattr(self, "fixture"):
            return
        self.fixture.step(ev.ReleaseRound(round_of(7, self.round)))
        self.fixture.deliver()
        self._learn()
        for live in self.fixture.entries.values():
            assert live.record.status not in (S.PREPARE_COMMIT, S.PREPARE_ABORT)
            assert live.pending is None
            assert live.parked == {}
        assert [ask for ask in self.asked if ask[2] is self.fixture] == []


CoreMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCoreMachine = CoreMachine.TestCase
