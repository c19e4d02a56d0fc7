"""The file of users that one node knows: read whole, or refused with the line that is wrong (INV-SUF2)."""

import codecs

import pytest

from region_broker.security.sasl import users_file
from region_broker.security.sasl.scram_keys import line_of
from region_broker.security.sasl.users_file import UnfitFile, users_in
from tests.fixtures.scram_users import scram_keys

ALICE, BOB = scram_keys("alice", "p"), scram_keys("bob", "p")
STRONG = scram_keys("alice", "p", digest="sha512")


def content(*lines: str) -> bytes:
    return "\n".join(lines).encode()


def test_users_are_known_by_name_and_mechanism() -> None:
    lines = ["# the first users", line_of(ALICE), "", "  ", line_of(STRONG), line_of(BOB)]
    assert users_in(content(*lines), "users.txt") == {
        ("alice", "SCRAM-SHA-256"): ALICE, ("alice", "SCRAM-SHA-512"): STRONG, ("bob", "SCRAM-SHA-256"): BOB,
    }  # fmt: skip


@pytest.mark.parametrize(("before", "end"), [(codecs.BOM_UTF8, "\n"), (b"", "\r\n")])
def test_what_editors_of_other_systems_write_is_taken(before: bytes, end: str) -> None:
    data = before + end.join((line_of(ALICE), line_of(BOB), "")).encode()
    assert list(users_in(data, "users.txt").values()) == [ALICE, BOB]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((line_of(ALICE), "bob SCRAM-SHA-256"), r"line 2 of users\.txt"),
        ((line_of(ALICE), "", line_of(ALICE)), r"line 3 of users\.txt .* a line above"),
        ((" # not at its beginning",), r"line 1 of users\.txt"),
        (("\udcff",), "no UTF-8"),
    ],
)
def test_INV_SUF2_a_line_that_is_not_right_refuses_all(lines: tuple[str, ...], why: str) -> None:
    data = "\n".join(lines).encode("utf-8", "surrogateescape")
    with pytest.raises(UnfitFile, match=why):
        users_in(data, "users.txt")


def test_a_file_of_more_users_than_it_is_for_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(users_file, "FILE_USERS_MAX", 2)
    assert len(users_in(content(line_of(ALICE), line_of(BOB)), "users.txt")) == 2
    with pytest.raises(UnfitFile, match="3 lines of keys, over 2"):
        users_in(content(line_of(ALICE), line_of(BOB), line_of(STRONG)), "users.txt")
