"""Users' keys, ACLs, quotas and delegation tokens as one immutable value: a part of the metadata, the same in all regions.

INV-SAC1  changed in the primary region only; a mirror's is the primary's, as of the tidemark that it shows or newer
INV-SAC2  no secret is here from which somebody could log in: of passwords the salted keys of RFC 5802, of delegation tokens nothing
INV-SAC3  what is here can be told apart by its key alone: an ACL by all of itself, keys by user and mechanism, a quota by its
          entity, a token by its id; so a change is a set of rows that come, and of keys that go
INV-SAC4  each kind has its own most of rows and of bytes. What a change does not touch stays the very same, and a few rows cost no look at all others: it is made on the
          event loop
INV-SAC5  all that clients make of it fits one entry of the metadata's log in a region of several nodes, by which such a mirror takes it over
          (`ACCESS_BYTES_MAX`), and who may make tokens takes no room from ACLs, keys and quotas. It is judged where a change is asked for, not
          where it is carried out: what an older version took stays, works, and may become less
Numbers are Kafka's (ResourceType, PatternType, AclOperation, AclPermissionType of its clients).
Not here: what they mean for a request (`authorizer`), how they are kept (`controller.metadata_tables`), who may change them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

ACL_COUNT_MAX: Final = 50_000
KEYS_COUNT_MAX: Final = 50_000
QUOTA_COUNT_MAX: Final = 10_000
TOKEN_COUNT_MAX: Final = 10_000
BYTES_MAX: Final[dict[str, int]] = {
    "acls": 16 << 20,
    "keys": 12 << 20,
    "quotas": 4 << 20,
    "tokens": 24 << 20,
}
"""Of the rows of each kind, as they are sent. Whoever replays a log judges by it: it stays, as what was taken once is taken again."""
ADMIN_BYTES_MAX: Final = 2560 << 10
"""Of ACLs, keys of users and quotas together, where a client changes them: some 50,000 ACLs, or 14,000 keys (INV-SAC5)."""
TOKEN_BYTES_MAX: Final = 1 << 20
"""Of delegation tokens."""
ACCESS_BYTES_MAX: Final = ADMIN_BYTES_MAX + TOKEN_BYTES_MAX
_FEW_ROWS: Final = 500
"""So many rows are put into their places one by one; for more all are sorted."""


class ResourceType(IntEnum):
    """What an ACL is about."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How an ACL names resources; `ANY` and `MATCH` stand in filters only (KIP-290)."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done to a resource; `ANY` stands in filters only."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether an ACL allows or denies; `ANY` stands in filters only."""

    ANY = 1
    DENY = 2
    ALLOW = 3


LAST_MECHANISM: Final = "\U0010ffff"
"""No name of a mechanism stands behind it."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type `CLUSTER`."""
WILDCARD: Final = "*"
"""As a literal name: every resource; as a host: every address; in `User:*`: everybody."""


