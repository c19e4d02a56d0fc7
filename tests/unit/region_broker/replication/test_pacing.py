"""How fast a follower that is not in sync is sent what it lacks (KIP-73, and the pauses that are ours)."""

from uuid import UUID

import pytest

from idempotency.identity import LogKey
from region_broker.replication.pacing import (
    ANSWER_BYTES,
    OVERDUE_MS,
    PAUSE_MS_MAX,
    PERIOD_MS,
    STEPS_MAX,
    WINDOW_BYTES,
    Allowance,
    CatchUpPace,
    CatchUpRates,
)

A, B = LogKey(UUID(int=1), 0), LogKey(UUID(int=1), 1)


def pace(rates: CatchUpRates | None = None, node: Allowance | None = None) -> CatchUpPace:
    return CatchUpPace(rates or CatchUpRates(), node or Allowance(), applies=lambda: True)


def send(
    to: CatchUpPace, ends: dict[LogKey, int], size_bytes: int, now_ms: int, *, took_ms: int = 0, total: int = 0
) -> None:  # fmt: skip
    to.sent(ends, size_bytes, took_ms=took_ms, now_ms=now_ms, total_bytes=lambda: total)


def test_INV_RPA2_what_is_not_durable_there_is_waited_for() -> None:
    some = pace()
    send(some, {A: 10}, WINDOW_BYTES // 2, 0)
    assert some.wait_ms(0) == 0
    send(some, {A: 20, B: 5}, WINDOW_BYTES // 2, 1)
    assert some.wait_ms(1) > 0
    some.durable({A: 9})
    assert some.wait_ms(1) > 0
    some.durable({A: 15})
    assert some.wait_ms(1) == 0


def test_INV_RPA2_a_log_that_stops_there_and_a_report_that_never_comes_hold_nothing_up_for_good() -> None:  # fmt: skip
    some = pace()
    send(some, {A: 10}, WINDOW_BYTES, 0)
    some.forget(A)
    assert some.wait_ms(0) == 0
    send(some, {B: 10}, WINDOW_BYTES, 0)
    assert some.wait_ms(0) == OVERDUE_MS
    assert some.wait_ms(OVERDUE_MS) == 0


def test_INV_RPA3_a_busy_node_pauses_longer_and_never_for_long() -> None:
    waits = []
    for took_ms in (0, 1, 3, 10_000):
        some = pace()
        send(some, {A: 1}, 100, 0, took_ms=took_ms)
        waits.append(some.wait_ms(0))
    assert waits == [0, STEPS_MAX, 3 * STEPS_MAX, PAUSE_MS_MAX]


def test_INV_RPA4_who_falls_behind_is_given_more_until_nothing_is_held_back() -> None:
    some, total = pace(), 0
    send(some, {}, 0, 0)
    for step in range(STEPS_MAX + 2):
        assert some.steps == min(step, STEPS_MAX)
        assert some.answer_bytes == ANSWER_BYTES << some.steps
        total += 600  # more than half of what is sent
        send(some, {A: 1}, 1_000, (step + 1) * PERIOD_MS, total=total)
        some.durable({A: 1})
    send(some, {A: 2}, 100, 10**6, took_ms=5, total=total)
    assert some.wait_ms(10**6) == 0, "no pause either"


def test_INV_RPA4_who_gains_goes_back_to_the_first_pace() -> None:
    some = pace()
    some.steps = 2
    for at in (0, 1, 2):
        send(some, {A: 1}, 1_000, at * PERIOD_MS, total=0)
    assert some.steps == 0
    assert some.sent_bytes_per_s == 1_000 * 1_000 / PERIOD_MS


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_INV_RPA5_over_time_no_more_is_sent_than_is_allowed(who: str) -> None:
    some = pace(CatchUpRates(sent_bytes_per_s=1_000) if who == "leader" else None)
    if who == "follower":
        some.taken_bytes_per_s = 1_000
    sent, now_ms = 0, 0
    while now_ms < 60_000:
        wait_ms = some.wait_ms(now_ms)
        if wait_ms:
            now_ms += wait_ms
            continue
        send(some, {A: 1}, 5_000, now_ms)
        some.durable({A: 1})
        sent += 5_000
    assert 60_000 <= sent <= 65_000


def test_INV_RPA5_all_followers_share_what_the_leader_may_send() -> None:
    rates, node = CatchUpRates(sent_bytes_per_s=1_000), Allowance()
    one, other = pace(rates, node), pace(rates, node)
    send(one, {A: 1}, 5_000, 0)
    assert other.wait_ms(0) == 5_000


def test_INV_RPA5_a_rate_that_is_raised_counts_for_what_was_sent_before() -> None:
    rates = CatchUpRates(sent_bytes_per_s=1)
    some = pace(rates)
    send(some, {A: 1}, 5_000, 0)
    some.durable({A: 1})
    assert some.wait_ms(0) == 5_000_000
    rates.sent_bytes_per_s = 10_000
    assert some.wait_ms(0) == 500
