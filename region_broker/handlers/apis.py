"""All APIs of the Kafka port in one table: what ApiVersions lists is what is served.

Not here: what an API does (its own file), how requests reach it (`dispatch`).
"""

from region_broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    alter_configs,
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_topic_partitions,
    describe_transactions,
    end_txn,
    fetch,
    find_coordinator,
    get_telemetry_subscriptions,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_config_resources,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    push_telemetry,
    sync_group,
    txn_offset_commit,
    write_txn_markers,
)
from region_broker.handlers.api_versions import api_versions_api
from region_broker.handlers.registry import Api, ApiTable


def all_apis() -> ApiTable:
    """Return the table of everything this node serves."""
    apis: tuple[Api, ...] = (
        produce.API,
        fetch.API,
        list_offsets.API,
        metadata.API,
        find_coordinator.API,
        create_topics.API,
        delete_topics.API,
        offset_for_leader_epoch.API,
        describe_configs.API,
        alter_configs.API,
        incremental_alter_configs.API,
        list_config_resources.API,
        describe_cluster.API,
        describe_topic_partitions.API,
        describe_log_dirs.API,
        init_producer_id.API,
        add_partitions_to_txn.API,
        add_offsets_to_txn.API,
        end_txn.API,
        join_group.API,
        sync_group.API,
        heartbeat.API,
        leave_group.API,
        list_groups.API,
        describe_groups.API,
        offset_commit.API,
        offset_fetch.API,
        txn_offset_commit.API,
        write_txn_markers.API,
        push_telemetry.API,
        list_transactions.API,
        get_telemetry_subscriptions.API,
        describe_transactions.API,
        describe_producers.API,
    )
    return ApiTable.of(*apis, api_versions_api(apis))
