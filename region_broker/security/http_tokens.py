"""Tokens of the HTTP port: named secrets with a role each, kept in a file as keyed hashes.

INV-HTK1  the file holds nothing that a request can be made with: of each token its public id, a salt, and HMAC-SHA256 of the secret
          under it. A secret has 256 bits of chance, so nothing slower is needed
INV-HTK2  an unknown id costs the same hash and the same comparison in constant time as a known one
INV-HTK3  a file that cannot be used (any more) never adds to who may come in: what it said last goes on, and that is told
A token is written `tmt_<id>_<secret>`, so that scanners of logs and repositories know one when they see it.
Not here: what a role may do (`http_api.needs`), the file's bytes (`ports.system.watched_file`), the command (`cli.token`).
"""

import base64
import binascii
import enum
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

TOKEN_COUNT_MAX: Final = 1_000
FILE_BYTES_MAX: Final = 1 << 20
TOKEN_TYPE: Final = "Token"  # noqa: S105 -- a kind of principals
"""The type of the principals of tokens (`Token:grafana`); no user of Kafka's has it."""
_ID_BITS: Final = 48
_SECRET_BITS: Final = 256
_SALT_BITS: Final = 128
_TOKEN: Final = re.compile(r"tmt_([0-9a-f]{12})_([A-Za-z0-9_-]{43})", re.ASCII)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_NOBODYS_SALT: Final = bytes(16)
_NOBODYS_HASH: Final = bytes(32)


class Role(enum.StrEnum):
    """What a token is for; each may what those before it may."""

    METRICS = "metrics"
    READER = "reader"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: "Role") -> bool:
        """Return whether this one may what `other` may."""
        return _RANKS[self] >= _RANKS[other]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


class DrawsBits(Protocol):
    """Chance, as far as it is needed here."""

    def randbits(self, bit_count: int) -> int:
        """Return an integer of `bit_count` random bits."""
        ...


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a token (INV-HTK1). Times are wall ms; `expires_wall_ms` 0: never."""

    name: str
    role: Role
    id: str
    salt: bytes
    hash: bytes
    created_wall_ms: int = 0
    expires_wall_ms: int = 0

    def __repr__(self) -> str:
        """Say whose it is, and nothing of the hash."""
        return f"TokenRow({self.name!r}, {self.role.value!r})"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tokens: list[TokenRow]


class TokensUnusable(Exception):
    """A file of tokens that is none; the text says why, and quotes nothing of it."""


def made_token(
    name: str, role: Role, chance: DrawsBits, now_wall_ms: int, expires_wall_ms: int = 0
) -> tuple[str, TokenRow]:
    """Return a new token, which is known to nobody else and kept nowhere, and the row to keep; raises `TokensUnusable` for a bad name."""
    if not _NAME.fullmatch(name):
        raise TokensUnusable(
            f"{name!r} is no name: letters, digits, dot, dash and underscore, 64 at most"
        )
    token_id = f"{chance.randbits(_ID_BITS):012x}"
    secret = _text(chance.randbits(_SECRET_BITS).to_bytes(_SECRET_BITS // 8, "big"))
    salt = chance.randbits(_SALT_BITS).to_bytes(_SALT_BITS // 8, "big")
    row = TokenRow(
        name=name, role=role, id=token_id, salt=salt, hash=_hashed(salt, secret),
        created_wall_ms=now_wall_ms, expires_wall_ms=expires_wall_ms,
    )  # fmt: skip
    return f"tmt_{token_id}_{secret}", row


def rows_of(data: bytes) -> list[TokenRow]:
    """Return what a file holds; raises `TokensUnusable`."""
    if len(data) > FILE_BYTES_MAX:
        raise TokensUnusable(f"it has more than {FILE_BYTES_MAX} bytes")
    try:
        rows = msgspec.json.decode(data, type=_File).tokens
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, binascii.Error) as error:
        raise TokensUnusable(
            f"it is not what `tidemark token create` writes ({type(error).__name__})"
        ) from error
    if len(rows) > TOKEN_COUNT_MAX:
        raise TokensUnusable(f"it has {len(rows)} tokens, and {TOKEN_COUNT_MAX} are the most")
    for what, values in (("name", [row.name for row in rows]), ("id", [row.id for row in rows])):
        if len(set(values)) != len(values):
            raise TokensUnusable(f"two tokens have the same {what}")
    return rows


def file_of(rows: Iterable[TokenRow]) -> bytes:
    """Return the bytes of a file with these, by name."""
    kept = sorted(rows, key=lambda row: row.name)
    return msgspec.json.format(msgspec.json.encode(_File(kept))) + b"\n"


class HttpTokens:
    """Knows the tokens of one file; `look` is called before each question and reads it again where it has changed."""

    def __init__(self, look: Callable[[], bytes | None], tell: Callable[[str], None]) -> None:
        """`look`: the file's bytes where they are others than at the last call, else None; raises OSError. `tell`: INV-HTK3."""
        self._look = look
        self._tell = tell
        self._told = ""
        self._by_id: Mapping[str, TokenRow] = {}

    def look(self) -> None:
        """Take over what the file says now (INV-HTK3)."""
        try:
            data = self._look()
            if data is not None:
                self._by_id = {row.id: row for row in rows_of(data)}
                self._told = ""
        except (TokensUnusable, OSError) as error:
            why = (error.strerror or "OSError") if isinstance(error, OSError) else str(error)
            if why != self._told:
                self._told = why
                self._tell(why)

    def row_of(self, token: str, now_wall_ms: int) -> TokenRow | None:
        """Return the row of a token that counts now, None for every other text (INV-HTK2)."""
        found = _TOKEN.fullmatch(token)
        token_id, secret = found.groups() if found else ("", "")
        row = self._by_id.get(token_id)
        salt, kept = (_NOBODYS_SALT, _NOBODYS_HASH) if row is None else (row.salt, row.hash)
        is_right = hmac.compare_digest(_hashed(salt, secret), kept)
        if row is None or not is_right:
            return None
        is_over = row.expires_wall_ms and row.expires_wall_ms <= now_wall_ms
        return None if is_over else row


def _hashed(salt: bytes, secret: str) -> bytes:
    return hmac.new(salt, secret.encode(), hashlib.sha256).digest()


def _text(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).rstrip(b"=").decode()
