"""INV-TO1..5: which connections are believed, of which pair, and what an abort makes of them."""

import weakref

import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from tests.fixtures.coordinator import tp
from txn_coordinator.connection_order import Arrival, ConnectionOrder, Sender

HERE, MIRROR = 0, 7
PAIR = (ProducerId(5), ProducerEpoch(0))
ORDERS = tp("orders")


def on(number: int, *, newest: int = 0, origin: int = HERE) -> Sender:
    return Sender(origin, number, max(number, newest))


def data(number: int, sequence: int, *, newest: int = 0, origin: int = HERE) -> Arrival:
    return Arrival(on(number, newest=newest, origin=origin), sequence)


@pytest.fixture
def order() -> ConnectionOrder:
    return ConnectionOrder().of(PAIR)


def test_TO1_an_older_connection_is_refused_once_a_newer_one_was_used(
    order: ConnectionOrder,
) -> None:
    assert [order.admit(on(number)) for number in (3, 3, 8, 3, 7, 8, 9)] == [
        True, True, True, False, False, True, True
    ]  # fmt: skip


def test_TO1_a_new_pair_starts_over_and_the_same_pair_does_not(order: ConnectionOrder) -> None:
    assert order.admit(on(8))
    assert not order.of(PAIR).admit(on(3))
    assert order.of((ProducerId(5), ProducerEpoch(1))).admit(on(3))


# Holds INV-TO3.
def test_TO3_numbers_of_another_origin_say_nothing(order: ConnectionOrder) -> None:
    assert order.admit(on(1 << 40, origin=MIRROR))
    assert order.admit(on(2))
    assert order.admit(on(1 << 40, origin=MIRROR))  # a client may go back and forth between regions
    assert not order.admit(on(1, origin=HERE))
    assert not order.admit(on(1 << 39, origin=MIRROR))


def test_TO4_after_an_abort_data_on_an_older_connection_has_to_come_twice(
    order: ConnectionOrder,
) -> None:
    assert order.admit_data(ORDERS, data(4, 10))
    order.aborting(on(2, newest=6))
    assert not order.admit_data(ORDERS, data(4, 11))
    assert not order.admit_data(ORDERS, data(4, 12))  # pipelined behind it, not a repeat
    assert not order.admit_data(ORDERS, data(3, 11))  # the same from elsewhere is no repeat either
    assert order.admit_data(ORDERS, data(4, 11))
    assert order.admit_data(ORDERS, data(4, 12))  # believed from now on
    assert order.admit_data(tp("orders", 1), data(4, 1))
    assert not order.admit_data(ORDERS, data(3, 12))


def test_TO4_a_connection_that_came_after_the_abort_and_the_aborts_own_are_believed(
    order: ConnectionOrder,
) -> None:
    order.aborting(on(2, newest=6))
    assert order.admit_data(ORDERS, data(7, 0))
    assert order.admit_data(ORDERS, data(2, 0))
    assert not order.admit_data(ORDERS, data(3, 0, origin=MIRROR)), "it may have been there before"
    assert order.admit_data(ORDERS, data(3, 0, origin=MIRROR)), "a live client repeats"
    assert order.admit_data(ORDERS, data(4, 0, origin=MIRROR)), "made after that"


def test_TO4_the_next_abort_asks_anew(order: ConnectionOrder) -> None:
    order.aborting(on(2, newest=6))
    assert not order.admit_data(ORDERS, data(4, 1))
    assert order.admit_data(ORDERS, data(4, 1))
    order.aborting(on(2, newest=7))
    assert not order.admit_data(ORDERS, data(4, 1))
    assert not order.admit_data(ORDERS, data(7, 1))


def test_TO4_a_new_pair_has_nothing_to_fear(order: ConnectionOrder) -> None:
    order.aborting(on(2, newest=6))
    assert order.of((ProducerId(5), ProducerEpoch(1))).admit_data(ORDERS, data(4, 0))


