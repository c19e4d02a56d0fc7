"""Administration with clients that are not ours, against a broker and against a mirror's broker.

Expected is what Kafka does. What the primary region changed is at a mirror a moment later, so reads there are repeated.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.admin import NewPartitions as AioPartitions
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._config import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
)
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import ScramMechanism, UserScramCredentialDeletion
from confluent_kafka.cimpl import NewPartitions
from kafka import KafkaAdminClient
from kafka import TopicPartition as PurePartition
from kafka.admin import ACLFilter as PureFilter
from kafka.admin import ACLOperation as PureOperation
from kafka.admin import ACLPermissionType as PurePermission
from kafka.admin import ACLResourcePatternType as PurePatternType
from kafka.admin import ConfigResource as PureResource
from kafka.admin import ConfigResourceType
from kafka.admin import ResourcePatternFilter as PurePattern
from kafka.admin import ResourceType as PureResourceType
from kafka.errors import GroupIdNotFoundError, SecurityDisabledError

from tests.compat.clients import CALL_S, repeated
from tests.compat.confluent_client import ConfluentClient
from tests.compat.test_client_matrix import await_topic

pytestmark = pytest.mark.process
Fresh = Callable[[str], str]
SENDER = ConfluentClient()
SPEC: Any = OffsetSpec


def topic_of(bootstrap: str, fresh: Fresh, values: int = 0) -> str:
    topic = fresh("administered")
    SENDER.create_topic(bootstrap, topic, 1, {})
    await_topic(SENDER, bootstrap, topic, there=True)
    if values:
        SENDER.produce(bootstrap, topic, [b"%d" % number for number in range(values)])
    return topic


def confluent(bootstrap: str) -> Any:
    """Return an admin client; its annotations do not tell what its futures give."""
    return AdminClient({"bootstrap.servers": bootstrap})


def test_confluent_kafka_grows_a_topic_and_writes_to_the_new_partition(
    bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(bootstrap, fresh)
    admin = confluent(bootstrap)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(CALL_S)
    repeated(lambda: SENDER.partition_count(bootstrap, topic), 3)
    assert SENDER.produce(bootstrap, topic, [b"a", b"b", b"c"], partitions=3) == [0, 0, 0]
    again = admin.create_partitions([NewPartitions(topic, 3)])[topic]
    with pytest.raises(KafkaException, match="already"):
        again.result(CALL_S)


def test_kafka_python_and_aiokafka_grow_a_topic(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: 2})

    async def grow() -> None:
        aio = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await aio.start()
        try:
            await aio.create_partitions({topic: AioPartitions(total_count=4)})
        finally:
            await aio.close()

    repeated(lambda: SENDER.partition_count(bootstrap, topic), 2)
    asyncio.run(grow())
    repeated(lambda: SENDER.partition_count(bootstrap, topic), 4)


def test_confluent_kafka_changes_configs_and_reads_sources(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh)
    admin = confluent(bootstrap)

    def told() -> tuple[str, int, list[str]]:
        asked = ConfigResource(ConfigResource.Type.TOPIC, topic)
        rows: Any = admin.describe_configs([asked])[asked].result(CALL_S)
        row = rows["segment.bytes"]
        return row.value, row.source, sorted(row.synonyms)

    def change(operation: AlterConfigOpType, value: str | None) -> Any:
        entry = ConfigEntry("segment.bytes", value, incremental_operation=operation)
        wanted = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        return admin.incremental_alter_configs([wanted])[wanted]

    change(AlterConfigOpType.SET, "2000000").result(CALL_S)
    names = ["log.segment.bytes", "segment.bytes"]
    own = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    repeated(told, ("2000000", own, names))
    with pytest.raises(KafkaException, match="whole number"):
        change(AlterConfigOpType.SET, "many").result(CALL_S)
    change(AlterConfigOpType.DELETE, None).result(CALL_S)
    default = ConfigSource.DEFAULT_CONFIG.value
    repeated(told, ("1073741824", default, names[:1]))


def test_kafka_python_changes_configs_in_the_old_way_too(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        for incremental, value in ((True, "111111"), (False, "222222")):
            wanted = PureResource(ConfigResourceType.TOPIC, topic, {"retention.ms": value})
            repeated(lambda: _is_changed(admin, wanted, incremental=incremental), True)  # noqa: B023 -- called here
            repeated(lambda: SENDER.configs(bootstrap, topic)["retention.ms"], value)


def _is_changed(admin: Any, wanted: PureResource, *, incremental: bool) -> bool:
    """Change configs; False where kafka-python's node has not heard of the topic yet: it asks that one first, and sees no error in what it says."""
    try:
        admin.alter_configs([wanted], incremental=incremental)
    except ValueError as error:
        assert "Unrecognized configs" in str(error)  # noqa: PT017
        return False
    return True


