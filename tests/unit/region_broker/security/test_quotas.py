"""Client quotas without a node: whose limit counts, what may be configured, how much is left.

Expected values are Kafka's: precedence and sharing from `ClientQuotaManagerTest.scala`, texts from ClientQuotaControlManager.java, token
buckets from `StrictControllerMutationQuotaTest.scala`.
"""

import math
import sys
from typing import Any

import pytest

from region_broker.security.quotas import entities
from region_broker.security.quotas.buckets import DEBT_S_MAX, Bucket, Buckets
from region_broker.security.quotas.entities import (
    NAME_LENGTH_MAX,
    AddressRate,
    Limit,
    Limits,
    QuotaKey,
    QuotaRefused,
    altered,
    checked_entity,
    checked_limit,
)
from region_broker.security.quotas.throttles import BURST_S, Throttles

PRODUCE, FETCH, MUTATION = QuotaKey.PRODUCE, QuotaKey.FETCH, QuotaKey.MUTATION
EIGHT = (
    ((("client-id", "c"), ("user", "u")), ("u", "c")),
    ((("client-id", None), ("user", "u")), ("u", "c")),
    ((("user", "u"),), ("u", None)),
    ((("client-id", "c"), ("user", None)), ("u", "c")),
    ((("client-id", None), ("user", None)), ("u", "c")),
    ((("user", None),), ("u", None)),
    ((("client-id", "c"),), (None, "c")),
    ((("client-id", None),), (None, "c")),
)
"""Entities that a client `c` of a user `u` belongs to, the most specific first, and by what names use of each is counted."""


def limits(*rows: tuple[tuple[tuple[str, str | None], ...], dict[str, float]]) -> Limits:
    return Limits(dict(rows))


def test_INV_SQE1_the_most_specific_entity_counts_and_INV_SQE2_names_who_shares_it() -> None:
    for first in range(len(EIGHT)):
        rows = [(entity, {PRODUCE.value: 100.0 + at}) for at, (entity, _) in enumerate(EIGHT)]
        found = limits(*reversed(rows[first:])).of(PRODUCE, "u", "c")
        user, client_id = EIGHT[first][1]
        assert found == Limit(100.0 + first, (PRODUCE, user, client_id))
    others = limits(*[(entity, {PRODUCE.value: 1.0}) for entity, _ in EIGHT if ("user", None) not in entity and ("client-id", None) not in entity])  # fmt: skip
    assert others.of(PRODUCE, "x", "y") is None


def test_INV_SQE1_each_limit_is_looked_for_by_itself() -> None:
    found = limits(
        ((("user", "u"),), {FETCH.value: 5.0}), ((("client-id", None),), {PRODUCE.value: 7.0})
    )
    assert found.of(FETCH, "u", "c") == Limit(5.0, (FETCH, "u", None))
    assert found.of(PRODUCE, "u", "c") == Limit(7.0, (PRODUCE, None, "c"))
    assert found.of(QuotaKey.REQUEST, "u", "c") is None


def test_INV_SQE1_addresses_have_a_limit_of_connections() -> None:
    rate = {QuotaKey.CONNECTION.value: 3.0}
    found = limits(
        ((("ip", "10.0.0.1"),), rate), ((("ip", None),), {QuotaKey.CONNECTION.value: 9.0})
    )
    named, default = AddressRate(3.0, is_named=True), AddressRate(9.0, is_named=False)
    assert found.of_address("10.0.0.1") == found.of_address("::ffff:10.0.0.1") == named
    assert found.of_address("[::1]") == default
    mapped = limits(((("ip", "::ffff:10.0.0.2"),), rate))
    assert mapped.of_address("10.0.0.2") == named, "however it was written"
    assert found.has_addresses
    assert not found.has_clients


@pytest.mark.parametrize(
    ("pairs", "text"),
    [
        ([], "Invalid empty client quota entity"),
        ([("user", "a"), ("user", "b")], "Invalid client quota entity, duplicate entity entry user"),
        ([("group", "a")], "Unhandled client quota entity type: group"),
        ([("user", "")], "Empty user not supported"),
        ([("ip", "not-an-ip")], "not-an-ip is not a valid IP or resolvable host."),
        ([("ip", "1.2.3.4"), ("user", "a")],
         "Invalid quota entity combination, IP entity should not be combined with User or ClientId"),
        ([("user", "x" * (NAME_LENGTH_MAX + 1))], "The name of a user has 1025 characters, 1024 are the most"),
    ],
)  # fmt: skip
def test_INV_SQE3_bad_entities_are_refused_in_kafkas_words(
    pairs: list[tuple[str, str | None]], text: str
) -> None:
    with pytest.raises(QuotaRefused) as refused:
        checked_entity(pairs)
    assert str(refused.value) == text


