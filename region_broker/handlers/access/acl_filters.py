"""Which ACLs a filter means, and how they are told: shared by DescribeAcls, CreateAcls and DeleteAcls.

INV-HAF1 while no access is in force there is no authorizer for who asks: SECURITY_DISABLED, as Kafka says without one. So nobody makes an ACL
         that locks out all, himself included: who is to be in force first is said by `super_users`, a user's key, or a listener
A name of None matches every name; of MATCH all patterns that a resource of that name falls under (KIP-290).
Source: AclApis.scala, ResourcePatternFilter.java, AccessControlEntryFilter.java.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.security.access import (
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.wire.cooperative_yield import CooperativeYield

SECURITY_DISABLED: Final = ErrorCode.security_disabled
NO_AUTHORIZER: Final = "No Authorizer is configured."


class Malformed(Exception):
    """What is asked makes no sense to Kafka either; the text says why."""


@dataclass(frozen=True, slots=True)
class AclFilter:
    """Which ACLs are meant; `ANY` and None leave open."""

    resource_type: ResourceType
    pattern_type: PatternType
    name: str | None
    principal: str | None
    host: str | None
    operation: Operation
    permission: Permission

    @classmethod
    def of(cls, asked: Any) -> "AclFilter":
        """Read a filter of a request; raises `Malformed` for numbers that nobody knows."""
        return cls(
            known(ResourceType, int(asked.resource_type_filter)),
            known(PatternType, int(asked.pattern_type_filter)),
            asked.resource_name_filter,
            asked.principal_filter,
            asked.host_filter,
            known(Operation, int(asked.operation)),
            known(Permission, int(asked.permission_type)),
        )

    def matches(self, acl: Acl) -> bool:
        """Return whether an ACL is meant."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and (self.principal is None or self.principal == acl.principal)
            and (self.host is None or self.host == acl.host)
            and self.operation in (Operation.ANY, acl.operation)
            and self.permission in (Permission.ANY, acl.permission)
            and self._matches_pattern(acl)
        )

    def _matches_pattern(self, acl: Acl) -> bool:
        pattern_type, name = self.pattern_type, self.name
        if pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        if name is None or name == acl.name:
            return True
        if pattern_type is not PatternType.MATCH:
            return False
        if acl.pattern_type is PatternType.PREFIXED:
            return name.startswith(acl.name)
        return acl.name == WILDCARD

    @property
    def only(self) -> Acl | None:
        """Return the one ACL that can be meant, None where there may be several."""
        if self.name is None or self.principal is None or self.host is None:
            return None
        if self.pattern_type in (PatternType.ANY, PatternType.MATCH):
            return None
        if self.resource_type is ResourceType.ANY or self.operation is Operation.ANY:
            return None
        if self.permission is Permission.ANY:
            return None
        return Acl(
            self.resource_type, self.pattern_type, self.name, self.principal, self.host,
            self.operation, self.permission,
        )  # fmt: skip


async def matching(acls: Sequence[Acl], asked: AclFilter, yielding: CooperativeYield) -> list[Acl]:
    """Return the ACLs that a filter means, in their order; `acls` are sorted."""
    only = asked.only
    if only is not None:
        at = bisect_left(acls, only)
        return [only] if at < len(acls) and acls[at] == only else []
    found = []
    for acl in acls:
        await yielding.row()
        if asked.matches(acl):
            found.append(acl)
    return found


def known(kind: Any, number: int) -> Any:
    """Return the member of an enum; raises `Malformed`."""
    try:
        return kind(number)
    except ValueError as error:
        raise Malformed(f"{number} is no {kind.__name__}") from error


def told(acl: Acl) -> Mapping[str, Any]:
    """Return an ACL as answers list it beside its pattern."""
    return {
        "principal": acl.principal,
        "host": acl.host,
        "operation": int(acl.operation),
        "permission_type": int(acl.permission),
    }


def pattern(acl: Acl) -> tuple[int, str, int]:
    """Return what an ACL is about."""
    return int(acl.resource_type), acl.name, int(acl.pattern_type)
