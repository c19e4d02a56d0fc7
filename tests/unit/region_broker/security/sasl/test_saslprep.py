"""The examples of RFC 4013, section 3."""

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
