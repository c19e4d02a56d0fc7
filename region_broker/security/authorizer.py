"""Who may do what: Kafka's ACLs, judged as its StandardAuthorizer judges them, and remembered.

INV-AUZ1 a DENY that matches decides, whatever allows beside it; what no ALLOW matches is refused; only super users are not looked at so
INV-AUZ2 an ALLOW of READ, WRITE, DELETE or ALTER allows DESCRIBE, one of ALTER_CONFIGS allows DESCRIBE_CONFIGS, ALL is every operation;
         a DENY denies what it names, and nothing besides
INV-AUZ3 in force as soon as there is an ACL, a user's key, a super user, or a listener that makes clients say who they are; before that
         everything is allowed
INV-AUZ4 what is remembered was decided by the ACLs and super users of now: when either is another, all of it is forgotten; memory has an end
INV-AUZ5 whoever may write to a topic may write to it with a producer id: `allows_any(WRITE, TOPIC)` is true for whom `allows` is for one
INV-AUZ6 a first user does not lock everybody out: none is made while access is not in force, as there is no super user then who could make ACLs
INV-AUZ7 the topic that keeps the audit trail is made, written to, changed or deleted only by who may ALTER the cluster, too: a rule for all topics was not
         meant for that one, nor was one that allows to make or delete all topics, as CREATE and DELETE on the cluster do
The rows of `Access` are sorted, and that order is the index: ACLs of one pattern and principal stand together, so a decision looks at those
that name its resource and its asker alone, however many others there are, and nothing is built when one changes.
Source: StandardAuthorizerData.java (`findAclRule`, `findResult`), Authorizer.java (`authorizeByResourceType`), KIP-290, KIP-679.
Not here: what a request needs (`handlers.dispatch.authorizing`), how ACLs are changed (`handlers.access`).
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, Protocol

from region_broker.security.access import (
    CLUSTER_NAME,
    WILDCARD,
    Access,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.identity import USER_TYPE, Identity, is_same_host, user

REMEMBERED_MAX: Final = 50_000
"""Decisions that are remembered; when there are more, all are forgotten."""
REMEMBERED_NAME_MAX: Final = 300
"""Longer names are decided anew each time: Kafka's topics have 249 characters, groups and transactional ids may be of any length."""
EVERYBODY: Final = user(WILDCARD)
_IMPLY: Final = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}  # fmt: skip
_NOTHING: Final[frozenset[Operation]] = frozenset()
_CHANGES_A_TRAIL: Final = frozenset({
    Operation.CREATE, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALTER_CONFIGS
})  # fmt: skip
_KINDS_MAX: Final = 16
assert len(ResourceType) < _KINDS_MAX


class Why(Enum):
    """What decided."""

    NOT_IN_FORCE = "nothing is configured, so everything is allowed"
    SUPER_USER = "a super user may do everything"
    DENIED = "an ACL denies it"
    ALLOWED = "an ACL allows it"
    NOTHING_ALLOWS = "no ACL allows it"
    KEEPS_TRAIL = (
        "it keeps the audit trail: whoever changes it must be allowed to ALTER the cluster, too"
    )


class Decision(NamedTuple):
    """Whether something is allowed, what decided, and the ACL that did, where one did."""

    allowed: bool
    why: Why
    acl: Acl | None = None


class Authorizer(Protocol):
    """Whom handlers ask."""

    @property
    def in_force(self) -> bool:
        """Return whether anything may be refused (INV-AUZ3)."""
        ...

    @property
    def users_would_lock_out(self) -> bool:
        """Return whether a first user would put access in force while there is nobody who may make an ACL (INV-AUZ6)."""
        ...

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether `identity` may do `operation` on the resource of that type and name."""
        ...

    def allows_any(
        self, identity: Identity, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """Return whether it may do that on one resource of that type at least."""
        ...

    def changes_trail(self, operation: Operation, topic: str) -> bool:
        """Return whether an operation on a topic changes where the audit trail is kept (INV-AUZ7)."""
        ...


class AllowAll:
    """Refuses nothing: of a node without any access, and of tests that are not about it."""

    in_force: bool = False
    users_would_lock_out: bool = False

    def allows(
        self, _identity: Identity, _operation: Operation, _resource_type: ResourceType, _name: str
    ) -> bool:
        """See `Authorizer`."""
        return True

    def allows_any(
        self, _identity: Identity, _operation: Operation, _resource_type: ResourceType
    ) -> bool:
        """See `Authorizer`."""
        return True

    def changes_trail(self, _operation: Operation, _topic: str) -> bool:
        """See `Authorizer`."""
        return False


class PrincipalRefused(ValueError):
    """A text that names no principal."""


def principals_of(text: str) -> frozenset[str]:
    """Return the principals of a list such as `User:admin;User:ops`, as Kafka's `super.users`; raises `PrincipalRefused`."""
    named = [each.strip() for each in text.split(";")]
    return frozenset(checked_principal(each) for each in named if each)


