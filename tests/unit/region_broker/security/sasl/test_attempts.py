"""Failed logins are held back by address, and forgotten again (INV-SAT1, INV-SAT2, INV-SAT3)."""

import pytest

from region_broker.security.sasl import attempts as attempts_module
from region_broker.security.sasl.attempts import (
    ADDRESSES_MAX,
    FAILURES_MAX,
    FORGIVEN_AFTER_MS,
    FREE_FAILURES,
    LONG_DELAY_MS,
    WAITING_MAX,
    FailedAttempts,
)


def test_who_fails_often_waits_longer_and_nobody_else_does() -> None:
    attempts = FailedAttempts(100)
    delays = [attempts.failed("10.0.0.1", 0).delay_ms for _ in range(FREE_FAILURES + 1)]
    assert delays == [100] * FREE_FAILURES + [LONG_DELAY_MS]
    assert attempts.failed("10.0.0.2", 0).delay_ms == 100
    later_ms = FORGIVEN_AFTER_MS * (FREE_FAILURES + 1)
    assert attempts.failed("10.0.0.1", later_ms).delay_ms == 100


def test_an_address_whose_refusals_wait_is_refused_unjudged_until_some_have_left() -> None:
    attempts = FailedAttempts(0)
    held = [attempts.failed("10.0.0.1", 0) for _ in range(WAITING_MAX)]
    assert attempts.is_full("10.0.0.1")
    assert not attempts.is_full("10.0.0.2")
    held[0].left()
    assert not attempts.is_full("10.0.0.1")


def test_what_is_remembered_has_a_bound() -> None:
    attempts = FailedAttempts(100)
    for number in range(2 * ADDRESSES_MAX):
        attempts.failed(f"h{number}", number // 1_000).left()
    assert len(attempts._by_address) <= ADDRESSES_MAX + 1
    attempts.failed("late", (FAILURES_MAX + 20) * FORGIVEN_AFTER_MS).left()
    assert len(attempts._by_address) == 1


def test_who_has_refusals_waiting_is_not_forgotten_among_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempts_module, "ADDRESSES_MAX", 3)
    attempts = FailedAttempts(0)
    for _ in range(WAITING_MAX):
        attempts.failed("10.0.0.1", 0)
    late_ms = (FAILURES_MAX + 1) * FORGIVEN_AFTER_MS
    for number in range(10):
        attempts.failed(f"h{number}", late_ms).left()
    assert attempts.is_full("10.0.0.1"), "its failures are forgiven, what it keeps waiting is not"


def test_who_failed_often_is_not_forgotten_among_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts_module, "ADDRESSES_MAX", 3)
    attempts = FailedAttempts(0)
    for _ in range(FREE_FAILURES + 5):
        attempts.failed("10.0.0.1", 0).left()
    for number in range(10):
        attempts.failed(f"h{number}", 2 * FORGIVEN_AFTER_MS).left()
    assert attempts.failed("10.0.0.1", 2 * FORGIVEN_AFTER_MS).delay_ms == LONG_DELAY_MS


def test_INV_SAT3_who_finds_no_place_shares_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever has many addresses fills the places, and guesses with the others as one who never failed."""
    monkeypatch.setattr(attempts_module, "ADDRESSES_MAX", 3)
    attempts = FailedAttempts(100)
    for number in range(3):
        attempts.failed(f"10.0.0.{number}", 0).left()
    delays = [attempts.failed(f"h{number}", 0).delay_ms for number in range(FREE_FAILURES + 1)]
    assert delays == [100] * FREE_FAILURES + [LONG_DELAY_MS]
    for number in range(WAITING_MAX):
        attempts.failed(f"i{number}", 0)
    assert len(attempts._by_address) == 4
    assert attempts.failed("10.0.0.0", 0).delay_ms == 100, "who has a place waits for itself alone"


def test_a_network_of_64_bits_is_one_host() -> None:
    attempts = FailedAttempts(0)
    for number in range(WAITING_MAX):
        attempts.failed(f"2001:db8::{number:x}", 0)
    assert attempts.is_full("2001:db8::ffff")
    assert not attempts.is_full("2001:db8:0:1::1")
    assert not attempts.is_full("no:address")
