"""Users' keys, ACLs, quotas and delegation tokens as one immutable value: a part of the metadata, the same in all regions.

INV-SAC1  changed in the primary region only; a mirror's is the primary's, as of the tidemark that it shows or newer
INV-SAC2  no secret is here from which somebody could log in: of passwords the salted keys of RFC 5802, of delegation tokens nothing
INV-SAC3  what is here can be told apart by its key alone: an ACL by all of itself, keys by user and mechanism, a quota by its
          entity, a token by its id; so a change is a set of rows that come, and of keys that go
Numbers are Kafka's (ResourceType, PatternType, AclOperation, AclPermissionType of its clients).
Not here: what they mean for a request (`authorizer`), how they are kept (`controller.metadata_tables`), who may change them.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import cached_property
from typing import Final, TypeAlias, TypeVar

import msgspec

ACL_COUNT_MAX: Final = 50_000
KEYS_COUNT_MAX: Final = 50_000
QUOTA_COUNT_MAX: Final = 10_000
TOKEN_COUNT_MAX: Final = 10_000


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

    def keys_of(self, user: str) -> Sequence[ScramKeys]:
        """Return the keys of one user, by their mechanisms; rows are sorted, so nothing is built for that."""
        at = bisect_left(self.keys, (user, ""), key=key_of_keys)
        end = bisect_left(self.keys, (user, LAST_MECHANISM), lo=at, key=key_of_keys)
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
    """Return `access` after `change`, with the very rows of what it does not name; raises `AccessRefused`."""
    acls, keys, quotas, tokens = access.acls, access.keys, access.quotas, access.tokens
    if change.acls_added or change.acls_removed:
        acls = tuple(sorted((set(acls) - set(change.acls_removed)) | set(change.acls_added)))
    if change.keys_put or change.keys_removed:
        put_keys = _put(keys, key_of_keys, change.keys_removed, change.keys_put)
        keys = tuple(sorted(put_keys, key=key_of_keys))
    if change.quotas_put:
        put_quotas = _put(quotas, lambda row: row.entity, (), change.quotas_put)
        quotas = tuple(sorted((row for row in put_quotas if row.limits), key=quota_order))
    if change.tokens_put or change.tokens_removed:
        put_tokens = _put(tokens, _id_of, change.tokens_removed, change.tokens_put)
        tokens = tuple(sorted(put_tokens, key=_id_of))
    result = Access(number=access.number + 1, acls=acls, keys=keys, quotas=quotas, tokens=tokens)
    _check_sizes(result)
    return result


def key_of_keys(row: ScramKeys) -> tuple[str, str]:
    """Return what keys are sorted by: the user, and the mechanism."""
    return row.user, row.mechanism


def in_order(access: Access) -> Access:
    """Return the same rows, sorted by their keys."""
    return Access(
        number=access.number,
        acls=tuple(sorted(access.acls)),
        keys=tuple(sorted(access.keys, key=key_of_keys)),
        quotas=tuple(sorted(access.quotas, key=quota_order)),
        tokens=tuple(sorted(access.tokens, key=_id_of)),
    )


def _id_of(token: DelegationToken) -> str:
    return token.token_id


def quota_order(quota: Quota) -> tuple[tuple[str, bool, str], ...]:
    """Return what quotas are sorted by: a default stands before names."""
    return tuple((kind, name is not None, name or "") for kind, name in quota.entity)


_Row = TypeVar("_Row")


def _put(
    present: Iterable[_Row], key: Callable[[_Row], object], removed: Iterable[object], put: Iterable[_Row]
) -> Iterable[_Row]:  # fmt: skip
    """Return the rows with those that come, in place of those of their key, and without those that go."""
    rows = {key(row): row for row in present}
    for gone in removed:
        rows.pop(gone, None)
    return (rows | {key(row): row for row in put}).values()


def _check_sizes(access: Access) -> None:
    for what, count, most in (
        ("ACLs", len(access.acls), ACL_COUNT_MAX),
        ("keys of users", len(access.keys), KEYS_COUNT_MAX),
        ("quotas", len(access.quotas), QUOTA_COUNT_MAX),
        ("delegation tokens", len(access.tokens), TOKEN_COUNT_MAX),
    ):
        if count > most:
            raise AccessRefused(
                f"there would be {count} {what}, and {most} are the most that metadata keep: remove some first"
            )
