"""Who may open a connection (INV-CN1, INV-CN2): by an exact count of tokens, with the time handed in."""

import pytest

from region_broker.limits import CONNECTION_BURST_S, CONNECTIONS_MAX
from region_broker.security.quotas.entities import AddressRate, Limits, QuotaKey
from region_broker.wire.connection_caps import Admission, ConnectionCaps, Refused


def named(rate: float) -> AddressRate:
    return AddressRate(rate, is_named=True)


def admitted(admission: Admission, address: str, now_ms: int, tries: int = 1_000) -> int:
    """Return how many of `tries` connections are let in, each gone again at once."""
    count = 0
    for _ in range(tries):
        if admission.admit(address, now_ms) is None:
            count += 1
            admission.left(address)
    return count


@pytest.mark.parametrize("rate", [1, 3, 10, 100])
def test_INV_CN1_a_burst_and_then_the_rate(rate: int) -> None:
    admission = Admission(ConnectionCaps(rate=rate))
    burst = rate * CONNECTION_BURST_S
    assert admitted(admission, "a", 5_000) == burst
    assert admitted(admission, "b", 5_000) == burst  # addresses do not share
    assert [admitted(admission, "a", 5_000 + second * 1_000) for second in (1, 2, 3)] == [rate] * 3
    assert admitted(admission, "a", 1_000_000) == burst
    assert admitted(admission, "a", 1_000_500) == rate // 2


def test_INV_CN1_no_rate_is_no_limit() -> None:
    assert admitted(Admission(ConnectionCaps(rate=0)), "a", 0, 5_000) == 5_000


def test_caps_that_change_count_for_who_comes_from_then_on() -> None:
    admission = Admission(ConnectionCaps(in_all=10, per_address=4, rate=100))
    assert [admission.admit("a", 0) for _ in range(4)] == [None] * 4
    admission.caps = admission.caps.for_addresses(2, 0)
    assert admission.admit("a", 0) is Refused.ADDRESS
    for _ in range(3):
        admission.left("a")
    assert admission.admit("a", 0) is None
    admission.caps = admission.caps.for_addresses(99, 0)
    assert (admission.caps.per_address, admission.caps.in_all) == (10, 10)
    assert admission.admit("a", 0) is None


def test_INV_CN2_addresses_are_forgotten() -> None:
    admission = Admission(ConnectionCaps(rate=1_000))
    for number in range(3 * CONNECTIONS_MAX):
        assert admission.admit(str(number), number) is None
        admission.left(str(number))
        assert len(admission._due_us) <= CONNECTIONS_MAX
    assert not admission._open


def test_caps_come_before_the_rate_and_are_freed_again() -> None:
    admission = Admission(ConnectionCaps(in_all=2, per_address=1, rate=100))
    assert admission.admit("a", 0) is None
    assert admission.admit("a", 0) is Refused.ADDRESS
    assert admission.admit("b", 0) is None
    assert admission.admit("c", 0) is Refused.TOO_MANY
    admission.left("a")
    assert admission.admit("c", 0) is None


def test_INV_CN3_a_quota_of_an_address_counts_in_place_of_the_nodes_rate() -> None:
    admission = Admission(ConnectionCaps(rate=100))
    admission.rate_of = {"a": named(3.0), "b": named(500.0)}.get
    assert admitted(admission, "a", 0) == 3 * CONNECTION_BURST_S
    assert admitted(admission, "b", 0) == 500 * CONNECTION_BURST_S
    assert admitted(admission, "c", 0) == 100 * CONNECTION_BURST_S
    admission.rate_of = None
    assert admitted(admission, "a", 60_000) == 100 * CONNECTION_BURST_S


def test_INV_CN3_the_quota_of_the_default_address_counts_one_host_of_ipv6_once() -> None:
    """It counted each of the 2**64 addresses of a host by itself, so setting it took away the limit that there had been."""
    rate = {QuotaKey.CONNECTION.value: 2.0}
    alone = "2001:db8:0:7::5"
    admission = Admission(ConnectionCaps(rate=1_000))
    admission.rate_of = Limits({(("ip", None),): rate, (("ip", alone),): rate}).of_address
    hosts = [f"2001:db8:0:7::{number:x}" for number in range(6, 1_000)]
    assert sum(admission.admit(each, 0) is None for each in hosts) == 2 * CONNECTION_BURST_S
    assert admission.admit("2001:db8:0:8::1", 0) is None, "another host has its own"
    assert admitted(admission, alone, 0) == 2 * CONNECTION_BURST_S, "whoever is named, too"


def test_INV_CN5_who_makes_a_handshake_takes_its_token_before_it_and_no_second_one() -> None:
    admission = Admission(ConnectionCaps(in_all=5, per_address=3, rate=2))
    assert [admission.knock("a", 0) for _ in range(5)] == [None] * 4 + [Refused.RATE]
    assert admission.open_from("a") == 0, "a handshake that fails leaves nothing behind"
    assert [admission.admit("a", 0, has_knocked=True) for _ in range(4)] == [None] * 3 + [
        Refused.ADDRESS
    ]
    assert admission.knock("a", 60_000) is Refused.ADDRESS
    assert [admission.admit("b", 0), admission.admit("b", 0)] == [None, None]
    assert admission.knock("c", 0) is Refused.TOO_MANY
    assert admission.admit("c", 0, has_knocked=True) is Refused.TOO_MANY


def test_INV_CN2_a_flood_from_any_number_of_hosts_is_remembered_in_part() -> None:
    admission = Admission(ConnectionCaps(in_all=CONNECTIONS_MAX * 4, rate=1))
    for number in range(CONNECTIONS_MAX + 500):
        assert admission.admit(str(number), 0) is None
    assert len(admission._due_us) == CONNECTIONS_MAX
    for number in range(CONNECTIONS_MAX):
        admission.admit(f"later {number}", 60_000)
    assert not any(due_us <= 60_000_000 for due_us in admission._due_us.values())


@pytest.mark.parametrize("rate", [5e-324, 1e-304, 1e-9, 0.499, 1.7e308])
def test_INV_CN4_a_rate_of_any_size_is_counted_by(rate: float) -> None:
    """An infinite step was no whole number: the next connection ended the node."""
    admission = Admission(ConnectionCaps(rate=100))
    admission.rate_of = {"a": named(rate)}.get
    assert admitted(admission, "a", 0) == (1_000 if rate > 1 else 0)
    assert admitted(admission, "b", 0) == 100 * CONNECTION_BURST_S


def test_a_node_with_few_descriptors_lets_one_in_and_not_more_from_an_address_than_in_all() -> None:
    """An operator who has set the limit of the process too low must still be able to ask it."""
    assert ConnectionCaps.fitting(1, 100, 5) == ConnectionCaps(in_all=1, per_address=1, rate=5)
