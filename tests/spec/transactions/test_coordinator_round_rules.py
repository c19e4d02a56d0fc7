"""The coordinator's part in rounds and takeovers: tidemarks.md T2-T6, T21, T22.

Expected values come from that text. The rules of transactions alone: `test_transaction_rules`.
"""

import pytest
from msgspec.structs import replace

from idempotency.decision import round_of
from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from idempotency.pieces import drained
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
from txn_coordinator import transitions as tr
from txn_coordinator.serving.adoption import sort_out
from txn_coordinator.states import EPOCH_FENCE, EPOCH_USABLE_MAX
from txn_coordinator.verdicts import TxnVerdict as V

S = TxnStatus
A = tp("orders", 0)
B = tp("orders", 1)


# ---- rounds

R1, R2 = round_of(7, 1), round_of(7, 2)


# Holds INV-TC4.
def test_T2_the_stamp_is_the_last_round_before_the_decision() -> None:
    fixture, pid = started()
    fixture.end(pid, 0, commit=False)  # appended, not durable
    fixture.step(ev.EnterRound(R1))
    fixture.persist()
    assert fixture.sent[0].decision.stamp == 0
    fixture.deliver()
    fixture.add(pid, 0, A)
    fixture.persist()
    fixture.end(pid, 0, commit=False)
    fixture.persist()
    assert fixture.sent[0].decision.stamp == R1
    again = fixture.reload()
    assert again.entries["t"].decision == fixture.sent[0].decision


# Holds INV-RO1.
def test_T2_a_lower_or_repeated_round_writes_nothing() -> None:
    fixture = CoreFixture()
    fixture.step(ev.EnterRound(R2))
    rows, offset = len(fixture.rows), fixture.core.view.round_offset
    fixture.step(ev.EnterRound(R1))
    fixture.step(ev.EnterRound(R2))
    assert len(fixture.rows) == rows
    assert (fixture.core.view.round, fixture.core.view.round_offset) == (R2, offset)


# Holds INV-RO2.
@pytest.mark.parametrize("by", ["enter", "release"])
def test_T3_commit_markers_of_the_current_round_wait(by: str) -> None:
    fixture, pid = started()
    fixture.step(ev.EnterRound(R1))
    end = fixture.end(pid, 0, commit=True)
    fixture.persist()
    assert fixture.answers[end].verdict is V.OK  # the client does not wait
    assert fixture.sent == []
    assert fixture.core.view.held_count == 1
    fixture.step(ev.EnterRound(R2) if by == "enter" else ev.ReleaseRound(R1))
    assert len(fixture.sent) == 1
    assert fixture.core.view.held_count == 0


# Holds INV-RO3.
def test_T3_after_a_reload_the_current_stamp_is_held_until_the_release_is_repeated() -> None:
    fixture, pid = started()
    fixture.step(ev.EnterRound(R1))
    fixture.end(pid, 0, commit=True)
    fixture.persist()
    decision = fixture.entries["t"].decision
    again = fixture.reload()
    again.resume()
    assert again.sent == []
    again.step(ev.ReleaseRound(R1))
    assert again.sent[0].decision == decision


def test_T3_after_a_reload_older_stamps_are_free() -> None:
    fixture, pid = started()
    fixture.step(ev.EnterRound(R1))
    fixture.end(pid, 0, commit=True)
    fixture.persist()
    fixture.step(ev.EnterRound(R2))
    again = fixture.reload()
    again.resume()
    assert [order.decision.stamp for order in again.sent] == [R1]


# Holds INV-RO2.
def test_T5_abort_markers_never_wait() -> None:
    fixture, pid = started()
    fixture.step(ev.EnterRound(R1))
    fixture.end(pid, 0, commit=False)
    fixture.persist()
    assert len(fixture.sent) == 1


# Holds INV-L3.
def test_T6_markers_sent_again_carry_the_old_decision_also_from_a_new_leader() -> None:
    fixture, pid = started()
    fixture.end(pid, 0, commit=True)
    fixture.persist()
    again = fixture.reload(leader_epoch=LEADER_EPOCH + 5)
    again.resume()
    assert again.sent[0].decision == fixture.sent[0].decision


# ---- takeover


def cut(status: TxnStatus, *, tv: int, epoch: int = 3, **changes: object) -> CoreFixture:
    """Return a new region's fixture that has loaded one entry of the old one."""
    old = fixture_with(record(status, epoch, client_tv=tv, **changes))
    return old.reload(region_epoch=16, leader_epoch=16 << 16)


# Holds INV-TA1.
def test_T21_an_ongoing_transaction_is_aborted_wherever_it_has_data() -> None:
    fixture = cut(S.ONGOING, tv=1)
    fixture.step(ev.AdoptOngoing("t", (A, B)))
    fixture.persist()
    assert fixture.sent[0].partitions == (A, B)
    assert not fixture.sent[0].commit