@pytest.mark.parametrize(
    ("entity", "key", "value", "text"),
    [
        ("user", "bytes", 1.0, "Invalid configuration key bytes"),
        ("user", "connection_creation_rate", 1.0, "Invalid configuration key connection_creation_rate"),
        ("ip", "producer_byte_rate", 1.0, "Invalid configuration key producer_byte_rate"),
        ("user", "producer_byte_rate", 0.0, "Quota producer_byte_rate must be greater than 0"),
        ("user", "producer_byte_rate", -1.0, "Quota producer_byte_rate must be greater than 0"),
        ("user", "producer_byte_rate", 1.5, "producer_byte_rate cannot be a fractional value."),
        ("user", "consumer_byte_rate", 1e-7, "consumer_byte_rate cannot be a fractional value."),
        ("ip", "connection_creation_rate", 1e-304, "connection_creation_rate cannot be a fractional value."),
        ("user", "producer_byte_rate", 1e19, "Proposed value for producer_byte_rate is too large for a LONG."),
        ("ip", "connection_creation_rate", 2.0**31, "Proposed value for connection_creation_rate is too large for an INT."),
        ("user", "request_percentage", math.nan, "Quota request_percentage must be a number"),
        ("user", "consumer_byte_rate", math.nan, "Quota consumer_byte_rate must be a number"),
        ("user", "request_percentage", math.inf, "Quota request_percentage must be finite: remove it for no limit"),
        ("user", "request_percentage", -math.inf, "Quota request_percentage must be greater than 0"),
    ],
)  # fmt: skip
def test_INV_SQE3_bad_limits_are_refused_in_kafkas_words(
    entity: str, key: str, value: float, text: str
) -> None:
    with pytest.raises(QuotaRefused) as refused:
        checked_limit(((entity, None),), key, value)
    assert str(refused.value) == text


def test_INV_SQE3_orders_change_an_entity_whole_or_not_at_all() -> None:
    present = {"producer_byte_rate": 1.0, "request_percentage": 2.5}
    entity = checked_entity([("user", "a")])
    orders = [("producer_byte_rate", None), ("consumer_byte_rate", 9.0), ("unknown", None)]
    assert altered(present, entity, orders) == {
        "request_percentage": 2.5,
        "consumer_byte_rate": 9.0,
    }
    with pytest.raises(QuotaRefused, match="Duplicate quota key consumer_byte_rate"):
        altered(present, entity, [("consumer_byte_rate", 1.0), ("consumer_byte_rate", 2.0)])


def test_INV_SQB1_a_bucket_is_kafkas_of_KIP_599() -> None:
    """10 a second, 10 windows of a second: 100 saved up; 90 and 90 are taken, 80 are owed, which is 8 s."""
    bucket = Bucket(10.0, 10.0, 0.0)
    bucket.take(90, 0.0)
    assert bucket.wait_ms(0.0) == 0
    bucket.take(90, 0.0)
    assert bucket.wait_ms(0.0) == 8_000
    assert bucket.wait_ms(5.0) == 3_000
    assert bucket.wait_ms(8.0) == 0
    assert bucket.left(1_000.0) == 100.0
    assert bucket.left(500.0) == 100.0, "time that goes back gives nothing"


def test_INV_SQB2_what_is_owed_is_bounded_and_follows_the_rate() -> None:
    bucket = Bucket(10.0, 1.0, 0.0)
    bucket.take(1e15, 0.0)
    assert bucket.wait_ms(0.0) == DEBT_S_MAX * 1_000
    bucket.follow(1_000.0, 0.0)
    assert bucket.wait_ms(0.0) == 6_000, "6000 are owed, at 1000 a second"


