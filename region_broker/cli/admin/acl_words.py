"""ACLs as words: how `tidemark acl` reads and shows principals, operations and resources; decided without asking anybody.

A resource is TYPE:NAME (`topic:orders`, `group:billing`, `transactional-id:pay`), `TYPE:*` for all of a type, or `cluster`.
Not here: asking a broker (`acl`), what ACLs mean (`security.authorizer`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address
from typing import Final

from region_broker.controller.near_words import nearest
from region_broker.security.access import (
    CLUSTER_NAME,
    WILDCARD,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.authorizer import PrincipalRefused, checked_principal

ANY_HOST: Final = "*"
TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "cluster": ResourceType.CLUSTER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}
"""What librdkafka can ask about; ACLs of delegation tokens and users are made by Kafka's own tools."""
_NAMES: Final = {
    **{kind: name for name, kind in TYPES.items()},
    ResourceType.DELEGATION_TOKEN: "delegation-token",
    ResourceType.USER: "user",
}
OPERATIONS: Final = {
    each.name.lower().replace("_", "-"): each
    for each in Operation
    if each is not Operation.ANY and each <= Operation.IDEMPOTENT_WRITE
}


class WordError(ValueError):
    """A word that means nothing here; the text says what would."""


@dataclass(frozen=True, slots=True)
class Resource:
    """What an ACL is about, or is asked about."""

    resource_type: ResourceType
    name: str

    @property
    def shown(self) -> str:
        """Return it as it is written."""
        return shown_resource(self.resource_type, self.name)


def principal_of(word: str) -> str:
    """Return a principal; a name alone is a user's. Raises `WordError`."""
    try:
        return checked_principal(word if ":" in word else f"User:{word}")
    except PrincipalRefused as refused:
        raise WordError(str(refused)) from refused


def operations_of(words: str) -> list[Operation]:
    """Return operations, which stand with commas between them; raises `WordError`."""
    found = []
    for word in words.split(","):
        name = word.strip().lower().replace("_", "-")
        if name not in OPERATIONS:
            raise WordError(
                f"{word!r} is no operation{nearest(name, OPERATIONS)} (there are: {', '.join(OPERATIONS)})"
            )
        found.append(OPERATIONS[name])
    return list(dict.fromkeys(found))


def resource_of(word: str) -> Resource:
    """Return a resource; raises `WordError`."""
    kind, colon, name = word.partition(":")
    kind = kind.lower().replace("_", "-")
    if kind not in TYPES:
        raise WordError(
            f"{word!r} is no resource{nearest(kind, TYPES)} (write topic:NAME, group:NAME, transactional-id:NAME, or cluster)"
        )
    resource_type = TYPES[kind]
    if resource_type is ResourceType.CLUSTER:
        if name not in ("", CLUSTER_NAME):
            raise WordError(f"there is one cluster: write cluster, not {word!r}")
        return Resource(resource_type, CLUSTER_NAME)
    if not colon or not name:
        raise WordError(f"{word!r} names no {kind}: write {kind}:NAME, or {kind}:* for all of them")
    return Resource(resource_type, name)


def acls_of(
    principal: str, operations: Sequence[Operation], resource: Resource, *, host: str, is_prefix: bool,
    is_deny: bool,
) -> list[Acl]:  # fmt: skip
    """Return an ACL for each operation; raises `WordError` for what would name nothing."""
    if is_prefix and resource.resource_type is ResourceType.CLUSTER:
        raise WordError("the cluster has no names to begin with: leave --prefixed out")
    if is_prefix and resource.name == WILDCARD:
        raise WordError(f"{resource.shown} is all of them already: leave --prefixed out")
    return [
        Acl(
            resource.resource_type, PatternType.PREFIXED if is_prefix else PatternType.LITERAL,
            resource.name, principal, host, operation, Permission.DENY if is_deny else Permission.ALLOW,
        )
        for operation in operations
    ]  # fmt: skip


def host_of(word: str) -> str:
    """Return a host as nodes know clients by it; raises `WordError` for what no client ever comes from."""
    if word == ANY_HOST:
        return word
    try:
        address = ip_address(word)
    except ValueError as error:
        raise WordError(
            f"{word!r} is no IP address: nodes know clients by their addresses alone, no names and no networks"
        ) from error
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)  # INV-SID2


def shown_resource(resource_type: ResourceType, name: str) -> str:
    """Return a resource as it is written here."""
    kind = _NAMES[resource_type]
    return kind if resource_type is ResourceType.CLUSTER else f"{kind}:{name}"


def shown_operation(operation: Operation) -> str:
    """Return an operation as it is written here."""
    return operation.name.lower().replace("_", "-")


def rows_of(acls: Iterable[Acl]) -> list[dict[str, str]]:
    """Return ACLs as rows, those of one principal together."""
    order = sorted(acls, key=lambda acl: (acl.principal, acl))
    return [row_of(acl) for acl in order]


def row_of(acl: Acl) -> dict[str, str]:
    """Return one ACL as a row."""
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": shown_operation(acl.operation),
        "resource": shown_resource(acl.resource_type, acl.name),
        "pattern": acl.pattern_type.name.lower(),
        "host": acl.host,
    }
