"""The checks that requests for a partition share."""

from kio.schema.errors import ErrorCode

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from region_broker.handlers.dispatch.partitions import leader_epoch_error
from tests.fixtures.node_logs import LEADER_EPOCH, fixture


def test_R4_the_epoch_that_a_client_knows_is_compared_with_the_leaders() -> None:
    partition = fixture().partition
    assert leader_epoch_error(partition, NO_LEADER_EPOCH) is None
    assert leader_epoch_error(partition, LEADER_EPOCH) is None
    assert (
        leader_epoch_error(partition, LeaderEpoch(LEADER_EPOCH - 1))
        is ErrorCode.fenced_leader_epoch
    )
    assert (
        leader_epoch_error(partition, LeaderEpoch(LEADER_EPOCH + 1))
        is ErrorCode.unknown_leader_epoch
    )


def test_R4_an_empty_mirror_has_no_epoch_to_compare_with() -> None:
    """librdkafka sends 0 for an epoch of -1 to brokers of Fetch 12 and later."""
    mirror = fixture(leads=False).partition
    assert mirror.sight.leader_epoch == -1
    assert leader_epoch_error(mirror, LeaderEpoch(0)) is None
