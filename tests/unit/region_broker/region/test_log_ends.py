"""What groups are clamped to at a takeover."""

from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.role import log_ends
from tests.fixtures.node_logs import batch, fixture


def test_T26_a_log_that_has_stopped_ends_where_it_is_to_be_cut() -> None:
    """It is damaged, say, and empty to look at: once its file is restored, all that was read of it would be read again."""
    some = fixture(partition_count=2)
    for partition in some.partitions:
        partition.writer.append(batch(5))
    some.sync()
    one, other = some.partitions
    assert log_ends([one, other], {}) == {one.tp: 5, other.tp: 5}
    one.log.fail("a bit flipped")
    assert log_ends([one, other], {key_of(one): 4, key_of(other): 4}) == {one.tp: 4, other.tp: 5}
    assert log_ends([one, other], {}) == {other.tp: 5}, "of that log the base says nothing"
