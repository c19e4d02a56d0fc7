"""PLAIN as RFC 4616 writes it (INV-SPL1)."""

import pytest

from region_broker.security.sasl import saslprep
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


@pytest.mark.parametrize("sent", ["\0{}\0x", "{}\0tim\0x"], ids=["name", "other name"])
def test_INV_SPN1_a_name_that_is_longer_than_any_is_looked_for_in_no_table(
    monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    """Each of these letters becomes 18: a message of 4 kB held the event loop for 0.1 s."""
    looked_for: list[str] = []
    monkeypatch.setattr(saslprep, "_PROHIBITED", (looked_for.append,))
    with pytest.raises(LoginRefused):
        read_plain(sent.format("\ufdfa" * 1_300).encode())
    assert looked_for == []


def test_INV_SPN1_a_name_has_as_many_letters_as_a_user_may_have() -> None:
    assert read_plain(f"\0{'é' * 249}\0x".encode()).user == "é" * 249
    with pytest.raises(LoginRefused):
        read_plain(f"\0{'é' * 250}\0x".encode())


def test_a_password_is_not_shown() -> None:
    assert "geheim" not in repr(read_plain(b"\0tim\0geheim"))
