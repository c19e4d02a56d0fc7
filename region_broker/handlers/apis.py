"""All APIs of the Kafka port in one table: what ApiVersions lists is what is served.

Not here: what an API does (its own file), how requests reach it (`dispatch`).
"""

from region_broker.handlers.access import create_acls, delete_acls, describe_acls
from region_broker.handlers.admin import (
    add_raft_voter,
    alter_client_quotas,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    constant_answers,
    describe_client_quotas,
    describe_cluster,
    describe_log_dirs,
    describe_quorum,
    elect_leaders,
    get_telemetry_subscriptions,
    push_telemetry,
    remove_raft_voter,
    unregister_broker,
    update_features,
)
from region_broker.handlers.dispatch.api_versions import api_versions_api
from region_broker.handlers.dispatch.authorizing import check_rows
from region_broker.handlers.dispatch.registry import Api, ApiTable
from region_broker.handlers.fetch import fetch, list_offsets, offset_for_leader_epoch
from region_broker.handlers.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from region_broker.handlers.produce import produce
from region_broker.handlers.sasl import (
    alter_user_scram_credentials,
    create_delegation_token,
    describe_delegation_token,
    describe_user_scram_credentials,
    expire_delegation_token,
    renew_delegation_token,
    sasl_authenticate,
    sasl_handshake,
)
from region_broker.handlers.topics import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_topic_partitions,
    incremental_alter_configs,
    list_config_resources,
    metadata,
)
from region_broker.handlers.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)


def all_apis() -> ApiTable:
    """Return the table of everything this node serves."""
    apis: tuple[Api, ...] = (
        produce.API,
        fetch.API,
        list_offsets.API,
        metadata.API,
        find_coordinator.API,
        create_topics.API,
        create_partitions.API,
        delete_topics.API,
        delete_records.API,
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
        consumer_group_heartbeat.API,
        consumer_group_describe.API,
        offset_commit.API,
        offset_fetch.API,
        offset_delete.API,
        delete_groups.API,
        txn_offset_commit.API,
        write_txn_markers.API,
        push_telemetry.API,
        list_transactions.API,
        get_telemetry_subscriptions.API,
        describe_transactions.API,
        describe_producers.API,
        alter_partition_reassignments.API,
        alter_replica_log_dirs.API,
        describe_client_quotas.API,
        alter_client_quotas.API,
        sasl_handshake.API,
        sasl_authenticate.API,
        describe_user_scram_credentials.API,
        alter_user_scram_credentials.API,
        create_delegation_token.API,
        renew_delegation_token.API,
        expire_delegation_token.API,
        describe_delegation_token.API,
        elect_leaders.API,
        describe_quorum.API,
        update_features.API,
        unregister_broker.API,
        add_raft_voter.API,
        remove_raft_voter.API,
        describe_acls.API,
        create_acls.API,
        delete_acls.API,
        *constant_answers.APIS,
    )
    table = ApiTable.of(*apis, api_versions_api(apis))
    check_rows(tuple(table.by_key))
    return table