# Holds INV-TO5.
def test_TO5_memory_is_bounded_whatever_comes(order: ConnectionOrder) -> None:
    for origin in range(10_000):
        assert order.admit(on(1, origin=origin))
    order.aborting(on(1, newest=1 << 40))
    for number in range(2, 10_000):
        order.admit_data(ORDERS, data(number, 0))
        order.admit_data(ORDERS, data(number, 0))
        order.admit_data(ORDERS, data(number + 10_000, 0))  # and never again
        order.admit_data(ORDERS, data(7, number))
    sizes = {
        name: len(getattr(order, name))
        for name in order.__slots__
        if name not in {"_aborted", "_inherited"}
    }
    assert max(sizes.values()) <= 64, sizes


# Holds INV-TO5.
def test_TO5_memory_of_an_inherited_pair_is_bounded_too() -> None:
    order = ConnectionOrder().of(PAIR, inherited=True)
    for origin in range(10_000):
        order.believes(on(1, origin=origin), "join")
        order.believes(on(1, origin=origin), "join")
        order.admit_data(ORDERS, data(1, 0, origin=origin))
    sizes = {
        name: len(getattr(order, name))
        for name in order.__slots__
        if name not in {"_aborted", "_inherited"}
    }
    assert max(sizes.values()) <= 64, sizes


class Group:
    """The id of a group, as long as a client likes."""


# Holds INV-TO5.
def test_TO5_nothing_that_a_client_names_is_kept(order: ConnectionOrder) -> None:
    order.aborting(on(2, newest=6))
    group = Group()
    assert not order.admit_data(ORDERS, Arrival(on(4), group))
    seen = weakref.ref(group)
    assert not order.admit_data(ORDERS, Arrival(on(4), Group()))
    assert order.admit_data(ORDERS, Arrival(on(4), group))
    order.aborting(on(2, newest=6))
    assert not order.admit_data(ORDERS, Arrival(on(4), group))
    del group
    assert seen() is None


@pytest.mark.parametrize("partitions", [1, 5, 3_000])
def test_TO4_a_request_of_any_number_of_partitions_is_executed_when_it_comes_again(
    order: ConnectionOrder, partitions: int
) -> None:
    order.aborting(on(2, newest=99))
    connections = range(10, 26)
    for number in connections:
        assert not any(
            order.admit_data(tp("orders", at), data(number, 7)) for at in range(partitions)
        )
    for number in connections:
        assert all(order.admit_data(tp("orders", at), data(number, 7)) for at in range(partitions))


def test_TO4_what_was_never_repeated_keeps_nothing_later_from_being_repeated(
    order: ConnectionOrder,
) -> None:
    order.aborting(on(2, newest=6))
    assert not any(order.admit_data(ORDERS, data(4, sequence)) for sequence in range(20))
    assert not order.admit_data(ORDERS, data(4, 100))
    assert order.admit_data(ORDERS, data(4, 100))


# Holds INV-TO6.
def test_TO6_requests_of_an_inherited_pair_have_to_come_twice_over_a_connection_of_before() -> None:
    order = ConnectionOrder().of(PAIR, inherited=True)
    assert not order.believes(on(4, newest=6), "join")
    assert not order.believes(on(4, newest=6), "commit")  # another request is no repeat
    assert not order.believes(on(5, newest=6), "join")  # nor is one from elsewhere
    assert order.believes(on(4, newest=8), "join")
    assert order.believes(on(4, newest=8), "abort")  # believed from now on
    assert order.believes(on(7, newest=8), "join")  # it came since
    assert not order.believes(on(7, newest=8, origin=MIRROR), "join")
    order.of((ProducerId(5), ProducerEpoch(1)))
    assert order.believes(on(5, newest=8), "join")


def test_the_origin_in_use_is_not_the_one_forgotten(order: ConnectionOrder) -> None:
    assert order.admit(on(9))
    for origin in range(1, 100):
        assert order.admit(on(1, origin=origin))
        assert order.admit(on(9))
    assert not order.admit(on(8))
