"""The coordinator core against random schedules, and the epoch corners state by state (C16, P6, P7)."""

import itertools

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from idempotency.decision import round_of
from idempotency.ledger_records import TransactionRecord, TxnStatus
from tests.fixtures.coordinator import CoreWorld, tp
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
PREPARED = (S.PREPARE_COMMIT, S.PREPARE_ABORT)
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
        world = CoreWorld()
        world.install(entry(status, epoch, tv))
        world.resume()
        before = world.record()
        number = 0
        match op:
            case "init":
                number = world.init()
            case "init-pair":
                number = world.init(pid=5, epoch=sent_epoch)
            case "add":
                number = world.add(5, sent_epoch, tp("b"), tv=tv)
            case "commit" | "abort":
                number = world.end(5, sent_epoch, op == "commit", tv=tv)
            case _:
                world.now_ms = 10**9
                world.step(ev.TransactionTimedOut("t"))
        world.deliver()
        after = world.record()
        where = (status, op, sent_epoch, epoch, tv)
        assert after.status not in (S.PREPARE_COMMIT, S.PREPARE_ABORT), where  # nothing is stuck
        assert after.producer_epoch >= 0, where
        if after.producer_id == 5:
            assert after.producer_epoch - before.producer_epoch in (0, 1, 2), where
            assert after.producer_epoch <= max(epoch, 32_766), where
        else:
            assert after.producer_epoch in (0, 1), where
        if number:
            answer = world.answers[number]
            if (
                before.status in PREPARED or epoch < 32_767
            ):  # the others are only ever read, not made
                assert answer.producer_epoch <= 32_766, where
            if answer.verdict is V.OK and op.startswith("init"):
                pair = (answer.producer_id, answer.producer_epoch)
                assert pair == (after.producer_id, after.producer_epoch), where
        # whatever happened, a new instance can always go on
        again = world.init()
        world.deliver()
        assert world.answers[again].verdict is V.OK, where
        assert 0 <= world.answers[again].producer_epoch <= 32_766, where


class CoreMachine(RuleBasedStateMachine):
    """Random requests, durability, markers, rounds, time-outs and restarts over two ids."""

    @initialize(epoch=st.sampled_from([0, 32_763, 32_765]))
    def start(self, epoch: int) -> None:
        """Begin near the end of the epochs, or at 0."""
        self.world = CoreWorld()
        self.pairs: dict[str, tuple[int, int]] = {}
        self.given: dict[tuple[int, int], str] = {}
        self.asked: list[tuple[int, str, CoreWorld]] = []
        self.round = 0
        for name, pid in (("t", 5), ("u", 6)):
            record = entry(S.EMPTY, epoch, 2)
            self.world.install(
                msgspec.structs.replace(record, transactional_id=name, producer_id=pid)
            )
            self.pairs[name] = (pid, epoch)

    names = st.sampled_from(["t", "u"])
    tvs = st.sampled_from([1, 2])

    def _note(self, name: str, number: int) -> None:
        self.world.stock(2)
        self.asked.append((number, name, self.world))

    def _learn(self) -> None:
        """Let clients take the pairs they were answered."""
        for number, name, world in list(self.asked):
            answer = world.answers.get(number)
            if world is self.world and answer is not None:
                self.asked.remove((number, name, world))
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
        self._note(name, self.world.init(name, pid=pid, epoch=epoch))

    @rule(name=names, number=st.integers(0, 3), tv=tvs)
    def add(self, name: str, number: int, tv: int) -> None:
        """AddPartitions."""
        pid, epoch = self.pairs[name]
        self._note(name, self.world.add(pid, epoch, tp("a", number), name=name, tv=tv))

    @rule(name=names, commit=st.booleans(), tv=tvs)
    def end(self, name: str, commit: bool, tv: int) -> None:
        """EndTxn."""
        pid, epoch = self.pairs[name]
        self._note(name, self.world.end(pid, epoch, commit, name=name, tv=tv))

    @rule()
    @precondition(lambda self: self.world.unconfirmed)
    def durable(self) -> None:
        """One record becomes durable."""
        position, name = self.world.unconfirmed.pop(0)
        self.world.step(ev.RecordDurable(name, position))
        self._learn()

    @rule()
    @precondition(lambda self: self.world.sent)
    def marker(self) -> None:
        """All markers of one decision arrive."""
        order = self.world.sent.pop(0)
        for partition in order.partitions:
            self.world.step(ev.MarkerConfirmed(order.transactional_id, order.decision, partition))
        self._learn()

    @rule()
    def enter(self) -> None:
        """ENTER of the next round."""
        self.round += 1
        self.world.step(ev.EnterRound(round_of(7, self.round)))

    @rule()
    def release(self) -> None:
        """RELEASE of the current round."""
        self.world.step(ev.ReleaseRound(round_of(7, self.round)))

    @rule(name=names)
    def time_out(self, name: str) -> None:
        """The transaction runs out of time."""
        self.world.now_ms += 100_000
        self.world.stock(1)
        self.world.step(ev.TransactionTimedOut(name))

    @rule(lost=st.integers(0, 4))
    def crash(self, lost: int) -> None:
        """Lose a part of what is not durable, and load again."""
        durable = max([0, *(len(self.world.rows) - lost,)])
        if self.world.unconfirmed:
            durable = max(durable, self.world.unconfirmed[0][0].offset)
        else:
            durable = len(self.world.rows)
        self.world = self.world.reload(rows=durable)
        self.world.stock(50)
        self.world.resume()

    @invariant()
    def live_is_replay(self) -> None:
        """What is applied is what the ledger says, up to what is pending."""
        if not hasattr(self, "world"):
            return
        replayed = self.world.reload()
        assert replayed.core.view.round == self.world.core.view.round
        for name, live in self.world.entries.items():
            again = replayed.entries.get(name)
            expected = live.pending or live.record
            if expected.producer_id >= 0:
                assert again is not None
                assert again.record == expected

    @invariant()
    def commit_markers_of_the_current_round_wait(self) -> None:
        """T3, for every order that was sent."""
        for order in getattr(self, "world", CoreWorld()).sent:
            if order.commit:
                assert self.world.core._gate.is_free(order.decision.stamp)

    def teardown(self) -> None:
        """Let everything finish: nothing is stuck, every request is answered."""
        if not hasattr(self, "world"):
            return
        self.world.step(ev.ReleaseRound(round_of(7, self.round)))
        self.world.deliver()
        self._learn()
        for live in self.world.entries.values():
            assert live.record.status not in (S.PREPARE_COMMIT, S.PREPARE_ABORT)
            assert live.pending is None
            assert live.parked == []
        assert [ask for ask in self.asked if ask[2] is self.world] == []


CoreMachine.TestCase.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)
TestCoreMachine = CoreMachine.TestCase