def test_INV_SQB3_buckets_are_bounded_and_full_ones_forgotten() -> None:
    buckets = Buckets(BURST_S, count_max=50)
    for number in range(200):
        buckets.of(Limit(1.0, (PRODUCE, None, f"c{number}")), 0.0).take(100, 0.0)
    assert len(buckets) == 50
    assert buckets.owing(0.0)[PRODUCE] == 50
    for number in range(100):
        buckets.of(Limit(1.0, (PRODUCE, None, f"later{number}")), 1_000.0)
    assert len(buckets) <= 50
    buckets.of(Limit(1.0, (PRODUCE, None, "last")), 2_000.0)
    for number in range(40):
        buckets.of(Limit(1.0, (PRODUCE, None, f"n{number}")), 2_000.0 + 10 * number)
    assert len(buckets) < 20, "those that are full are not kept"


def test_INV_SQT1_INV_SQT2_the_longest_wait_counts_and_is_bounded() -> None:
    now = [0.0]
    throttles = Throttles(lambda: now[0])
    throttles.take(
        {(("client-id", "c"),): {"producer_byte_rate": 1_000.0, "request_percentage": 1.0}}
    )
    meter = throttles.meter("ANONYMOUS", "c", is_forwarded=False)
    meter.start(0.0)
    assert meter.produced(4_000) == 3_000, "1000 were saved up, 3000 are owed"
    assert meter.settle(10.0) == 3_000, "10 s of the loop are worth 1 s at the most"
    assert throttles.waited_ms[PRODUCE] == 3_000
    other = throttles.meter("ANONYMOUS", "c", is_forwarded=False)
    assert other.settle(10.0) == 1_000
    other.produced(10_000_000)
    assert other.settle(10.0) == 30_000


def test_INV_SQT3_time_of_this_loop_is_charged_whoever_forwarded_what_took_it() -> None:
    """A mirror worked little for it, and was all that counted: 1 % of its loop was the whole one of the primary."""
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("user", "u"),): {"request_percentage": 1.0}})
    meter = throttles.meter("u", None, is_forwarded=True)
    meter.start(0.0)
    assert meter.settle(0.015) == 500, "10 ms were saved up, 15 taken"


def test_INV_SQT3_bytes_that_were_forwarded_are_not_charged_and_mutations_are() -> None:
    throttles = Throttles(lambda: 0.0)
    rates = {"producer_byte_rate": 1.0, "controller_mutation_rate": 1.0, "consumer_byte_rate": 1.0}
    throttles.take({(("user", None),): rates})
    meter = throttles.meter("u", None, is_forwarded=True)
    assert meter.produced(1_000) == 0
    assert meter.fetch_room(500) == 500
    assert meter.mutate(20, strict=True)
    assert not meter.mutate(1, strict=True)
    assert meter.settle(0.0) == 9_000, "11 were saved up, 20 taken"


def test_KIP_599_permissive_changes_are_all_made_and_the_client_waits() -> None:
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("user", "u"),): {"controller_mutation_rate": 2.0}})
    meter = throttles.meter("u", "c", is_forwarded=False)
    assert all(meter.mutate(10, strict=False) for _ in range(5))
    assert meter.settle(0.0) == 14_000, "22 were saved up, 50 taken"
    forwarded = throttles.meter("u", "c", is_forwarded=True)
    assert forwarded.mutate(2, strict=False)
    assert forwarded.settle(0.0) == 15_000, "INV-SQT3: charged where the metadata change"


def test_fetch_room_is_what_can_be_saved_up_and_nothing_while_something_is_owed() -> None:
    now = [0.0]
    throttles = Throttles(lambda: now[0])
    throttles.take({(("user", "u"),): {"consumer_byte_rate": 1_000.0}})
    first = throttles.meter("u", "c", is_forwarded=False)
    assert first.fetch_room(50_000_000) == 1_000
    first.fetched(1_500)
    assert first.settle(0.0) == 500
    second = throttles.meter("u", "d", is_forwarded=False)
    assert (second.fetch_room(50_000_000), second.is_over) == (0, True)
    second.fetched(80)
    assert second.settle(0.0) == 500, "what got nothing is not charged"
    now[0] = 0.6
    third = throttles.meter("u", "d", is_forwarded=False)
    assert (third.fetch_room(200), third.is_over) == (200, False)


