"""All APIs of the Kafka port in one table: what ApiVersions lists is what is served.

Not here: what an API does (its own file), how requests reach it (`dispatch`).
"""

from region_broker.handlers import (
    create_topics,
    delete_topics,
    describe_cluster,
    describe_configs,
    fetch,
    find_coordinator,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
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
        describe_cluster.API,
    )
    return ApiTable.of(*apis, api_versions_api(apis))
