"""The coordinator's rules, one by one: exactly-once.md C13-C33, P- and B-rows.

Expected values come from those texts, and for C15-C18 from Kafka's TransactionCoordinator.scala and
TransactionMetadata.scala as quoted there.
"""

import msgspec
import pytest

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId
from idempotency.identity import Round
from idempotency.java_hash import ledger_shard
from idempotency.ledger_records import TxnStatus
from tests.fixtures.coordinator import (
    FIRST_ID,
    LEADER_EPOCH,
    CoreFixture,
    fixture_with,
    record,
    started,
    tp,
)
from txn_coordinator import events as ev
from txn_coordinator.states import VALID_PREVIOUS, check_transition
from txn_coordinator.verdicts import TxnVerdict as V

S = TxnStatus
A = tp("orders", 0)
B = tp("orders", 1)


def test_C13_the_shard_is_javas_hash_of_the_name() -> None:
    # "orders".hashCode() = -1008770331 in Java; abs % 50 = 31
    assert ledger_shard("orders", 50) == 1008770331 % 50


# Holds INV-TS1.
def test_C14_only_listed_transitions_are_legal() -> None:
    legal = {(old, new) for new, olds in VALID_PREVIOUS.items() for old in olds}
    assert (S.ONGOING, S.COMPLETE_COMMIT) not in legal
    assert (S.PREPARE_COMMIT, S.COMPLETE_ABORT) not in legal
    assert (S.EMPTY, S.PREPARE_COMMIT) not in legal
    assert (S.ONGOING, S.DEAD) not in legal
    for old in S:
        for new in S:
            if (old, new) not in legal:
                with pytest.raises(AssertionError):
                    check_transition(old, new)


# Holds INV-TC1.
def test_C14_one_transition_at_a_time_the_second_request_waits() -> None:
    fixture, pid = started()
    end = fixture.end(pid, 0, commit=True)
    late = fixture.add(pid, 0, B)
    assert late in fixture.held
    assert end not in fixture.answers
    fixture.persist()
    assert fixture.answers[end].verdict is V.OK
    assert late not in fixture.answers  # markers under way
    fixture.step(ev.HoldExpired(late, "t"))
    assert fixture.answers[late].verdict is V.CONCURRENT
    fixture.deliver()
    assert fixture.record().status is S.COMPLETE_COMMIT


def test_C15_init_over_an_ongoing_transaction_aborts_it_and_bumps_again() -> None:
    fixture, pid = started()
    again = fixture.init()
    fixture.deliver()
    assert fixture.answers[again].producer_id == pid
    assert (
        fixture.answers[again].producer_epoch == 2
    )  # 1 fenced the old producer, 2 is the new one's
    assert fixture.record().status is S.EMPTY