class Acl(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One rule: `principal` from `host` may, or may not, do `operation` on what `pattern_type` and `name` say."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str
    principal: str
    host: str
    operation: Operation
    permission: Permission


class ScramKeys(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What is kept of a user's password for one mechanism (RFC 5802): enough to check it, not to log in elsewhere with it."""

    user: str
    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        """Say whose it is, and nothing of the keys: they end in no log."""
        return f"ScramKeys({self.user!r}, {self.mechanism!r}, iterations={self.iterations})"


QuotaEntity: TypeAlias = tuple[tuple[str, str | None], ...]
"""(entity type, name) pairs in the order of their types: `client-id`, `ip`, `user`; None for the name: the default (KIP-546)."""


class Quota(msgspec.Struct, frozen=True, array_like=True):
    """The limits of one entity, by Kafka's names (`producer_byte_rate`, ...); never empty."""

    entity: QuotaEntity
    limits: dict[str, float]


class DelegationToken(msgspec.Struct, frozen=True, array_like=True):
    """A delegation token without its secret, which nodes derive from their own (KIP-48). Times are wall ms."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_wall_ms: int
    expires_wall_ms: int
    ends_wall_ms: int
    """No renewal goes beyond it."""


class Access(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All of it; rows are sorted by their keys. `number` grows with each change."""

    number: int = 0
    acls: tuple[Acl, ...] = ()
    keys: tuple[ScramKeys, ...] = ()
    quotas: tuple[Quota, ...] = ()
    tokens: tuple[DelegationToken, ...] = ()

    @cached_property
    def bytes_by_kind(self) -> Mapping[str, int]:
        """How many bytes the rows of each kind have."""
        return {kind: bytes_of(*getattr(self, kind)) for kind in BYTES_MAX}

    def keys_of(self, user: str) -> Sequence[ScramKeys]:
        """Return the keys of one user, by their mechanisms; rows are sorted, so nothing is built for that."""
        at = bisect_left(self.keys, (user, ""), key=_key_order)
        end = bisect_left(self.keys, (user, LAST_MECHANISM), lo=at, key=_key_order)
        return self.keys[at:end]

    @cached_property
    def quotas_by_entity(self) -> Mapping[QuotaEntity, Mapping[str, float]]:
        """Limits by entity."""
        return {row.entity: row.limits for row in self.quotas}

    @cached_property
    def tokens_by_id(self) -> Mapping[str, DelegationToken]:
        """Tokens by their ids."""
        return {row.token_id: row for row in self.tokens}


NO_ACCESS: Final = Access()
"""Nothing was ever configured."""


class AccessChange(msgspec.Struct, frozen=True, kw_only=True):
    """Rows that come, in place of those of their key, and keys that go; what goes and is not there is no error.

    A quota without limits goes. All of a change takes effect, or nothing of it.
    """

    acls_added: tuple[Acl, ...] = ()
    acls_removed: tuple[Acl, ...] = ()
    keys_put: tuple[ScramKeys, ...] = ()
    keys_removed: tuple[tuple[str, str], ...] = ()
    quotas_put: tuple[Quota, ...] = ()
    tokens_put: tuple[DelegationToken, ...] = ()
    tokens_removed: tuple[str, ...] = ()


class AccessRefused(Exception):
    """A change that would make it too large; the text says what, and what to do."""


def changed(access: Access, change: AccessChange) -> Access:
    """Return `access` after `change`; raises `AccessRefused`."""
    without = [quota_order(row) for row in change.quotas_put if not row.limits]
    limiting = [row for row in change.quotas_put if row.limits]
    made = {
        "acls": _put(access.acls, _itself, change.acls_removed, change.acls_added),
        "keys": _put(access.keys, _key_order, change.keys_removed, change.keys_put),
        "quotas": _put(access.quotas, quota_order, without, limiting),
        "tokens": _put(access.tokens, _token_order, change.tokens_removed, change.tokens_put),
    }
    rows: dict[str, Any] = {kind: put.rows for kind, put in made.items()}
    result = Access(number=access.number + 1, **rows)
    if not any(put.is_sorted_anew for put in made.values()):
        before = access.bytes_by_kind
        # It is a cached property: what was counted is not counted again.
        result.__dict__["bytes_by_kind"] = {
            kind: before[kind] + put.grown_bytes for kind, put in made.items()
        }
    _check_sizes(access, result)
    return result


def bytes_in(access: Access) -> int:
    """Return how many bytes all rows have."""
    return sum(access.bytes_by_kind.values())


def check_room(access: Access, change: AccessChange) -> None:
    """Raise `AccessRefused` for a change of a client's after which not every region could take it over (INV-SAC5)."""
    before, after = access.bytes_by_kind, changed(access, change).bytes_by_kind
    for what, kinds, bytes_max in (
        ("ACLs, keys of users and quotas", ("acls", "keys", "quotas"), ADMIN_BYTES_MAX),
        ("delegation tokens", ("tokens",), TOKEN_BYTES_MAX),
    ):
        size_bytes = sum(after[kind] for kind in kinds)
        if size_bytes > max(bytes_max, sum(before[kind] for kind in kinds)):
            raise AccessRefused(
                f"{what} would have {size_bytes} bytes, and {bytes_max} are the most that a region of several nodes takes over from its"
                " primary: remove some first, or use shorter names, fewer renewers, and prefixes in place of many names"
            )


def in_order(access: Access) -> Access:
    """Return the same rows, sorted by their keys."""
    return Access(
        number=access.number,
        acls=tuple(sorted(access.acls)),
        keys=tuple(sorted(access.keys, key=_key_order)),
        quotas=tuple(sorted(access.quotas, key=quota_order)),
        tokens=tuple(sorted(access.tokens, key=_token_order)),
    )


def quota_order(quota: Quota) -> tuple[tuple[str, bool, str], ...]:
    """Return what quotas are sorted by: a default stands before names."""
    return tuple((kind, name is not None, name or "") for kind, name in quota.entity)


_key_order: Final = attrgetter("user", "mechanism")
_token_order: Final = attrgetter("token_id")
_Row = TypeVar("_Row")


def _itself(row: Acl) -> Acl:
    return row


class _Put(NamedTuple):
    """Rows after a change, by how many bytes they have grown, and whether that is not known, as they were sorted anew."""

    rows: tuple[Any, ...]
    grown_bytes: int = 0
    is_sorted_anew: bool = False


def bytes_of(*rows: object) -> int:
    """Return how many bytes rows have as they are sent, without what holds them together."""
    return sum(len(msgspec.msgpack.encode(row)) for row in rows)


def _put(
    rows: tuple[_Row, ...],
    order: Callable[[_Row], Any],
    removed: Iterable[Any],
    put: Sequence[_Row],
) -> _Put:
    """Return sorted rows without those whose keys are removed, and with others in place of those of their key."""
    removed = list(removed)
    if not removed and not put:
        return _Put(rows)
    if len(removed) + len(put) > _FEW_ROWS:
        by_key = {order(row): row for row in rows}
        for key in removed:
            by_key.pop(key, None)
        by_key |= {order(row): row for row in put}
        return _Put(tuple(sorted(by_key.values(), key=order)), is_sorted_anew=True)
    result, grown_bytes = list(rows), 0
    for key, row in [(key, None) for key in removed] + [(order(row), row) for row in put]:
        at = bisect_left(result, key, key=order)
        if at < len(result) and order(result[at]) == key:
            grown_bytes -= bytes_of(result.pop(at))
        if row is not None:
            result.insert(at, row)
            grown_bytes += bytes_of(row)
    return _Put(tuple(result), grown_bytes)


def _check_sizes(before: Access, access: Access) -> None:
    """Refuse what has grown beyond its most; what only became less is never refused."""
    sizes, sizes_before = access.bytes_by_kind, before.bytes_by_kind
    for kind, what, most in (
        ("acls", "ACLs", ACL_COUNT_MAX),
        ("keys", "keys of users", KEYS_COUNT_MAX),
        ("quotas", "quotas", QUOTA_COUNT_MAX),
        ("tokens", "delegation tokens", TOKEN_COUNT_MAX),
    ):
        count, bytes_max = len(getattr(access, kind)), BYTES_MAX[kind]
        if count > max(most, len(getattr(before, kind))):
            raise AccessRefused(
                f"there would be {count} {what}, and {most} are the most that metadata keep: remove some first"
            )
        if sizes[kind] > max(bytes_max, sizes_before[kind]):
            raise AccessRefused(
                f"{what} would have {sizes[kind]} bytes, and {bytes_max} are the most that metadata keep: remove some first, or use shorter"
                " names"
            )
