"""C1-C12 of the exactly-once rules, as far as one partition or one id block decides them."""

import inspect
import itertools

from idempotency.identity import ProducerId
from idempotency.partition_state import Judgement, PartitionState, Verdict
from idempotency.producer_ids import TRANSACTIONAL_BLOCKS_FROM, block_for
from idempotency.record_batch import ControlType
from tests.fixtures.kernel_batches import PRODUCER, data, end, marker, state_of

DAY_MS = 86_400_000


def five_batches() -> PartitionState:
    return state_of(*(data(n * 10, sequence=n * 10, count=10) for n in range(5)))


# Holds INV-W1.
def test_C1_last_five_batches_of_a_producer_are_kept() -> None:
    state = state_of(*(data(n, sequence=n) for n in range(6)))
    verdicts = [state.judge(data(sequence=n)).verdict for n in range(6)]
    assert verdicts == [Verdict.OUT_OF_ORDER_SEQUENCE] + [Verdict.DUPLICATE] * 5


def test_C1_windows_of_two_producers_are_separate() -> None:
    state = state_of(*(data(n, sequence=n) for n in range(5)))
    for n in range(5):
        state.apply(data(5 + n, sequence=n, producer_id=PRODUCER + 1))
    assert state.judge(data(sequence=0)).verdict is Verdict.DUPLICATE


# Holds INV-S3.
def test_C2_exact_duplicate_returns_original_offset() -> None:
    state = state_of(
        data(100, sequence=0, count=3, timestamp_ms=5_000),
        data(103, sequence=3, count=2, timestamp_ms=6_000),
    )
    retry = data(sequence=0, count=3, timestamp_ms=5_000)
    assert state.judge(retry) == Judgement(Verdict.DUPLICATE, 100, 5_000)