# Holds INV-TA1.
def test_T21_what_is_open_without_a_ledger_entry_is_an_orphan() -> None:
    def found(epoch: int) -> list[tuple[object, OpenTxn]]:
        return [(A, OpenTxn(ProducerId(5), ProducerEpoch(epoch), 0, 0))]

    def orphans(entry: TransactionRecord, epoch: int) -> int:
        return len(drained(sort_out(found(epoch), [entry])).orphans)  # type: ignore[arg-type]

    assert orphans(record(S.ONGOING, 3), 3) == 0
    assert orphans(record(S.ONGOING, 3), 5) == 1  # two TV2 transactions later
    assert orphans(record(S.COMPLETE_COMMIT, 3), 3) == 1  # TV1: the next one began above the cut
    assert orphans(record(S.EMPTY, 3), 3) == 1
    assert orphans(record(S.PREPARE_COMMIT, 4), 3) == 0  # TV2: its own data
    assert orphans(record(S.PREPARE_COMMIT, 4), 4) == 1  # TV2: the next one's
    assert orphans(record(S.PREPARE_COMMIT, 3, client_tv=1), 3) == 1  # H9: may be the next one's
    assert orphans(record(S.PREPARE_COMMIT, 4, partitions=(B,)), 3) == 1


def test_T21_an_orphan_abort_fences_what_it_ends() -> None:
    fixture = CoreFixture()
    fixture.step(ev.AbortOrphan(ProducerId(77), ProducerEpoch(3), (A,)))
    fixture.persist()
    (sent,) = fixture.sent
    assert (sent.producer_id, sent.producer_epoch, sent.commit) == (77, 4, False)
    again = fixture.reload()
    again.resume()
    assert again.sent == [sent]
    again.deliver()
    assert again.record(tr.orphan_id(ProducerId(77))).status is S.COMPLETE_ABORT


