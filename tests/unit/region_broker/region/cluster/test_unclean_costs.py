"""What an election that may lose records says beforehand: whose records, of which logs."""

from region_broker.region.cluster.cluster_orders import unclean_costs
from tests.fixtures.cluster_images import in_sync
from tests.fixtures.spread_images import A, B, left_with, spread

OF_ONE = left_with(spread(), 1, A, B)
OF_BOTH = left_with(OF_ONE, 2, A)


def test_INV_CLO3_it_names_who_is_in_sync_where_one_node_leads_all() -> None:
    assert unclean_costs(in_sync(), 4) == (
        "what only nodes 1, 2, 3 hold is lost for good, though it was acknowledged: node 4 was not in sync."
        " Transactions may be torn by it; the nodes that come back are cut to what it has"
    )


def test_INV_CLO3_each_group_of_logs_has_an_in_sync_set_of_its_own() -> None:
    told = unclean_costs(OF_ONE, 3)
    assert told.startswith("what only nodes 1, 2 hold of data group 1 is lost for good")
    told = unclean_costs(OF_BOTH, 3)
    assert told.startswith("what only nodes 1, 2 hold of data group 1, what only nodes 1 hold of data group 2 is lost")  # fmt: skip
    told = unclean_costs(OF_BOTH, 4)
    assert told.startswith("what only nodes 1, 2, 3 hold of the main group, what only nodes 1, 2 hold of data group 1")  # fmt: skip
