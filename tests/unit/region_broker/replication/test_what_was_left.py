"""What a leader commits of older leader epochs where a topic asks for more nodes than are in sync (INV-RPL14)."""

from region_broker.replication.effects import HighWatermark
from region_broker.replication.events import LogOpened, MinInSyncChanged
from tests.fixtures.leading_groups import A, B, Group, X


def test_INV_RPL14_what_older_leader_epochs_left_waits_for_no_more_than_all_logs_do() -> None:
    """A topic that asks for more than are left would keep all others waiting for it (R6)."""
    group = Group(A, B, least=3, start=4, end=4, least_of_all=2)
    group.connect(B)
    assert group.report(B, x=3) == [HighWatermark(X, 3)]
    assert group.report(B, x=4) == [HighWatermark(X, 4)]
    assert group.core.knows_latest(X)
    assert group.durable(x=6) == []
    assert group.report(B, x=6) == [], "of this leader epoch, INV-RPL3"
    assert group.step(MinInSyncChanged(X, 2)) == [HighWatermark(X, 6)]


def test_INV_RPL14_with_fewer_than_all_logs_ask_for_nothing_moves() -> None:
    group = Group(A, least=3, start=4, end=4, least_of_all=2)
    assert not group.core.knows_latest(X)
    group.connect(B)
    group.report(B, x=4)
    assert group.changed(2, A, B) == [HighWatermark(X, 4)]


def test_INV_RPL14_a_log_that_asks_for_fewer_waits_for_no_more() -> None:
    group = Group(A, least=1, start=4, end=4, least_of_all=2)
    assert group.core.knows_latest(X)


def test_INV_RPL14_what_is_waited_for_since_before_a_cut_is_of_this_leader_epoch() -> None:
    """1. acks=all waits for a third node. 2. Another log is cut. 3. Two would acknowledge it."""
    group = Group(A, B, least=3, start=4, end=4)
    group.connect(B)
    group.durable(x=6)
    group.report(B, x=6)
    assert group.core.high_watermark(X) == 4
    for session in (2, 3):
        group.cut(1, A, B)
        group.step(LogOpened(X, 6, 6, 4, 3))
        group.connect(B, session)
        group.report(B, session, x=6)
        assert group.core.high_watermark(X) == 4
