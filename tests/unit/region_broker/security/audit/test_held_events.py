"""What a node hears before its audit trail is open."""

from region_broker.security.audit.events import Actor, AuditEvent, Kind, Outcome
from region_broker.security.audit.held_events import KINDS_MAX, MORE, OF_ONE_MAX, HeldEvents
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.node_logs import ManualClock


def wrong_login(user: str, host: str) -> AuditEvent:
    actor = Actor(principal=f"User:{user}", host=host)
    return AuditEvent(kind=Kind.LOGIN, operation="login", outcome=Outcome.REFUSED, actor=actor)


def test_INV_ARH1_equal_ones_are_one_with_a_count_and_are_told_once() -> None:
    held, trail = HeldEvents(ManualClock()), ToldTrail()
    for _ in range(3):
        held.record(wrong_login("alice", "192.0.2.1"))
    held.record(wrong_login("bob", "192.0.2.1"))
    held.tell(trail)
    held.tell(trail)
    assert [(each.actor.principal, each.count) for each in trail.told] == [
        ("User:alice", 3), ("User:bob", 1),
    ]  # fmt: skip
    assert all("first_at_ms" in each.details for each in trail.told)


def test_INV_ARH1_what_one_network_floods_hides_nobody_else_and_is_counted() -> None:
    held, trail = HeldEvents(ManualClock()), ToldTrail()
    for number in range(10_000):
        held.record(wrong_login(f"user-{number}", "192.0.2.1"))
    held.record(wrong_login("alice", "198.51.100.7"))
    held.tell(trail)
    assert len(trail.told) == OF_ONE_MAX + 2 < KINDS_MAX
    [more] = [each for each in trail.told if each.operation == MORE]
    assert more.count == 10_000 - OF_ONE_MAX
    assert trail.told[-1].actor.principal == "User:alice"