def test_INV_SQB3_what_is_kept_of_clients_that_name_themselves_at_length_is_bounded() -> None:
    """A client id may have 32,767 bytes (KIP-482's strings are longer yet), and a default gives each name a bucket."""
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("client-id", None),): {PRODUCE.value: 100.0}})
    for number in range(50):
        throttles.meter("u", f"{number}{'x' * 30_000}", is_forwarded=False).produced(1)
    kept = [client_id for _, _, client_id in throttles.buckets._by_sharers]
    assert len(kept) == 50
    assert max(len(client_id or "") for client_id in kept) == NAME_LENGTH_MAX + 1


@pytest.mark.parametrize("rate", [5e-324, 1e-304, 1e-9, sys.float_info.max])
def test_INV_SQT2_a_time_is_told_whatever_the_limit(rate: float) -> None:
    now_s = [0.0]
    throttles = Throttles(lambda: now_s[0])
    throttles.take({(("user", None),): dict.fromkeys(QuotaKey, rate)})
    for now_s[0] in (0.0, 1e-6, 1e6):
        meter = throttles.meter("u", "c", is_forwarded=False)
        meter.produced(100_000_000)
        meter.fetch_room(1_000)
        meter.fetched(100_000_000)
        meter.mutate(1_000, strict=True)
        assert meter.settle(now_s[0]) == (0 if rate > 1.0 else 30_000)


def test_INV_SQT2_the_time_told_is_not_too_short() -> None:
    """What waits for so long owes nothing any more, also where the time is no whole number of milliseconds."""
    bucket = Bucket(3.0, 1.0, 0.0)
    bucket.take(4.0, 0.0)
    told_ms = bucket.wait_ms(0.0)
    assert told_ms == 334
    assert bucket.left(told_ms / 1_000) >= 0.0


def test_KIP_599_a_strict_change_is_made_while_nothing_is_owed() -> None:
    """Sensor.checkQuotas refuses a token bucket that is below zero, and no empty one."""
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("user", "u"),): {"controller_mutation_rate": 1.0}})
    meter = throttles.meter("u", "", is_forwarded=False)
    assert meter.mutate(11, strict=True), "all that was saved up"
    assert meter.mutate(1, strict=True), "nothing is owed"
    assert not meter.mutate(1, strict=True)


def test_a_lower_rate_cuts_what_was_saved_up_at_once() -> None:
    bucket = Bucket(1_000.0, 1.0, 0.0)
    bucket.follow(10.0, 0.0)
    assert bucket.left(0.0) == 10.0


def test_INV_SQB1_what_is_owed_was_paid_back_at_the_former_rate_until_it_changed() -> None:
    bucket = Bucket(1.0, 1.0, 0.0)
    bucket.take(11.0, 0.0)
    bucket.follow(100.0, 5.0)
    assert bucket.left(5.0) == -5.0
    assert bucket.wait_ms(5.0) == 50


def test_INV_SQB3_who_was_seen_lately_is_kept() -> None:
    buckets = Buckets(BURST_S, count_max=2)
    old, new = (Limit(10.0, (PRODUCE, name, None)) for name in ("old", "new"))
    for each in (old, new):
        buckets.of(each, 0.0).take(100.0, 0.0)
    buckets.of(old, 0.0)
    buckets.of(Limit(10.0, (PRODUCE, "third", None)), 0.0)
    assert buckets.of(old, 0.0).left(0.0) == -90.0, "it owes still"


def test_INV_SQT1_time_of_a_request_is_charged_once() -> None:
    throttles = Throttles(lambda: 0.0)
    throttles.take({(("user", "u"),): {"request_percentage": 100.0}})
    meter = throttles.meter("u", None, is_forwarded=False)
    meter.start(0.0)
    meter.settle(0.5)
    meter.settle(9.0)
    found = throttles.left(QuotaKey.REQUEST, "u", "")
    assert found == (50.0, 100.0)


def test_each_entity_is_looked_at_once_whatever_it_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done at each change of one of them, on every node: with ten thousand it held the loop for a quarter of a second."""
    looked_at: list[object] = []
    form_of = entities._form

    def counted(place: tuple[Any, Any]) -> Any:
        looked_at.append(place)
        return form_of(place)

    monkeypatch.setattr(entities, "_form", counted)
    limits = {key.value: 5.0 for key in QuotaKey if key is not QuotaKey.CONNECTION}
    Limits({(("user", f"u{number}"),): limits for number in range(50)})
    assert len(looked_at) == 50
