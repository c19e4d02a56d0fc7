"""The simulated Java producer keeps the client's rules for sequences, epochs and retries.

Expected values: TransactionManager.java, RecordAccumulator.java and Sender.java of Kafka, KAFKA-5494 and KIP-360.
"""

import pytest
from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerEpoch, ProducerId
from tests.simulation.swarm.workloads.java_rules import Batch, JavaRules

OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
LOST = ErrorCode.network_exception
FIRST = ProducerId(7), ProducerEpoch(0)
SECOND = ProducerId(7), ProducerEpoch(1)


@pytest.fixture(name="rules")
def begun() -> JavaRules:
    rules = JavaRules(transactional=False)
    rules.begin(FIRST)
    return rules


def in_flight(rules: JavaRules, count: int) -> list[Batch]:
    """Send one batch of two records after the other to partition 0, the first one at second 0."""
    for number in range(count):
        rules.append(Batch(0, range(2 * number, 2 * number + 2), float(number)))
    return [rules.drain()[0] for _ in range(count)]


def settle(rules: JavaRules, created_before_s: float = 0.0) -> list[range]:
    return [each.numbers for each in rules.settle(created_before_s)]


def test_sequences_are_given_when_batches_are_drained_one_of_a_partition_each_time(
    rules: JavaRules,
) -> None:
    rules.append(Batch(0, range(2), 0.0))
    rules.append(Batch(0, range(2, 5), 0.0))
    rules.append(Batch(1, range(1), 0.0))
    assert [(n, each.sequence) for n, each in rules.drain().items()] == [(0, 0), (1, 0)]
    assert [(n, each.sequence) for n, each in rules.drain().items()] == [(0, 2)]
    assert not rules.drain()


def test_retried_batches_go_one_by_one_in_the_order_of_their_sequences_before_new_ones(
    rules: JavaRules,
) -> None:
    one, two, three = in_flight(rules, 3)
    rules.append(Batch(0, range(6, 8), 3.0))
    for lost in (three, one, two):
        rules.refuse(lost, LOST)
    for expected in (one, two):
        assert rules.drain() == {0: expected}
        assert not rules.drain()
        assert rules.acknowledge(expected)
    assert rules.drain() == {0: three}
    assert rules.drain()[0].sequence == 6
    assert rules.producer == FIRST


def test_a_wrong_sequence_counts_only_for_the_batch_that_is_next(rules: JavaRules) -> None:
    one, two = in_flight(rules, 2)
    rules.refuse(two, OUT_OF_ORDER)
    assert settle(rules) == []
    assert (rules.producer, two.sequence, rules.gaps) == (FIRST, 2, [])
    rules.refuse(one, OUT_OF_ORDER)
    assert settle(rules) == []
    assert (rules.producer, len(rules.gaps)) == (SECOND, 1)
    assert [(each.producer, each.sequence) for each in (one, two)] == [(SECOND, 0), (SECOND, 2)]


def test_what_was_rewritten_on_the_wire_is_tried_again_without_another_epoch(
    rules: JavaRules,
) -> None:
    one, two = in_flight(rules, 2)
    rules.refuse(one, OUT_OF_ORDER)
    settle(rules)
    rules.refuse(two, OUT_OF_ORDER)
    settle(rules)
    assert rules.producer == SECOND
    assert rules.drain() == {0: one}


def test_nothing_new_follows_what_was_given_up_until_those_behind_it_are_known(
    rules: JavaRules,
) -> None:
    one, two = in_flight(rules, 2)
    for lost in (one, two):
        rules.refuse(lost, LOST)
    rules.append(Batch(0, range(4, 6), 2.0))
    assert settle(rules, 0.5) == [range(2)]
    assert rules.drain() == {0: two}
    assert not rules.drain()
    assert rules.acknowledge(two)
    settle(rules)
    assert rules.drain()[0].sequence == 4
    assert rules.producer == FIRST


@pytest.mark.parametrize("is_refused", [True, False])
def test_an_epoch_is_taken_behind_what_was_given_up_and_is_not_known_to_be_there(
    rules: JavaRules, *, is_refused: bool
) -> None:
    one, two = in_flight(rules, 2)
    for lost in (one, two):
        rules.refuse(lost, LOST)
    settle(rules, 0.5)
    if is_refused:
        rules.refuse(rules.drain()[0], OUT_OF_ORDER)
    settle(rules, 0.5 if is_refused else 1.5)
    assert rules.producer == SECOND
    assert (two.producer == SECOND, two.done) == (is_refused, not is_refused)
    assert rules.gaps == []


def test_a_producer_that_is_not_known_takes_an_epoch_and_sends_again(rules: JavaRules) -> None:
    [one] = in_flight(rules, 1)
    rules.refuse(one, ErrorCode.unknown_producer_id)
    settle(rules)
    assert rules.drain() == {0: one}
    assert (one.producer, one.sequence) == (SECOND, 0)


def test_a_transaction_is_aborted_and_those_behind_what_failed_move_up() -> None:
    rules = JavaRules(transactional=True)
    rules.begin(FIRST)
    one, two = in_flight(rules, 2)
    rules.append(Batch(0, range(4, 6), 2.0))
    rules.refuse(one, OUT_OF_ORDER)
    rules.drop_unsent()
    assert (rules.abortable, rules.producer, rules.open) == (OUT_OF_ORDER.name, FIRST, 1)
    assert (one.done, two.sequence) == (True, 0)


def test_what_is_answered_after_it_was_given_up_tells_the_application_nothing(
    rules: JavaRules,
) -> None:
    [one] = in_flight(rules, 1)
    assert settle(rules, 0.5) == [range(2)]
    assert not rules.acknowledge(one)
