"""Small rules of a node of several: what it cleans, how many copies it asks for, what it says before it knows anything."""

import pytest

from region_broker.node.handshake import Handshake
from region_broker.node.replication import default_min_in_sync
from region_broker.partitions.cleaner import _may_be_cleaned
from region_broker.records.batches import Record, build_batch
from region_broker.region.peers.protocol import NOT_ACTING, PeerRefused
from tests.fixtures.node_logs import fixture


@pytest.mark.parametrize(("nodes", "copies"), [(1, 1), (2, 1), (3, 2), (5, 2)])
def test_a_record_is_on_two_nodes_before_it_is_acknowledged_where_one_of_three_may_go(
    nodes: int, copies: int
) -> None:
    assert default_min_in_sync(nodes) == copies


def test_INV_CLN8_only_a_log_of_which_all_that_was_forgotten_is_known_to_be_committed_is_cleaned() -> (
    None
):
    """Whoever leads it, or copies it."""
    some = fixture({"cleanup.policy": "compact"})
    some.partition.writer.append(build_batch([Record(b"k", b"v", timestamp_ms=1)] * 3))
    some.sync()
    assert _may_be_cleaned(some.partition), "nobody else has it"
    some.partition.state.forget_completed_below(3)
    some.partition.commit_up_to(2)
    for leads in (True, False):
        if not leads:
            some.partition.become_mirror()
        some.partition.commit_up_to(2)
        assert not _may_be_cleaned(some.partition)
        some.partition.commit_up_to(3)
        assert _may_be_cleaned(some.partition)


def test_a_node_that_starts_says_nothing_of_its_region() -> None:
    with pytest.raises(PeerRefused, match="is starting") as refused:
        Handshake().hello()
    assert refused.value.code == NOT_ACTING
