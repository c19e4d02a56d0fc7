"""Which ACLs a filter means: AclBindingFilter of Kafka's clients, ResourcePatternFilter.java, KIP-290 ("MATCH")."""

from dataclasses import replace
from typing import Any

import pytest

from region_broker.handlers.access.acl_filters import AclFilter, matching
from region_broker.security.access import Acl, Operation, PatternType, Permission, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield

ONE = Acl(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:alice", "10.0.0.1", Operation.READ,
    Permission.DENY,
)  # fmt: skip
EXACT = AclFilter(
    ResourceType.TOPIC, PatternType.LITERAL, "orders", "User:alice", "10.0.0.1", Operation.READ,
    Permission.DENY,
)  # fmt: skip
OPEN: dict[str, Any] = {
    "resource_type": ResourceType.ANY, "pattern_type": PatternType.ANY, "name": None, "principal": None, "host": None,
    "operation": Operation.ANY, "permission": Permission.ANY,
}  # fmt: skip
OTHERS: dict[str, Any] = {
    "resource_type": ResourceType.GROUP, "pattern_type": PatternType.PREFIXED, "name": "order", "principal": "User:bob",
    "host": "*", "operation": Operation.WRITE, "permission": Permission.ALLOW,
}  # fmt: skip


async def found(asked: AclFilter, *acls: Acl) -> list[Acl]:
    return await matching(sorted(acls), asked, CooperativeYield())


async def test_a_filter_that_says_all_means_that_one_or_none() -> None:
    assert await found(EXACT, ONE) == [ONE]
    for field, value in OTHERS.items():
        assert await found(replace(EXACT, **{field: value}), ONE) == [], field


@pytest.mark.parametrize("field", OPEN)
async def test_what_a_filter_leaves_open_may_be_anything_and_the_rest_may_not(field: str) -> None:
    asked = replace(EXACT, **{field: OPEN[field]})
    other = ONE.__class__(**{name: getattr(ONE, name) for name in ONE.__struct_fields__} | {field: OTHERS[field]})  # fmt: skip
    assert await found(asked, ONE, other) == sorted([ONE, other])
    for named, value in OTHERS.items():
        if named != field:
            assert await found(replace(asked, **{named: value}), ONE) == [], named


async def test_match_means_whatever_counts_for_a_resource_of_that_name() -> None:
    def about(how: PatternType, name: str) -> Acl:
        return Acl(
            ResourceType.TOPIC, how, name, "User:alice", "*", Operation.READ, Permission.ALLOW
        )

    literal, prefixed = PatternType.LITERAL, PatternType.PREFIXED
    counts = [
        about(literal, "*"),
        about(literal, "orders"),
        about(prefixed, "or"),
        about(prefixed, "orders"),
    ]
    others = [about(literal, "order"), about(prefixed, "orders-"), about(prefixed, "*")]
    asked = AclFilter(ResourceType.TOPIC, PatternType.MATCH, "orders", "User:alice", "*", Operation.READ, Permission.ALLOW)  # fmt: skip
    assert await found(asked, *counts, *others) == sorted(counts)
    asked = replace(asked, pattern_type=PatternType.ANY)
    assert await found(asked, *counts, *others) == sorted([counts[1], counts[3]])