# Holds INV-W2.
def test_C2_same_first_but_other_last_sequence_is_no_duplicate() -> None:
    state = state_of(data(100, sequence=0, count=3))
    assert state.judge(data(sequence=0, count=2)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_C2_same_sequences_of_a_newer_epoch_are_no_duplicate() -> None:
    state = state_of(data(100, sequence=0, producer_epoch=0))
    assert state.judge(data(sequence=0, producer_epoch=1)).verdict is Verdict.FRESH


def test_C3_older_than_five_duplicate_is_out_of_order() -> None:
    state = five_batches()
    state.apply(data(50, sequence=50, count=10))
    assert state.judge(data(sequence=0, count=10)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


# Holds INV-W3.
def test_C3_only_the_next_sequence_is_accepted() -> None:
    state = five_batches()
    assert state.judge(data(sequence=50)).verdict is Verdict.FRESH
    assert state.judge(data(sequence=51)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(data(sequence=49)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_C3_sequence_wraps_to_zero() -> None:
    state = state_of(data(0, sequence=2**31 - 2, count=2))
    assert state.judge(data(sequence=0)).verdict is Verdict.FRESH
    assert state.judge(data(sequence=1)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_C3_batch_that_spans_the_wrap_is_followed_and_recognised() -> None:
    state = state_of(data(7, sequence=2**31 - 1, count=3))
    assert state.judge(data(sequence=2)).verdict is Verdict.FRESH
    retry = state.judge(data(sequence=2**31 - 1, count=3))
    assert (retry.verdict, retry.base_offset) == (Verdict.DUPLICATE, 7)


def test_C4_new_epoch_starts_at_zero() -> None:
    state = state_of(data(0, sequence=0, count=5))
    assert state.judge(data(sequence=5, producer_epoch=1)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(data(sequence=0, producer_epoch=1)).verdict is Verdict.FRESH


def test_C4_unknown_producer_may_start_anywhere_before_transactions_v2() -> None:
    state = PartitionState()
    assert state.judge(data(sequence=77)).verdict is Verdict.FRESH
    assert state.judge(data(sequence=77, transactional=True)).verdict is Verdict.FRESH


def test_C4_unknown_producer_of_transactions_v2_starts_at_zero() -> None:
    state = PartitionState()
    first = data(sequence=0, transactional=True)
    later = data(sequence=77, transactional=True)
    assert state.judge(later, tv2=True).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(first, tv2=True).verdict is Verdict.FRESH


# Holds INV-P2.
def test_C4_epoch_raised_by_a_marker_starts_at_zero() -> None:
    state = state_of(
        data(0, sequence=0, transactional=True),
        end(1, marker(ControlType.ABORT, producer_epoch=1)),
    )
    late = data(sequence=1, producer_epoch=1, transactional=True)
    next_one = data(sequence=0, producer_epoch=1, transactional=True)
    assert state.judge(late).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(next_one).verdict is Verdict.FRESH


def test_C5_batch_that_overtook_during_verification_is_out_of_order() -> None:
    state = PartitionState()
    first = data(sequence=0, transactional=True)
    second = data(sequence=1, transactional=True)
    for header in (first, second):
        state.verifications.begin(header.producer_id, header.producer_epoch, header.base_sequence)
    assert state.judge(second).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(first).verdict is Verdict.FRESH
    state.apply(first)
    assert state.judge(second._replace(base_offset=1)).verdict is Verdict.FRESH


def test_C5_lower_sequences_are_told_over_the_wrap() -> None:
    state = PartitionState()
    first = data(sequence=2**31 - 1, transactional=True)
    second = data(sequence=0, transactional=True)
    for header in (first, second):
        state.verifications.begin(header.producer_id, header.producer_epoch, header.base_sequence)
    assert state.judge(second).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    assert state.judge(first).verdict is Verdict.FRESH


def test_C3_late_duplicate_that_waits_does_not_hinder_the_next_sequence() -> None:
    state = state_of(data(0, transactional=True), end(1, marker(ControlType.COMMIT)))
    duplicate, following = (
        data(sequence=0, transactional=True),
        data(sequence=1, transactional=True),
    )
    for header in (duplicate, following):
        state.verifications.begin(header.producer_id, header.producer_epoch, header.base_sequence)
    assert state.judge(following).verdict is Verdict.FRESH


def test_C5_late_batch_of_an_older_epoch_takes_no_attempt_from_the_newer() -> None:
    state = PartitionState()
    first = data(sequence=0, producer_epoch=1, transactional=True)
    waiting = state.verifications.begin(PRODUCER, first.producer_epoch, first.base_sequence)
    late = data(sequence=7, producer_epoch=0, transactional=True)
    state.verifications.begin(PRODUCER, late.producer_epoch, late.base_sequence)
    assert state.verifications.is_current(waiting)
    overtaking = data(sequence=1, producer_epoch=1, transactional=True)
    assert state.judge(overtaking).verdict is Verdict.OUT_OF_ORDER_SEQUENCE


def test_C6_older_epoch_is_stale() -> None:
    state = state_of(data(0, producer_epoch=3))
    assert state.judge(data(sequence=1, producer_epoch=2)).verdict is Verdict.STALE_PRODUCER_EPOCH


def test_C6_marker_with_a_newer_epoch_fences_the_old_producer() -> None:
    state = state_of(
        data(0, transactional=True), end(1, marker(ControlType.ABORT, producer_epoch=1))
    )
    zombie = data(sequence=1, transactional=True)
    assert state.judge(zombie).verdict is Verdict.STALE_PRODUCER_EPOCH


# Holds INV-S2.
def test_C7_judge_and_apply_are_one_step_without_await() -> None:
    for name in ("judge", "judge_marker", "apply"):
        assert not inspect.iscoroutinefunction(getattr(PartitionState, name))


def test_C7_five_batches_in_flight_are_all_recognised_when_all_are_sent_again() -> None:
    state = five_batches()
    retries = [state.judge(data(sequence=n * 10, count=10)) for n in range(5)]
    assert [retry.base_offset for retry in retries] == [0, 10, 20, 30, 40]


def test_C8_producer_expires_a_day_after_it_was_first_found_idle() -> None:
    state = state_of(data(0, sequence=9))
    assert state.expire(1_000, DAY_MS) == []
    assert state.expire(1_000 + DAY_MS - 1, DAY_MS) == []
    assert state.expire(1_000 + DAY_MS, DAY_MS) == [PRODUCER]
    assert state.judge(data(sequence=500)).verdict is Verdict.FRESH


# Holds INV-P3.
def test_C8_old_event_times_do_not_make_a_producer_idle() -> None:
    """Whatever times its records carry: a retry within a day of the first try is a duplicate."""
    first = data(0, sequence=0, timestamp_ms=1)
    state = state_of(first)
    for monotonic_ms in (DAY_MS, DAY_MS + 60_000, 2 * DAY_MS - 1):
        assert state.expire(monotonic_ms, DAY_MS) == []
    assert state.judge(first).verdict is Verdict.DUPLICATE


def test_C8_a_batch_begins_the_day_anew() -> None:
    state = state_of(data(0, sequence=0))
    assert state.expire(0, DAY_MS) == []
    state.apply(data(1, sequence=1))
    assert state.expire(DAY_MS, DAY_MS) == []
    assert state.expire(2 * DAY_MS - 1, DAY_MS) == []
    assert state.expire(2 * DAY_MS, DAY_MS) == [PRODUCER]


# Holds INV-P3.
def test_C8_producer_with_an_open_transaction_never_expires() -> None:
    state = state_of(data(0, transactional=True))
    assert [state.expire(day * DAY_MS, DAY_MS) for day in range(3)] == [[], [], []]
    assert [txn.producer_id for txn in state.open_transactions()] == [PRODUCER]


def test_C8_P13_marker_keeps_a_producer_alive() -> None:
    state = state_of(data(0, transactional=True))
    assert state.expire(0, DAY_MS) == []
    state.apply(*end(1, marker()))
    assert state.expire(DAY_MS, DAY_MS) == []
    assert state.expire(2 * DAY_MS, DAY_MS) == [PRODUCER]


def test_C8_a_restart_begins_to_count_anew() -> None:
    """A node's monotonic clock begins anywhere; what the old one said means nothing after a restart."""
    state = state_of(data(0, sequence=0))
    assert state.expire(1_000, DAY_MS) == []
    restored = PartitionState.decode(state.encode())
    assert restored == state
    assert restored.expire(9 * DAY_MS, DAY_MS) == []
    assert restored.expire(10 * DAY_MS, DAY_MS) == [PRODUCER]


# Holds INV-S1.
def test_C9_snapshot_and_replay_of_the_rest_give_the_live_state() -> None:
    log = [data(n, sequence=n, transactional=True) for n in range(3)]
    at_two = state_of(*log[:2]).encode()
    restored = PartitionState.decode(at_two)
    restored.apply(log[2])
    assert restored == state_of(*log)


def test_C9_truncation_reopens_the_transaction_whose_marker_is_cut_off() -> None:
    head = data(0, transactional=True)
    assert state_of(head, end(1, marker())).open_transactions() == []
    cut = state_of(head)
    assert [txn.first_offset for txn in cut.open_transactions()] == [0]
    assert cut.last_stable_offset(1) == 0


def test_C10_plain_batch_while_a_transaction_is_open_is_invalid() -> None:
    state = state_of(data(0, transactional=True))
    assert state.judge(data(sequence=1)).verdict is Verdict.INVALID_TXN_STATE
    state.apply(*end(1, marker()))
    assert (
        state.judge(data(sequence=1)).verdict is Verdict.INVALID_TXN_STATE
    )  # INV-S6; Kafka takes it


def test_C10_P10_stale_epoch_is_said_before_the_transaction_state() -> None:
    state = state_of(data(0, producer_epoch=1, transactional=True))
    plain_zombie = data(sequence=1, producer_epoch=0)
    assert state.judge(plain_zombie).verdict is Verdict.STALE_PRODUCER_EPOCH


# Holds INV-S4.
def test_B9_data_of_a_newer_epoch_never_joins_an_older_open_transaction() -> None:
    state = state_of(data(0, transactional=True))
    newer = data(sequence=0, producer_epoch=1, transactional=True)
    assert state.judge(newer).verdict is Verdict.INVALID_TXN_STATE
    state.apply(*end(1, marker(ControlType.ABORT, producer_epoch=1)))
    assert state.judge(newer).verdict is Verdict.FRESH


# Holds INV-I1.
def test_C11_blocks_of_two_regions_never_meet() -> None:
    blocks = [block_for(ordinal, index) for ordinal in range(8) for index in (0, 1, 10**9)]
    ranges = sorted((block.first, block.end) for block in blocks)
    assert all(left[1] <= right[0] for left, right in itertools.pairwise(ranges))
    assert all(0 <= block.first < block.end <= 2**63 for block in blocks)
    assert block_for(5, 3).first >> 60 == 5


def test_INV_S6_no_plain_batch_takes_the_place_of_one_in_a_transaction() -> None:
    """Whoever may read a log knows its producers: such a batch made the next one of a transaction a duplicate, acknowledged and never written."""
    state = state_of(data(0, transactional=True), end(1, marker()))
    plain = data(sequence=1)
    assert state.judge(plain).verdict is Verdict.INVALID_TXN_STATE
    assert state.judge(data(sequence=0, producer_epoch=9)).verdict is Verdict.INVALID_TXN_STATE
    assert state.judge(data(sequence=1, transactional=True)).verdict is Verdict.FRESH
    assert state.judge(data(sequence=0, transactional=True)).verdict is Verdict.DUPLICATE


def test_INV_S6_nor_of_the_first_one_of_all() -> None:
    state = state_of(data(0, sequence=0))
    assert state.judge(data(sequence=0)).verdict is Verdict.DUPLICATE
    assert (
        state.judge(data(sequence=0, transactional=True)).verdict is Verdict.OUT_OF_ORDER_SEQUENCE
    )


def test_INV_S6_a_batch_of_an_open_transaction_is_a_duplicate_before_any_has_ended() -> None:
    state = state_of(data(0, transactional=True))
    assert state.judge(data(sequence=0, transactional=True)).verdict is Verdict.DUPLICATE


def test_INV_S6_no_plain_batch_stands_in_the_way_of_the_first_one_of_a_transaction() -> None:
    """Who was given an id knows the next ones: one batch of the greatest epoch under each locked whoever got them out of the partition."""
    producer_id = block_for(3, TRANSACTIONAL_BLOCKS_FROM).first + 7
    state = state_of()
    for producer_epoch in (0, 32_767):
        plain = data(producer_id=producer_id, producer_epoch=producer_epoch)
        assert state.judge(plain).verdict is Verdict.INVALID_TXN_STATE
    assert state.judge(data(producer_id=producer_id, transactional=True)).verdict is Verdict.FRESH
    below = block_for(3, TRANSACTIONAL_BLOCKS_FROM - 1).end - 1
    assert state.judge(data(producer_id=below)).verdict is Verdict.FRESH


# Holds INV-S1.
def test_a_log_in_which_an_older_version_let_one_stand_in_the_way_is_replayed() -> None:
    producer_id = block_for(0, TRANSACTIONAL_BLOCKS_FROM).first
    state = state_of(data(0, producer_id=producer_id, producer_epoch=9))
    assert state.producer(ProducerId(producer_id)) is not None
