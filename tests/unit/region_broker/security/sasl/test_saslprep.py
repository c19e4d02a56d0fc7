"""The examples of RFC 4013, section 3."""

import stringprep

import pytest

from region_broker.security.sasl.saslprep import is_plain, prepared


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        ("\u0007", None),
        ("\u06271", None),
        ("a\u00a0b", "a b"),
    ],
)
def test_the_examples_of_the_rfc(text: str, result: str | None) -> None:
    assert prepared(text) == result
    assert is_plain(text) is (text == result)


def test_what_has_no_character_yet_is_not_plain() -> None:
    assert not is_plain("a\u0221")  # unassigned in Unicode 3.2
    assert not is_plain("")


def test_each_character_of_ascii_is_itself_or_forbidden_as_the_tables_have_it() -> None:
    """RFC 4013, 2.1 to 2.4: of ASCII nothing is mapped, nothing reads from right to left, and controls are forbidden."""
    for char in map(chr, range(128)):
        assert not stringprep.in_table_b1(char)
        assert not stringprep.in_table_d1(char)
        assert prepared(f"a{char}b") == (None if stringprep.in_table_c21(char) else f"a{char}b")
