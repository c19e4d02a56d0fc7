"""The deadlines of a group's members: what puts one off, and what does not."""

from uuid import UUID

from region_broker.groups.modern.assignors.assignment import NOTHING
from region_broker.groups.modern.records import ClassicMember, Current, MemberMetadata
from region_broker.groups.modern.sessions import Sessions
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.states import MemberState

SESSION_MS = 45_000
REVOKING = {UUID(int=1): frozenset({0})}


def group(*, member_epoch: int = 1, classic: ClassicMember | None = None) -> ConsumerGroup:
    """Return a group whose member m must give a partition back within 10 s."""
    made = ConsumerGroup("g")
    made.metadata["m"] = MemberMetadata(rebalance_timeout_ms=10_000, classic=classic)
    made.current["m"] = Current(
        member_epoch=member_epoch,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=NOTHING,
        revoking=REVOKING,
    )
    return made


def test_KIP848_heartbeats_do_not_put_off_what_must_be_given_back() -> None:
    sessions = Sessions(SESSION_MS)
    assert sessions.heard(group(), "m", now_ms=0) == 10_000
    assert sessions.heard(group(), "m", now_ms=9_000) == 10_000
    assert sessions.due(now_ms=10_000) == ["m"]
    assert sessions.heard(group(member_epoch=2), "m", now_ms=9_000) == 19_000, "asked for anew"


def test_a_classic_member_has_the_session_that_it_asked_for_and_gives_back_by_joining() -> None:
    sessions = Sessions(SESSION_MS)
    assert sessions.heard(group(classic=ClassicMember(6_000, ())), "m", now_ms=0) == 6_000
    assert sessions.next_deadline_ms() == 6_000


def test_a_join_that_is_awaited_is_not_put_off() -> None:
    sessions = Sessions(SESSION_MS)
    sessions.heard(group(classic=ClassicMember(6_000, ())), "m", now_ms=0)
    assert sessions.expect_join("m", 3_000) == 3_000
    assert sessions.expect_join("m", 5_000) == 3_000
    assert sessions.joined("m", 4_000) == 4_000
    sessions.synced("m")
    assert sessions.next_deadline_ms() == 6_000
