"""PLAIN as RFC 4616 writes it (INV-SPL1)."""

import pytest

from region_broker.security.sasl.plain import read_plain
from region_broker.security.sasl.refusals import LoginRefused


def test_the_examples_of_the_rfc() -> None:
    assert read_plain(b"\0tim\0tanstaaftanstaaf") == ("tim", b"tanstaaftanstaaf")
    with pytest.raises(LoginRefused, match="authorization identity"):
        read_plain(b"Ursel\0Kurt\0xipj3plmq")
    assert read_plain(b"Kurt\0Kurt\0xipj3plmq").user == "Kurt"


def test_a_name_is_prepared_before_anybody_looks_it_up() -> None:
    """RFC 4013, section 3: a soft hyphen maps to nothing, and NFKC makes IX of one letter."""
    for sent in ("I\N{SOFT HYPHEN}X", "\N{ROMAN NUMERAL NINE}"):
        assert read_plain(f"\0{sent}\0x".encode()).user == "IX"
        assert read_plain(f"{sent}\0IX\0x".encode()).user == "IX"


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"tim\0x",
        b"\0\0x",
        b"\0tim\0",
        b"\0a\0b\0c",
        b"\0\xff\0x",
        b"\0tim\0" + b"x" * 2000,
        b"u" * 2500 + b"\0" + b"u" * 2500 + b"\0x",
    ],
)
def test_what_is_not_three_texts_is_refused(message: bytes) -> None:
    with pytest.raises(LoginRefused):
        read_plain(message)


def test_a_password_is_not_shown() -> None:
    assert "geheim" not in repr(read_plain(b"\0tim\0geheim"))