def test_confluent_kafka_changes_what_its_node_counts_on(bootstrap: str) -> None:
    admin = confluent(bootstrap)
    number = str(admin.list_topics(timeout=CALL_S).controller_id)
    broker = ConfigResource.Type.BROKER

    def told(name: str) -> tuple[str, int]:
        asked = ConfigResource(broker, number)
        row = admin.describe_configs([asked])[asked].result(CALL_S)[name]
        return row.value, row.source

    def change(name: str, operation: AlterConfigOpType, value: str | None) -> Any:
        entry = ConfigEntry(name, value, incremental_operation=operation)
        wanted = ConfigResource(broker, number, incremental_configs=[entry])
        return admin.incremental_alter_configs([wanted])[wanted]

    before = told("transaction.max.timeout.ms")
    change("transaction.max.timeout.ms", AlterConfigOpType.SET, "800000").result(CALL_S)
    own = ConfigSource.DYNAMIC_BROKER_CONFIG.value
    assert told("transaction.max.timeout.ms") == ("800000", own)
    assert told("transaction_max_timeout_ms") == ("800000", own)
    for name, value, why in (("data_dir", "/x", "configuration file"),
                             ("transaction_max_timeout_ms", "0", "whole number")):  # fmt: skip
        with pytest.raises(KafkaException, match=why):
            change(name, AlterConfigOpType.SET, value).result(CALL_S)
    change("transaction_max_timeout_ms", AlterConfigOpType.DELETE, None).result(CALL_S)
    assert told("transaction.max.timeout.ms") == before


def test_kafka_python_changes_what_its_node_counts_on_in_both_ways(bootstrap: str) -> None:
    number = str(confluent(bootstrap).list_topics(timeout=CALL_S).controller_id)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        for incremental, value in ((True, "111"), (False, "222")):
            wanted = PureResource(ConfigResourceType.BROKER, number, {"metrics_names_max": value})
            admin.alter_configs([wanted], incremental=incremental)
            asked = PureResource(ConfigResourceType.BROKER, number)
            found = admin.describe_configs([asked])["broker"][number]["metrics_names_max"]
            assert (found["value"], found["config_source"]) == (value, "DYNAMIC_BROKER_CONFIG")
        admin.alter_configs(
            [PureResource(ConfigResourceType.BROKER, number, {})], incremental=False
        )


def test_records_are_deleted_and_offsets_follow(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh, values=10)
    admin = confluent(bootstrap)

    def ends() -> tuple[int, int]:
        found = []
        for spec in (SPEC.earliest(), SPEC.latest()):
            place = TopicPartition(topic, 0)
            found.append(admin.list_offsets({place: spec})[place].result(CALL_S).offset)
        return found[0], found[1]

    repeated(ends, (0, 10))
    place = TopicPartition(topic, 0, 4)
    assert admin.delete_records([place])[place].result(CALL_S).low_watermark == 4
    repeated(ends, (4, 10))
    with KafkaAdminClient(bootstrap_servers=bootstrap) as pure:
        told = pure.delete_records({PurePartition(topic, 0): 6})
        assert [row["low_watermark"] for row in told.values()] == [6]
    repeated(ends, (6, 10))

    async def delete() -> int:
        aio = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await aio.start()
        try:
            place = AioPartition(topic, 0)
            told = await aio.delete_records({place: RecordsToDelete(before_offset=-1)})
            return int(told[place])
        finally:
            await aio.close()

    assert asyncio.run(delete()) == 10
    repeated(ends, (10, 10))
    assert SENDER.produce(bootstrap, topic, [b"next"]) == [10]


def test_newest_record_by_time(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh, values=3)
    admin, place = confluent(bootstrap), TopicPartition(topic, 0)

    def newest() -> int:
        asked = {place: SPEC.max_timestamp()}
        return int(admin.list_offsets(asked)[place].result(CALL_S).offset >= 0)

    repeated(newest, 1)