# Holds INV-TC7.
@pytest.mark.parametrize("status", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
def test_T22_every_request_but_init_is_refused(status: TxnStatus) -> None:
    fixture = cut(status, tv=1)
    assert fixture.answers[fixture.add(5, 3, A)].verdict is V.FENCED_BY_TAKEOVER
    for commit in (True, False):
        assert fixture.answers[fixture.end(5, 3, commit)].verdict is V.FENCED_BY_TAKEOVER_FATAL
    assert fixture.core.view.verify("t", ProducerId(5), ProducerEpoch(3), A) is V.FENCED_BY_TAKEOVER


# Holds INV-TC7.
@pytest.mark.parametrize(
    ("pair", "verdict"),
    [
        ((-1, -1), V.OK),
        ((5, 3), V.OK),
        ((5, 9), V.OK),  # given out above the cut: cannot be known
        ((5, 1), V.FENCED),
        ((6, 3), V.FENCED),
    ],
)
def test_T22_init_gives_a_new_producer_id(pair: tuple[int, int], verdict: V) -> None:
    fixture = cut(S.EMPTY, tv=1)
    number = fixture.init(pid=pair[0], epoch=pair[1])
    fixture.persist()
    answer = fixture.answers[number]
    assert answer.verdict is verdict
    if verdict is V.OK:
        assert answer.producer_id >= FIRST_ID
        assert answer.producer_epoch == 0
        joined = fixture.add(answer.producer_id, 0, A)
        fixture.persist()
        assert fixture.answers[joined].verdict is V.OK
    if pair[0] != -1 and verdict is V.OK:
        fixture.end(answer.producer_id, 0, commit=False)
        fixture.deliver()
        again = fixture.init(pid=pair[0], epoch=pair[1])  # the answer was lost
        assert fixture.answers[again].producer_id == answer.producer_id


# Holds INV-TC7.
@pytest.mark.parametrize(
    ("status", "commit", "verdict"),
    [
        (S.COMPLETE_COMMIT, True, V.OK),
        (S.COMPLETE_COMMIT, False, V.INVALID_STATE),
        (S.COMPLETE_ABORT, False, V.OK),
        (S.COMPLETE_ABORT, True, V.FENCED_BY_TAKEOVER),  # aborted by the takeover: repeat it
        (S.EMPTY, True, V.FENCED_BY_TAKEOVER),
    ],
)
def test_T22_under_TV2_a_retry_is_answered_from_the_ledger(
    status: TxnStatus, commit: bool, verdict: V
) -> None:
    fixture = cut(status, tv=2, last_producer_epoch=2)
    number = fixture.end(5, 2, commit, tv=2)
    fixture.deliver()
    assert fixture.answers[number].verdict is verdict
    if commit:
        for epoch in (3, 4):  # a transaction that the cut does not have
            number = fixture.end(5, epoch, commit, tv=2)
            assert fixture.answers[number].verdict is V.FENCED_BY_TAKEOVER


@pytest.mark.parametrize("status", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("epoch", [3, 9])  # 9: given out above the cut, cannot be known
def test_T22_under_TV2_an_abort_is_answered_with_a_new_producer_id(
    status: TxnStatus, epoch: int
) -> None:
    """Java 4 and franz-go never send InitProducerId again: they go on with the pair that the abort answers."""
    fixture = cut(status, tv=2, last_producer_epoch=2)
    number = fixture.end(5, epoch, commit=False, tv=2)
    fixture.deliver()
    answer = fixture.answers[number]
    assert answer.verdict is V.OK
    assert answer.producer_id >= FIRST_ID
    assert answer.producer_epoch == 0
    again = fixture.end(5, epoch, commit=False, tv=2)  # its answer was lost
    assert fixture.answers[again] == replace(answer, request_id=again)
    joined = fixture.add(answer.producer_id, 0, A, tv=2)
    fixture.persist()
    assert fixture.answers[joined].verdict is V.OK
    late = fixture.end(5, epoch, commit=False, tv=2)  # and once more, long after
    assert fixture.answers[late].verdict is V.FENCED
    assert fixture.record().status is S.ONGOING


@pytest.mark.parametrize(
    ("pair", "verdict"),
    [((5, 1), V.FENCED), ((6, 3), V.UNKNOWN_PRODUCER_MAPPING), ((5, 32_767), V.FENCED)],
)
def test_T22_under_TV2_an_abort_with_a_fenced_pair_gets_no_new_one(
    pair: tuple[int, int], verdict: V
) -> None:
    """A zombie must hear that it is one: with an abortable error it would turn in a circle."""
    fixture = cut(S.COMPLETE_COMMIT, tv=2, last_producer_epoch=2)
    assert fixture.answers[fixture.end(*pair, commit=False, tv=2)].verdict is verdict


# Holds INV-TT3.
def test_T22_the_region_epoch_is_that_of_the_pair_not_of_the_record() -> None:
    fixture = cut(S.ONGOING, tv=1)
    fixture.step(ev.AdoptOngoing("t"))
    fixture.deliver()
    assert fixture.record().region_epoch == 8
    number = fixture.init(pid=5, epoch=3)  # the pair the client holds, though the abort bumped it
    fixture.persist()
    assert fixture.answers[number].verdict is V.OK
    assert fixture.record().region_epoch == 16


def aborted_at_the_last_epoch() -> CoreFixture:
    """Return a region that a planned switch let act, and that aborted what a TV2 producer had open under the last epoch.

    Something of it hangs in a partition that its entry does not name (INV-TA3), and adoption has no producer id to give.
    """
    fixture = cut(S.ONGOING, tv=2, epoch=EPOCH_USABLE_MAX)
    fixture.step(ev.PairsInherited(RegionEpoch(8)))
    fixture.step(ev.AdoptOngoing("t", (B,)))
    fixture.deliver()
    entry = fixture.record()
    assert (entry.status, entry.producer_epoch) == (S.COMPLETE_ABORT, EPOCH_FENCE)
    return fixture


@pytest.mark.parametrize("ask", ["EndTxn", "InitProducerId"])
def test_INV_TS3_T22_after_a_switch_the_last_epoch_is_followed_by_a_new_producer_id(
    ask: str,
) -> None:
    """Its pair is in force, so it may ask for the next one: epoch 32767 ends no transaction, and no marker is newer."""
    fixture = aborted_at_the_last_epoch()
    given: set[tuple[V, int, int]] = set()
    for _ in range(2):  # the first answer is lost
        if ask == "EndTxn":
            number = fixture.end(5, EPOCH_USABLE_MAX, commit=False, tv=2)
        else:
            number = fixture.init(pid=5, epoch=EPOCH_USABLE_MAX)
        fixture.deliver()
        answer = fixture.answers[number]
        given.add((answer.verdict, answer.producer_id, answer.producer_epoch))
    ((verdict, producer_id, epoch),) = given
    assert (verdict, epoch) == (V.OK, 0)
    assert producer_id >= FIRST_ID
    joined = fixture.add(producer_id, 0, A, tv=2)
    fixture.persist()
    ended = fixture.end(producer_id, 0, commit=True, tv=2)
    fixture.deliver()
    assert [fixture.answers[each].verdict for each in (joined, ended)] == [V.OK, V.OK]


def test_INV_TS3_no_partition_joins_under_the_epoch_that_only_fences() -> None:
    fixture = aborted_at_the_last_epoch()
    assert fixture.answers[fixture.add(5, EPOCH_FENCE, A, tv=2)].verdict is V.FENCED
    assert fixture.record().status is S.COMPLETE_ABORT


def test_INV_TS3_a_commit_that_a_switch_made_an_abort_of_stays_refused_at_the_last_epoch() -> None:
    fixture = aborted_at_the_last_epoch()
    number = fixture.end(5, EPOCH_USABLE_MAX, commit=True, tv=2)
    assert fixture.answers[number].verdict is V.INVALID_STATE
