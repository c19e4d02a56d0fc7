"""Tokens of the HTTP port."""

import hashlib
import hmac
import json
import re

import pytest

from region_broker.ports.system.chance import SystemChance
from region_broker.security.http_tokens import (
    TOKEN_COUNT_MAX,
    HttpTokens,
    Role,
    TokensUnusable,
    file_of,
    made_token,
    rows_of,
)

CHANCE = SystemChance()


class Told:
    """A file that can be replaced, and what was told of it."""

    def __init__(self, *said: bytes | OSError | None) -> None:
        self._said = list(said)
        self.told: list[str] = []
        self.tokens = HttpTokens(self._look, self.told.append)

    def _look(self) -> bytes | None:
        found = self._said.pop(0) if self._said else None
        if isinstance(found, OSError):
            raise found
        return found

    def name_of(self, token: str, now_wall_ms: int = 1) -> str:
        row = self.tokens.row_of(token, now_wall_ms)
        return "" if row is None else row.name


def test_INV_HTK1_nothing_in_the_file_is_a_token() -> None:
    token, row = made_token("grafana", Role.METRICS, CHANCE, 5)
    data = file_of([row])
    _, token_id, secret = re.fullmatch(r"(tmt)_(.{12})_(.{43})", token).groups()  # type: ignore[union-attr]
    assert secret.encode() not in data
    (kept,) = json.loads(data)["tokens"]
    assert kept["id"] == token_id
    assert row.hash == hmac.digest(row.salt, secret.encode(), hashlib.sha256)
    assert secret not in repr(row)
    for hidden in (row.hash, row.salt):
        assert repr(hidden) not in repr(row)
    assert kept["hash"] not in repr(row)


def test_INV_HTK2_the_secret_counts_and_not_the_id() -> None:
    token, row = made_token("ops", Role.OPERATOR, CHANCE, 5)
    other, second = made_token("grafana", Role.METRICS, CHANCE, 5)
    told = Told(file_of([row, second]))
    told.tokens.look()
    assert (told.name_of(token), told.name_of(other)) == ("ops", "grafana")
    crossed = f"{token[:16]}_{other[17:]}"
    for wrong in (
        crossed,
        token[:-1],
        f"{token}x",
        token.upper(),
        "",
        "tmt_",
        row.id,
        f"tmt_{'0' * 12}_{token[17:]}",
    ):
        assert told.name_of(wrong) == "", wrong


def test_a_token_ends_when_its_file_says_so() -> None:
    token, row = made_token("ci", Role.ADMIN, CHANCE, 5, expires_wall_ms=100)
    told = Told(file_of([row]))
    told.tokens.look()
    assert (told.name_of(token, 99), told.name_of(token, 100)) == ("ci", "")


def test_INV_HTK3_what_cannot_be_used_adds_nobody_and_is_told_once() -> None:
    token, row = made_token("ops", Role.OPERATOR, CHANCE, 5)
    other, second = made_token("new", Role.ADMIN, CHANCE, 5)
    broken = file_of([row, second]).replace(b'"admin"', b'"root"')
    gone = OSError(13, "Permission denied")
    told = Told(file_of([row]), broken, gone, gone, file_of([second]), gone)
    told.tokens.look()
    assert told.name_of(token) == "ops"
    told.tokens.look()
    assert (told.name_of(token), told.name_of(other)) == ("ops", "")
    told.tokens.look()
    told.tokens.look()
    assert told.told == [
        "it is not what `tidemark token create` writes (ValidationError)",
        "Permission denied",
    ]
    told.tokens.look()
    assert (told.name_of(token), told.name_of(other)) == ("", "new")
    told.tokens.look()
    assert told.told[2:] == ["Permission denied"], "it was right meanwhile"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "is not what"),
        (b'{"tokens": [{"name": "x"}]}', "is not what"),
        (b"[" * 100_000, "is not what"),
        (b" " * ((1 << 20) + 1), "more than"),
    ],
)
def test_files_that_are_none_are_refused(data: bytes, why: str) -> None:
    with pytest.raises(TokensUnusable, match=why):
        rows_of(data)


def test_names_are_told_apart_and_their_number_is_bounded() -> None:
    _, row = made_token("a", Role.READER, CHANCE, 5)
    with pytest.raises(TokensUnusable, match="same name"):
        rows_of(file_of([row, made_token("a", Role.READER, CHANCE, 5)[1]]))
    with pytest.raises(TokensUnusable, match="the most"):
        rows_of(file_of([row] * (TOKEN_COUNT_MAX + 1)))
    for bad in ("", "a b", "a\nb", "-", "x" * 65):
        with pytest.raises(TokensUnusable, match="no name"):
            made_token(bad, Role.READER, CHANCE, 5)


def test_a_role_covers_those_before_it() -> None:
    order = [Role.METRICS, Role.READER, Role.OPERATOR, Role.ADMIN]
    assert list(Role) == order
    for at, role in enumerate(order):
        assert [role.covers(other) for other in order] == [i <= at for i in range(4)]