def test_kafka_python_pages_through_topics_and_reads_log_dirs(bootstrap: str, fresh: Fresh) -> None:
    topic = topic_of(bootstrap, fresh, values=5)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_partitions({topic: 3})
        repeated(lambda: SENDER.partition_count(bootstrap, topic), 3)

        def pages() -> list[Any]:
            first = admin.describe_topic_partitions([topic], response_partition_limit=2)
            cursor = first["next_cursor"]
            rest = admin.describe_topic_partitions([topic], cursor=cursor)
            told = [[len(row["partitions"]) for row in page["topics"]] for page in (first, rest)]
            return [cursor and (cursor["topic_name"], cursor["partition_index"]), *told, rest["next_cursor"]]  # fmt: skip

        repeated(pages, [(topic, 2), [2], [1], None])  # each page is asked of any node
        nodes = admin.describe_log_dirs({topic: [0]})
        assert nodes
        assert all(topic in str(node) for node in nodes)


def test_groups_and_offsets_are_deleted(bootstrap: str, fresh: Fresh) -> None:
    topic, group = topic_of(bootstrap, fresh, values=1), fresh("deleted")
    admin = confluent(bootstrap)

    def commit() -> None:
        wanted = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0, 1)])
        admin.alter_consumer_group_offsets([wanted])[group].result(CALL_S)

    def committed() -> list[int]:
        asked = ConsumerGroupTopicPartitions(group)
        found: Any = admin.list_consumer_group_offsets([asked])[group].result(CALL_S)
        return [place.offset for place in found.topic_partitions]

    commit()
    assert committed() == [1]
    with KafkaAdminClient(bootstrap_servers=bootstrap) as pure:
        pure.delete_group_offsets(group, [PurePartition(topic, 0)])
        assert committed() == []
        with pytest.raises(GroupIdNotFoundError):
            pure.delete_group_offsets(fresh("unknown"), [PurePartition(topic, 0)])
    commit()
    assert admin.delete_consumer_groups([group])[group].result(CALL_S) is None
    assert committed() == []
    with pytest.raises(KafkaException, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([group])[group].result(CALL_S)


def test_what_is_not_there_is_told_by_the_client_and_breaks_nothing(
    bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(bootstrap, fresh)
    admin = confluent(bootstrap)
    change = UserScramCredentialDeletion("somebody", ScramMechanism.SCRAM_SHA_256)
    with pytest.raises(KafkaException, match="RESOURCE_NOT_FOUND"):
        admin.alter_user_scram_credentials([change])["somebody"].result(CALL_S)
    with KafkaAdminClient(bootstrap_servers=bootstrap) as pure:
        assert topic in pure.list_topics()
    assert topic in admin.list_topics(timeout=CALL_S).topics


def test_security_and_other_nodes_are_answered_as_by_a_kafka_without_them(
    bootstrap: str, fresh: Fresh
) -> None:
    topic = topic_of(bootstrap, fresh)
    admin = confluent(bootstrap)
    binding = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:a", "*",
        AclOperation.READ, AclPermissionType.ALLOW,
    )  # fmt: skip
    anything: Any = None
    every = AclBindingFilter(
        ResourceType.ANY, anything, ResourcePatternType.ANY, anything, anything,
        AclOperation.ANY, AclPermissionType.ANY,
    )  # fmt: skip
    # librdkafka does not pass the error of DescribeAcls on to its user: he sees that there are none.
    assert admin.describe_acls(every).result(CALL_S) == []
    for asked in (*admin.create_acls([binding]).values(), *admin.delete_acls([every]).values()):
        with pytest.raises(KafkaException, match="No Authorizer is configured"):
            asked.result(CALL_S)
    assert admin.describe_user_scram_credentials().result(CALL_S) == {}
    place = TopicPartition(topic, 0)
    elected = admin.elect_leaders(ElectionType.PREFERRED, [place]).result(CALL_S)
    assert [error.code() for error in elected.values()] == [KafkaError.ELECTION_NOT_NEEDED]
    with KafkaAdminClient(bootstrap_servers=bootstrap) as pure:
        with pytest.raises(SecurityDisabledError):
            pure.describe_acls(
                PureFilter(
                    principal=None, host="*", operation=PureOperation.ANY,
                    permission_type=PurePermission.ANY,
                    resource_pattern=PurePattern(PureResourceType.ANY, None, PurePatternType.ANY),
                )
            )  # fmt: skip
        assert pure.list_partition_reassignments() == {}
        assert topic in pure.list_topics()
