"""Small rules of a node of several: what it cleans, how many copies it asks for, what it says before it knows anything."""

import pytest

from region_broker.node.cleaning import _may_be_cleaned
from region_broker.node.handshake import Handshake
from region_broker.node.replication import default_min_in_sync
from region_broker.region.peers.protocol import NOT_ACTING, PeerRefused
from tests.fixtures.node_logs import batch, fixture


@pytest.mark.parametrize(("nodes", "copies"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_a_record_is_on_two_nodes_before_it_is_acknowledged_where_one_of_three_may_go(
    nodes: int, copies: int
) -> None:
    assert default_min_in_sync(nodes) == copies


def test_only_who_leads_cleans_and_only_once_it_knows_what_is_committed() -> None:
    """Followers copy what the leader has: what only one of them lacks would make their logs differ."""
    some = fixture()
    some.partition.writer.append(batch(3))
    some.sync()
    assert _may_be_cleaned(some.partition), "nobody else has it"
    some.partition.commit_up_to(3)
    assert _may_be_cleaned(some.partition)
    some.partition.state.forget_completed_below(3)
    some.partition.commit_up_to(2)
    assert not _may_be_cleaned(some.partition), (
        "of what was forgotten here, not all is known to be committed"
    )
    some.partition.commit_up_to(3)
    assert _may_be_cleaned(some.partition)
    some.partition.become_mirror()
    assert not _may_be_cleaned(some.partition)


def test_a_node_that_starts_says_nothing_of_its_region() -> None:
    with pytest.raises(PeerRefused, match="is starting") as refused:
        Handshake().hello()
    assert refused.value.code == NOT_ACTING
