"""What groups are clamped to at a takeover."""

from region_broker.region.role import log_ends
from tests.fixtures.node_logs import batch, fixture


def test_T26_no_group_is_set_back_for_a_log_that_has_stopped() -> None:
    """It was damaged, say: once its file is restored, all that was read of it would be read again."""
    some = fixture(partition_count=2)
    for partition in some.partitions:
        partition.writer.append(batch(5))
    some.sync()
    one, other = some.partitions
    assert log_ends([one, other]) == {one.tp: 5, other.tp: 5}
    one.log.fail("a bit flipped")
    assert log_ends([one, other]) == {other.tp: 5}
