"""KIP-664 from outside: kafka-python's admin client finds an open transaction of librdkafka and ends it.

On a mirror every call is forwarded to the primary region.
"""

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaAdminClient, TopicPartition
from kafka.admin._transactions import AbortTransactionSpec

from tests.compat.confluent_client import ConfluentClient, ConfluentWriter

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_B13_a_foreign_admin_client_lists_describes_and_aborts(
    bootstrap: str, fresh: Callable[[str], str]
) -> None:
    topic, name = fresh("orders"), fresh("stuck")
    ConfluentClient().create_topic(bootstrap, topic, 1, {})
    writer = ConfluentWriter(bootstrap, name)
    writer.begin()
    writer.send(topic, b"held")
    writer.flush()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    where = TopicPartition(topic, 0)

    by_node = admin.list_transactions(transactional_id_pattern=name)
    listed = [(row.transactional_id, row.state.value) for rows in by_node.values() for row in rows]
    assert listed == [(name, "Ongoing")]
    described = admin.describe_transactions([name])[name]
    assert described.topic_partitions == {where}
    (state,) = admin.describe_producers([where])[where].active_producers
    assert state.current_transaction_start_offset == 0
    assert (state.producer_id, state.producer_epoch) == (
        described.producer_id, described.producer_epoch
    )  # fmt: skip

    admin.abort_transaction(
        AbortTransactionSpec(
            where, state.producer_id, state.producer_epoch, state.coordinator_epoch
        )
    )

    (state,) = admin.describe_producers([where])[where].active_producers
    assert state.current_transaction_start_offset == -1
    assert admin.describe_transactions([name])[name].state.value == "CompleteAbort"
    with pytest.raises(KafkaException) as fenced:
        writer.commit()
    assert fenced.value.args[0].fatal()
    admin.close()
