"""When a node may put a log aside, by what the metadata say of it."""

import pytest

from idempotency.identity import LeaderEpoch, Member
from region_broker.controller.cluster_image import Leadership
from region_broker.region.mending.copying_anew import objection
from tests.fixtures.cluster_images import member

ONE, TWO, THREE = map(member, (1, 2, 3))


def leadership(leader: Member | None, *in_sync: Member) -> Leadership:
    return Leadership(leader=leader, leader_epoch=LeaderEpoch(9), in_sync=in_sync, version=4)


@pytest.mark.parametrize(
    ("present", "why"),
    [
        (None, "nobody leads"),
        (leadership(None, TWO, THREE), "nobody leads"),
        (leadership(ONE, ONE), "the only one in sync"),
        (leadership(ONE, ONE, TWO), "this node leads"),
        (leadership(TWO, ONE, TWO), "still counts as in sync"),
    ],
)
def test_INV_CAN1_a_log_stays_where_this_node_counts_or_nobody_else_is_known_to_have_it(
    present: Leadership | None, why: str
) -> None:
    assert why in str(objection(ONE, present))


def test_INV_CAN1_a_log_may_go_aside_where_another_node_leads_and_this_one_is_out_of_sync() -> None:
    assert objection(ONE, leadership(TWO, TWO, THREE)) is None
    assert objection(ONE, leadership(TWO, TWO)) is None