def checked_principal(text: str) -> str:
    """Return `text` if it is TYPE:NAME, neither of them empty; raises `PrincipalRefused`."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise PrincipalRefused(
            f"{text!r} is no principal: write TYPE:NAME, such as {USER_TYPE}:alice"
        )
    return text


# --- the rules, without memory --------------------------------------------------------------------


def decide(
    acls: Sequence[Acl], principal: str, host: str, operation: Operation, resource_type: ResourceType,
    name: str,
) -> Decision:  # fmt: skip
    """Return what `acls`, which are sorted, say of somebody who is no super user (INV-AUZ1, INV-AUZ2)."""
    allowing: Acl | None = None
    for acl in _about(acls, principal, resource_type, name):
        if not _is_from(acl, host) or not _covers(acl, operation):
            continue
        if acl.permission is not Permission.ALLOW:
            return Decision(allowed=False, why=Why.DENIED, acl=acl)
        allowing = allowing or acl
    if allowing is not None:
        return Decision(allowed=True, why=Why.ALLOWED, acl=allowing)
    return Decision(allowed=False, why=Why.NOTHING_ALLOWS)


def _is_from(acl: Acl, host: str) -> bool:
    return acl.host in (WILDCARD, host) or is_same_host(acl.host, host)


def _covers(acl: Acl, operation: Operation) -> bool:
    if acl.operation is operation or acl.operation is Operation.ALL:
        return True
    return acl.permission is Permission.ALLOW and acl.operation in _IMPLY.get(operation, _NOTHING)


def _about(
    acls: Sequence[Acl], principal: str, resource_type: ResourceType, name: str
) -> Iterator[Acl]:
    """Yield the ACLs that name a resource, and this principal or everybody."""
    literal = PatternType.LITERAL
    for who in _who(principal):
        yield from _rows(acls, resource_type, literal, name, who)
        if name != WILDCARD:
            yield from _rows(acls, resource_type, literal, WILDCARD, who)
    for prefix in _prefixes(acls, resource_type, name):
        for who in _who(principal):
            yield from _rows(acls, resource_type, PatternType.PREFIXED, prefix, who)


def _who(principal: str) -> tuple[str, ...]:
    return (principal,) if principal == EVERYBODY else (principal, EVERYBODY)


def _rows(
    acls: Sequence[Acl], resource_type: ResourceType, pattern_type: PatternType, name: str, who: str
) -> Iterator[Acl]:
    """Yield the ACLs of one pattern and principal, which stand together."""
    at = bisect_left(acls, _first(resource_type, pattern_type, name, who))
    while at < len(acls):
        acl = acls[at]
        if (
            acl.principal != who
            or acl.name != name
            or acl.pattern_type is not pattern_type
            or acl.resource_type is not resource_type
        ):
            return
        yield acl
        at += 1


def _prefixes(acls: Sequence[Acl], resource_type: ResourceType, name: str) -> Iterator[str]:
    """Yield the prefixes that are there and that `name` begins with, the longest first.

    The greatest prefix that is not greater than the name is one of it; or what both begin with is as long as any other that is.
    """
    prefixed = PatternType.PREFIXED
    start = bisect_left(acls, _first(resource_type, prefixed, "", ""))
    limit = name
    while True:
        behind = bisect_left(acls, _first(resource_type, prefixed, limit + "\0", ""), lo=start)
        if behind == start:
            return
        found = acls[behind - 1].name
        common = _common(found, name)
        if common == found:
            yield found
            common = found[:-1]
        if not common:
            return
        limit = common


def _common(one: str, other: str) -> str:
    """Return what both begin with."""
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)
    return min(one, other, key=len) if length is None else one[:length]


def _first(
    resource_type: ResourceType, pattern_type: PatternType, name: str, principal: str
) -> Acl:
    """Return what no ACL of that pattern and principal stands before."""
    return Acl(resource_type, pattern_type, name, principal, "", Operation.ANY, Permission.ANY)


def decide_any(
    acls: Sequence[Acl], principal: str, host: str, operation: Operation, resource_type: ResourceType
) -> bool:  # fmt: skip
    """Return whether some resource of a type may exist on which `operation` is allowed (KIP-679); `acls` are sorted."""
    who = _who(principal)
    start = bisect_left(acls, _first(resource_type, PatternType.ANY, "", ""))
    stop = bisect_right(acls, resource_type, key=lambda acl: acl.resource_type)
    denied: tuple[set[str], set[str]] = (set(), set())
    allowed: list[Acl] = []
    for acl in [each for each in acls[start:stop] if each.principal in who]:
        if not _is_from(acl, host):
            continue
        if acl.operation is not operation and acl.operation is not Operation.ALL:
            continue
        if acl.permission is Permission.ALLOW:
            allowed.append(acl)
        else:
            denied[acl.pattern_type is PatternType.PREFIXED].add(acl.name)
    literal, prefixed = denied
    if WILDCARD in literal:
        return False
    return any(not _is_dominated(acl, literal, prefixed) for acl in allowed)


def _is_dominated(acl: Acl, literal: set[str], prefixed: set[str]) -> bool:
    """Return whether a DENY covers all that an ALLOW names."""
    if acl.pattern_type is PatternType.LITERAL:
        if acl.name == WILDCARD:
            return False
        if acl.name in literal:
            return True
    return any(acl.name.startswith(prefix) for prefix in prefixed)


# --- the same, remembered -------------------------------------------------------------------------


def nobody_logs_in() -> bool:
    """Return False: no listener makes clients say who they are."""
    return False


class AclAuthorizer:
    """Decides by the ACLs of the metadata, and remembers (INV-AUZ4); one per node."""

    def __init__(
        self,
        access: Callable[[], Access],
        super_users: frozenset[str] = frozenset(),
        authenticates: Callable[[], bool] = nobody_logs_in,
        trail_topic: str = "",
    ) -> None:
        """Take ACLs from what `access` returns, asked each time; `authenticates`: whether a listener makes clients say who they are.

        `trail_topic`: the topic that keeps the audit trail; empty: none does.
        """
        self._access = access
        self._authenticates = authenticates
        self._super_users = super_users
        self._trail_topic = trail_topic
        self._seen: Access | None = None
        self._acls: Sequence[Acl] = ()
        self._has_any = False
        self._remembered: dict[tuple[int, str, str, str], bool] = {}

    @property
    def in_force(self) -> bool:
        """See `Authorizer`."""
        access = self._access()
        if access is not self._seen:
            self._begin(access)
        return self._has_any or self._authenticates()

    @property
    def users_would_lock_out(self) -> bool:
        """See `Authorizer`: a super user alone would have put it in force."""
        return not self.in_force

    @property
    def super_users(self) -> frozenset[str]:
        """Return who may do everything."""
        return self._super_users

    @super_users.setter
    def super_users(self, principals: frozenset[str]) -> None:
        self._super_users = principals
        self._seen = None

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """See `Authorizer`."""
        access = self._access()
        if access is not self._seen:
            self._begin(access)
        key = (operation * _KINDS_MAX + resource_type, identity.principal, identity.host, name)
        found = self._remembered.get(key)
        if found is None:
            found = self.decision(identity, operation, resource_type, name).allowed
            self._remember(key, found)
        return found

    def allows_any(
        self, identity: Identity, operation: Operation, resource_type: ResourceType
    ) -> bool:
        """See `Authorizer`."""
        if not self.in_force or identity.principal in self._super_users:
            return True
        # Negative: a request may name any text, and is judged of that one by another number.
        kind = ~(operation * _KINDS_MAX + resource_type)
        key = (kind, identity.principal, identity.host, "")
        found = self._remembered.get(key)
        if found is None:
            found = decide_any(
                self._acls, identity.principal, identity.host, operation, resource_type
            )
            self._remember(key, found)
        return found

    def decision(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> Decision:
        """Return what decides, without looking into the memory."""
        if not self.in_force:
            return Decision(allowed=True, why=Why.NOT_IN_FORCE)
        if identity.principal in self._super_users:
            return Decision(allowed=True, why=Why.SUPER_USER)
        asker = (self._acls, identity.principal, identity.host)
        found = decide(*asker, operation, resource_type, name)
        of_topic = resource_type is ResourceType.TOPIC
        if found.allowed and of_topic and self.changes_trail(operation, name):
            above = decide(*asker, Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME)
            if not above.allowed:
                return Decision(allowed=False, why=Why.KEEPS_TRAIL, acl=above.acl)
        return found

    def changes_trail(self, operation: Operation, topic: str) -> bool:
        """See `Authorizer`."""
        trail = self._trail_topic
        if operation is Operation.CREATE:
            # Another one whose metrics are called so keeps it from being made.
            return topic.replace(".", "_") == trail.replace(".", "_") != ""
        return operation in _CHANGES_A_TRAIL and topic == trail != ""

    def _begin(self, access: Access) -> None:
        """Forget what other ACLs have decided. They are sorted already, and sorting them again costs a look at each; a change of other
        things, as of tokens, leaves the very same ones (INV-SAC4), and what they decided."""
        same = self._seen is not None and access.acls is self._seen.acls
        has_any = bool(access.acls or access.keys or self._super_users)
        if not same:
            self._acls = sorted(access.acls)
        if not same or has_any is not self._has_any:
            self._remembered.clear()
        self._has_any = has_any
        self._seen = access

    def _remember(self, key: tuple[int, str, str, str], found: bool) -> None:
        if len(key[3]) > REMEMBERED_NAME_MAX or not self.in_force:
            return  # it may be in force the next moment, by a listener
        if len(self._remembered) >= REMEMBERED_MAX:
            self._remembered.clear()
        self._remembered[key] = found