# Holds INV-TT2.
@pytest.mark.parametrize(
    ("sent", "verdict", "epoch"),
    [
        ((5, 3), V.OK, 4),  # the current pair: bump
        ((5, 2), V.OK, 3),  # the pair before: its answer was lost, give the current one
        ((5, 1), V.FENCED, -1),
        ((5, 4), V.FENCED, -1),
        ((6, 3), V.FENCED, -1),
        ((-1, -1), V.OK, 4),
    ],
)
@pytest.mark.parametrize("status", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_C15_init_with_a_pair(
    status: TxnStatus, sent: tuple[int, int], verdict: V, epoch: int
) -> None:
    fixture = fixture_with(record(status, 3, last_producer_epoch=2))
    number = fixture.init(pid=sent[0], epoch=sent[1])
    fixture.persist()
    assert (fixture.answers[number].verdict, fixture.answers[number].producer_epoch) == (
        verdict,
        epoch,
    )


def test_C15_a_new_instance_takes_away_the_old_ones_retry() -> None:
    fixture = fixture_with(record(S.EMPTY, 3, last_producer_epoch=2))
    fixture.init()
    fixture.persist()
    old = fixture.init(pid=5, epoch=3)
    assert fixture.answers[old].verdict is V.FENCED


def test_C15_init_while_markers_are_written_waits() -> None:
    fixture, pid = started()
    fixture.end(pid, 0, commit=True)
    again = fixture.init()
    fixture.persist()
    assert again not in fixture.answers
    fixture.deliver()
    assert fixture.answers[again].producer_epoch == 1


def test_C15_a_late_copy_of_init_does_not_abort_what_its_sender_does_now() -> None:
    fixture = fixture_with(record(S.ONGOING, 3, last_producer_epoch=2))
    late = fixture.init(pid=5, epoch=2)
    assert fixture.answers[late].verdict is V.FENCED
    assert fixture.record().status is S.ONGOING


# Holds INV-TS3.
def test_C16_an_exhausted_epoch_gives_a_new_producer_id() -> None:
    fixture = fixture_with(record(S.EMPTY, 32_765))
    last = fixture.init()
    fixture.persist()
    assert (fixture.answers[last].producer_id, fixture.answers[last].producer_epoch) == (5, 32_766)
    rotated = fixture.init(pid=5, epoch=32_766)
    fixture.persist()
    fresh = fixture.answers[rotated]
    assert (fresh.producer_id, fresh.producer_epoch) == (FIRST_ID, 0)
    retried = fixture.init(pid=5, epoch=32_766)  # the answer was lost
    assert fixture.answers[retried].producer_id == fresh.producer_id
    assert fixture.answers[retried].producer_epoch == 0


C17 = [
    # state, epoch sent against 3, commit, verdict
    (S.EMPTY, 3, True, V.INVALID_STATE),
    (S.EMPTY, 3, False, V.INVALID_STATE),
    (S.ONGOING, 3, True, V.OK),
    (S.ONGOING, 3, False, V.OK),
    (S.PREPARE_COMMIT, 3, True, V.CONCURRENT),
    (S.PREPARE_COMMIT, 3, False, V.INVALID_STATE),
    (S.PREPARE_ABORT, 3, True, V.INVALID_STATE),
    (S.PREPARE_ABORT, 3, False, V.CONCURRENT),
    (S.COMPLETE_COMMIT, 3, True, V.OK),
    (S.COMPLETE_COMMIT, 3, False, V.INVALID_STATE),
    (S.COMPLETE_ABORT, 3, True, V.INVALID_STATE),
    (S.COMPLETE_ABORT, 3, False, V.OK),
]


# Holds INV-TS2.
@pytest.mark.parametrize(("status", "epoch", "commit", "verdict"), C17)
def test_C17_end_txn_of_a_TV1_client(
    status: TxnStatus, epoch: int, commit: bool, verdict: V
) -> None:
    fixture = fixture_with(record(status, 3, client_tv=1))
    number = fixture.end(5, epoch, commit)
    fixture.persist()
    answer = fixture.answers[number]
    assert answer.verdict is verdict
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("status", [s for s in S if s not in (S.DEAD, S.PREPARE_EPOCH_FENCE)])
@pytest.mark.parametrize("epoch", [2, 4])
@pytest.mark.parametrize("commit", [True, False])
def test_C17_P11_another_epoch_is_fenced_under_TV1(
    status: TxnStatus, epoch: int, commit: bool
) -> None:
    fixture = fixture_with(record(status, 3, client_tv=1))
    assert fixture.answers[fixture.end(5, epoch, commit)].verdict is V.FENCED
    assert fixture.answers[fixture.end(6, 3, commit)].verdict is V.UNKNOWN_PRODUCER_MAPPING


C18 = [
    # state, "cur" or "retry", commit, verdict, epoch answered (stored is 3)
    (S.EMPTY, "cur", False, V.OK, 4),
    (S.EMPTY, "cur", True, V.INVALID_STATE, -1),
    (S.EMPTY, "retry", False, V.FENCED, -1),
    (S.EMPTY, "retry", True, V.FENCED, -1),
    (S.ONGOING, "cur", True, V.OK, 4),
    (S.ONGOING, "cur", False, V.OK, 4),
    (S.ONGOING, "retry", True, V.FENCED, -1),
    (S.ONGOING, "retry", False, V.FENCED, -1),
    (S.PREPARE_COMMIT, "retry", True, V.CONCURRENT, -1),
    (S.PREPARE_COMMIT, "retry", False, V.INVALID_STATE, -1),
    (S.PREPARE_ABORT, "retry", False, V.CONCURRENT, -1),
    (S.PREPARE_ABORT, "retry", True, V.INVALID_STATE, -1),
    (S.COMPLETE_ABORT, "retry", False, V.OK, 3),
    (S.COMPLETE_ABORT, "cur", False, V.OK, 4),
    (S.COMPLETE_ABORT, "retry", True, V.INVALID_STATE, -1),
    (S.COMPLETE_ABORT, "cur", True, V.INVALID_STATE, -1),
    (S.COMPLETE_COMMIT, "retry", True, V.OK, 3),
    (S.COMPLETE_COMMIT, "cur", True, V.INVALID_STATE, -1),
    (S.COMPLETE_COMMIT, "cur", False, V.OK, 4),
    (S.COMPLETE_COMMIT, "retry", False, V.INVALID_STATE, -1),
]


# Holds INV-TS2.
@pytest.mark.parametrize(("status", "kind", "commit", "verdict", "epoch"), C18)
def test_C18_end_txn_of_a_TV2_client(
    status: TxnStatus, kind: str, commit: bool, verdict: V, epoch: int
) -> None:
    fixture = fixture_with(record(status, 3, last_producer_epoch=2))
    number = fixture.end(5, 3 if kind == "cur" else 2, commit, tv=2)
    fixture.persist()
    answer = fixture.answers[number]
    assert (answer.verdict, answer.producer_epoch) == (verdict, epoch)


# Holds INV-TC5.
@pytest.mark.parametrize("commit", [True, False])
def test_C18_P5_the_end_of_the_next_transaction_waits_for_the_markers(commit: bool) -> None:
    # KIP-890: EndTxn is answered with the next epoch once the decision is durable. The Java client may
    # abort an empty transaction with it before the markers are written; Kafka has a transition pending
    # then and says CONCURRENT_TRANSACTIONS, never PRODUCER_FENCED. Here it is held.
    fixture, pid = started()
    first = fixture.end(pid, 0, commit=commit, tv=2)
    fixture.persist()
    assert fixture.answers[first].producer_epoch == 1
    following = fixture.end(pid, 1, commit=False, tv=2)
    assert following not in fixture.answers
    fixture.deliver()
    fixture.persist()
    assert fixture.answers[following].verdict is V.OK
    assert fixture.answers[following].producer_epoch == 2


# Holds INV-TC3.
def test_C19_end_txn_is_answered_when_the_decision_is_durable_markers_after() -> None:
    fixture, pid = started()
    end = fixture.end(pid, 0, commit=True)
    assert end not in fixture.answers
    assert fixture.sent == []
    fixture.persist()
    assert fixture.answers[end].verdict is V.OK
    (sent,) = fixture.sent
    assert sent.partitions == (A,)
    assert sent.decision == DecisionId(0, LEADER_EPOCH, fixture.rows[-1][0].offset, Round(0))


# Holds INV-TC9.
@pytest.mark.parametrize("cut", range(1, 6))
def test_C22_replay_of_any_prefix_gives_the_state_at_that_point(cut: int) -> None:
    fixture, pid = started()  # EMPTY, ONGOING
    fixture.end(pid, 0, commit=True)
    fixture.deliver()  # PREPARE_COMMIT, COMPLETE_COMMIT
    fixture.add(pid, 0, B)
    fixture.persist()  # ONGOING
    order = [S.EMPTY, S.ONGOING, S.PREPARE_COMMIT, S.COMPLETE_COMMIT, S.ONGOING]
    again = fixture.reload(rows=cut)
    assert again.record().status is order[cut - 1]
    again.resume()
    again.deliver()
    if order[cut - 1] is S.PREPARE_COMMIT:
        assert again.record().status is S.COMPLETE_COMMIT
        assert again.record().decision == DecisionId(0, LEADER_EPOCH, 2, Round(0))


def test_C22_a_tombstone_removes() -> None:
    fixture, _ = started()
    fixture = fixture_with(record(S.EMPTY, 0))
    fixture.wall_ms = 8 * 24 * 3_600_000
    fixture.step(ev.TransactionalIdExpired("t"))
    fixture.persist()
    assert fixture.reload().entries == {}


def test_C24_a_timed_out_transaction_is_aborted_with_one_bump() -> None:
    fixture, pid = started()
    fixture.now_ms = 60_000
    assert fixture.core.view.timed_out(fixture.now_ms) == []
    fixture.now_ms = 60_001
    assert fixture.core.view.timed_out(fixture.now_ms) == ["t"]
    fixture.step(ev.TransactionTimedOut("t"))
    fixture.deliver()
    assert fixture.record().status is S.COMPLETE_ABORT
    assert fixture.record().producer_epoch == 1
    late = fixture.end(pid, 0, commit=True)
    assert fixture.answers[late].verdict is V.FENCED
    back = fixture.init(pid=pid, epoch=0)
    assert fixture.answers[back].verdict is V.FENCED


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_C24_a_timeout_out_of_range_is_refused(timeout_ms: int) -> None:
    fixture = CoreFixture()
    number = fixture.init(timeout_ms=timeout_ms)
    assert fixture.answers[number].verdict is V.INVALID_TIMEOUT
    assert fixture.rows == []


# Holds INV-TX1.
def test_G7_timers_start_again_at_a_reload() -> None:
    fixture, _ = started()
    fixture.now_ms = 59_000
    again = fixture.reload()
    again.now_ms = 119_000
    assert again.core.view.timed_out(again.now_ms) == []
    again.now_ms = 119_001
    assert again.core.view.timed_out(again.now_ms) == ["t"]


# Holds INV-TX2.
def test_C25_an_idle_id_is_forgotten_and_an_ongoing_one_never() -> None:
    week_ms = 7 * 24 * 3_600_000
    for status in (S.EMPTY, S.COMPLETE_ABORT, S.COMPLETE_COMMIT):
        assert fixture_with(record(status, 0)).core.view.expired(week_ms + 1) == ["t"]
        assert fixture_with(record(status, 0)).core.view.expired(week_ms) == []
    for status in (S.ONGOING, S.PREPARE_ABORT, S.PREPARE_COMMIT):
        assert fixture_with(record(status, 0)).core.view.expired(week_ms + 1) == []
    fixture = fixture_with(record(S.EMPTY, 0))
    fixture.wall_ms = week_ms + 1
    fixture.step(ev.TransactionalIdExpired("t"))
    assert fixture.rows[-1][2] is None  # the tombstone first
    assert "t" in fixture.entries
    fixture.persist()
    number = fixture.add(5, 0, A)
    assert fixture.answers[number].verdict is V.UNKNOWN_PRODUCER_MAPPING


def test_C26_a_subset_of_an_ongoing_transaction_is_not_written_again() -> None:
    fixture, pid = started()
    rows = len(fixture.rows)
    number = fixture.add(pid, 0, A)
    assert fixture.answers[number].verdict is V.OK
    assert len(fixture.rows) == rows


# Holds INV-TC6.
def test_C26_P6_a_transition_under_way_is_looked_at_before_producer_ids() -> None:
    # TV2 over the last epoch: the client already uses the new pair while markers are written.
    fixture = fixture_with(record(S.ONGOING, 32_766))
    end = fixture.end(5, 32_766, commit=True, tv=2)
    early = fixture.add(FIRST_ID, 0, B, tv=2)
    fixture.persist()
    pair = (fixture.answers[end].producer_id, fixture.answers[end].producer_epoch)
    assert pair == (FIRST_ID, 0)
    assert early not in fixture.answers
    fixture.deliver()
    assert fixture.answers[early].verdict is V.OK


@pytest.mark.parametrize(
    ("status", "pair", "partition", "verdict"),
    [
        (S.ONGOING, (5, 3), A, V.OK),
        (S.ONGOING, (5, 3), B, V.NOT_IN_TRANSACTION),
        (S.ONGOING, (6, 3), A, V.UNKNOWN_PRODUCER_MAPPING),
        (S.ONGOING, (5, 2), A, V.FENCED),
        (S.ONGOING, (5, 4), A, V.FENCED),
        (S.PREPARE_COMMIT, (5, 3), A, V.CONCURRENT),
        (S.PREPARE_ABORT, (5, 3), A, V.CONCURRENT),
        (S.COMPLETE_COMMIT, (5, 3), A, V.NOT_IN_TRANSACTION),
        (S.EMPTY, (5, 3), A, V.NOT_IN_TRANSACTION),
    ],
)
def test_C27_verification(
    status: TxnStatus, pair: tuple[int, int], partition: object, verdict: V
) -> None:
    fixture = fixture_with(record(status, 3))
    assert fixture.core.view.verify("t", *pair, partition) is verdict  # type: ignore[arg-type]


# Holds INV-TK1.
def test_C33_complete_needs_every_partition() -> None:
    fixture, pid = started()
    fixture.add(pid, 0, B)
    fixture.persist()
    fixture.end(pid, 0, commit=True)
    fixture.persist()
    (sent,) = fixture.sent
    fixture.step(ev.MarkerConfirmed("t", sent.decision, A))
    fixture.step(ev.MarkerConfirmed("t", sent.decision, A))  # repeated
    other = msgspec.structs.replace(sent.decision, offset=999)
    fixture.step(ev.MarkerConfirmed("t", other, B))  # of another decision
    assert fixture.record().status is S.PREPARE_COMMIT
    fixture.step(ev.MarkerConfirmed("t", sent.decision, B))
    assert fixture.record().status is S.COMPLETE_COMMIT


# Holds INV-TC3.
def test_B2_ongoing_is_answered_only_when_durable_and_found_after_a_restart() -> None:
    fixture = CoreFixture()
    fixture.init()
    fixture.persist()
    number = fixture.add(FIRST_ID, 0, A)
    assert number not in fixture.answers
    assert fixture.reload(rows=1).record().status is S.EMPTY
    fixture.persist()
    again = fixture.reload()
    assert again.record().partitions == (A,)
    same = again.add(FIRST_ID, 0, A)
    assert again.answers[same].verdict is V.OK


def test_B10_an_empty_transaction_commits() -> None:
    fixture, pid = started()  # partition added, nothing produced
    end = fixture.end(pid, 0, commit=True)
    fixture.deliver()
    assert fixture.answers[end].verdict is V.OK
    assert fixture.record().status is S.COMPLETE_COMMIT


# Holds INV-TT4.
def test_P7_a_fence_bumps_once_and_rotates_when_the_epochs_end() -> None:
    fixture = fixture_with(record(S.ONGOING, 32_766))
    fixture.now_ms = 10**9
    fixture.step(ev.TransactionTimedOut("t"))
    fixture.persist()
    assert fixture.sent[0].producer_epoch == 32_767
    fixture.deliver()
    done = fixture.record()
    assert (done.producer_id, done.producer_epoch, done.status) == (FIRST_ID, 0, S.COMPLETE_ABORT)
    number = fixture.init()
    fixture.persist()
    assert fixture.answers[number].producer_epoch == 1


def test_P12_a_parked_fence_is_not_repeated() -> None:
    fixture, _ = started()
    first, second = fixture.init(), fixture.init()
    fixture.deliver()
    assert fixture.answers[first].producer_epoch == 2
    assert fixture.answers[second].producer_epoch == 3
    values = [lr.decode_transaction_value("t", value) for _, _, value in fixture.rows if value]
    assert [value.status for value in values].count(S.PREPARE_ABORT) == 1


def test_P1_a_delayed_end_txn_under_TV2_cannot_end_a_later_transaction() -> None:
    fixture, pid = started(tv=2)
    fixture.end(pid, 0, commit=False, tv=2)
    fixture.deliver()
    fixture.add(pid, 1, A, tv=2)
    fixture.persist()
    late = fixture.end(pid, 0, commit=True, tv=2)
    assert fixture.answers[late].verdict is V.FENCED
    assert fixture.record().status is S.ONGOING


@pytest.mark.parametrize(
    ("commit", "status"), [(False, S.COMPLETE_ABORT), (True, S.COMPLETE_COMMIT)]
)
def test_INV_TC8_an_end_comes_after_the_partitions_that_its_producer_asked_for_before(
    commit: bool, status: S
) -> None:
    fixture, pid = started()
    fixture.end(pid, 0, commit=not commit)
    fixture.persist()
    joins, ends = fixture.add(pid, 0, A), fixture.end(pid, 0, commit=commit)
    assert not {joins, ends} & fixture.answers.keys()
    fixture.deliver()
    assert (fixture.answers[joins].verdict, fixture.answers[ends].verdict) == (V.OK, V.OK)
    assert fixture.record().status is status


@pytest.mark.parametrize("commit", [False, True])
def test_INV_TC8_only_an_end_that_would_be_refused_waits_and_only_behind_its_own_pair(
    commit: bool,
) -> None:
    """One that is sent again, or whose pair asked for nothing, ends no transaction that comes later."""
    fixture, pid = started()
    fixture.end(pid, 0, commit=commit)
    fixture.persist()
    joins, again = fixture.add(pid, 0, A), fixture.end(pid, 0, commit=commit)
    assert fixture.answers[again].verdict is V.CONCURRENT
    fixture.deliver()
    assert fixture.answers[joins].verdict is V.OK
    assert fixture.record().status is S.ONGOING
    fixture, pid = started()
    fixture.end(pid, 0, commit=commit)
    fixture.persist()
    fixture.add(pid, 1, A)
    other = fixture.end(pid, 0, commit=not commit)
    assert fixture.answers[other].verdict is V.INVALID_STATE
