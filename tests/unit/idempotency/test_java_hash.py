"""Expected values from the Java language: "".hashCode(), "a".hashCode(), well-known strings."""

import pytest

from idempotency import java_hash
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


@pytest.mark.parametrize("count", [0, 1, 1_023, 1_024, 1_025, 5_000])
def test_INV_J1_the_hash_of_a_long_name_is_the_sum_that_java_makes_letter_by_letter(
    count: int,
) -> None:
    text = "".join(chr(0x61 + at * 7919 % 0x2000) for at in range(count)) + "\U0001f600"
    units, total = text.encode("utf-16-be"), 0
    for start in range(0, len(units), 2):
        total = (total * 31 + int.from_bytes(units[start : start + 2], "big")) % (1 << 32)
    assert java_string_hash(text) % (1 << 32) == total
    assert -(1 << 31) <= java_string_hash(text) < 1 << 31


def test_INV_J2_a_long_name_is_summed_once_for_all_rows_of_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summed: list[int] = []

    def counting(text: str) -> int:
        summed.append(len(text))
        return 7

    monkeypatch.setattr(java_hash, "java_string_hash", counting)
    names = [f"{letter}{'x' * 32_766}" for letter in "abc"]
    for _ in range(200):
        assert {java_hash.ledger_shard(name, 5) for name in names} == {2}
    assert summed == [32_767] * 3
    java_hash._remembered_long_shard.cache_clear()  # 7 is no hash of theirs


# Holds INV-J1.
def test_C13_shard_of_the_minimum_hash_is_zero() -> None:
    assert ledger_shard("polygenelubricants", 7) == 0


# Holds INV-J1.
def test_C13_shard_is_abs_hash_modulo_count() -> None:
    assert ledger_shard("Hello, world!", 4) == 1880044555 % 4
    assert ledger_shard("a", 50) == 47
