"""Things that a request names, or that an answer would list: judged by name, whether they are there or not (INV-HAZ4, INV-HAZ5)."""

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from region_broker.handlers.dispatch.authorizing import (
    cluster_operations,
    may_read_topic,
    may_topic,
    operations_of,
    sees_topic,
)
from region_broker.handlers.dispatch.operations import bits
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import (
    CLUSTER_NAME,
    Access,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.authorizer import AclAuthorizer
from region_broker.security.identity import Identity

THERE, GONE = UUID(int=1), UUID(int=2)
TOPIC, CLUSTER = ResourceType.TOPIC, ResourceType.CLUSTER


def asking(*allowed: tuple[ResourceType, str, Operation]) -> tuple[Any, list[str]]:
    """Return what Alice's requests come with, who may do that alone, and what is told of refusals."""
    acls = [
        Acl(kind, PatternType.LITERAL, name, "User:alice", "*", operation, Permission.ALLOW)
        for kind, name, operation in allowed
    ]
    access = Access(acls=tuple(sorted(acls)))
    told: list[str] = []
    topics = {THERE: SimpleNamespace(name="orders")}
    services = SimpleNamespace(
        authorizer=AclAuthorizer(lambda: access, frozenset({"User:admin"})),
        metadata=SimpleNamespace(image=SimpleNamespace(topic_by_id=topics.get)),
        on_denied=lambda _ctx, _operation, _kind, name: told.append(name),
    )
    return SimpleNamespace(services=services, identity=Identity("User:alice")), told


def test_a_topic_is_judged_by_its_name_and_one_that_is_not_there_is_not_seen() -> None:
    ctx, told = asking((TOPIC, "orders", Operation.READ))
    for topic in ("orders", THERE):
        assert may_topic(ctx, Operation.READ, topic)
        assert sees_topic(ctx, Operation.READ, topic)
        assert may_read_topic(ctx.services, ctx.identity, topic)
    assert sees_topic(ctx, Operation.READ, GONE) is False
    assert sees_topic(ctx, Operation.READ, None) is False
    assert may_topic(ctx, Operation.READ, GONE), "there is nothing to be judged"
    assert told == []
    ctx, told = asking((TOPIC, "other", Operation.READ))
    for topic in ("orders", THERE):
        assert not sees_topic(ctx, Operation.READ, topic)
        assert not may_read_topic(ctx.services, ctx.identity, topic)
        assert told == [], "who is left out is not told of"
        assert not may_topic(ctx, Operation.READ, topic)
        assert told.pop() == "orders"


def test_KIP_430_operations_are_those_that_are_allowed() -> None:
    ctx = cast("RequestContext", asking((CLUSTER, CLUSTER_NAME, Operation.CREATE))[0])
    assert cluster_operations(ctx) == 0, "who may not describe the cluster is told nothing of it"
    assert operations_of(ctx, CLUSTER, CLUSTER_NAME) == bits(Operation.CREATE)
    ctx = cast("RequestContext", asking((CLUSTER, CLUSTER_NAME, Operation.ALTER))[0])
    assert cluster_operations(ctx) == bits(Operation.ALTER, Operation.DESCRIBE)
