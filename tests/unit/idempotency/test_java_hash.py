"""Expected values from the Java language: "".hashCode(), "a".hashCode(), well-known strings."""

import pytest

from idempotency.java_hash import java_string_hash, ledger_shard


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("ab", 97 * 31 + 98),
        ("Aa", 2112),
        ("BB", 2112),  # the textbook collision
        ("hello", 99162322),
        ("Hello, world!", -1880044555),
        ("polygenelubricants", -(1 << 31)),  # the textbook string that hashes to Integer.MIN_VALUE
        ("\u00e9", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),  # two UTF-16 code units
    ],
)
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


# Holds INV-J1.
def test_C13_shard_of_the_minimum_hash_is_zero() -> None:
    assert ledger_shard("polygenelubricants", 7) == 0


# Holds INV-J1.
def test_C13_shard_is_abs_hash_modulo_count() -> None:
    assert ledger_shard("Hello, world!", 4) == 1880044555 % 4
    assert ledger_shard("a", 50) == 47
