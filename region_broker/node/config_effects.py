"""What follows when a key of the configuration changes while the node runs: each part is told, all of it in one step.

What is told here is what counts from now on; nothing that is under way is judged anew. A key that may change
(`config.changeable`) is here, or its reader asks for its present value each time: a test compares.

Not here: what counts (`node_configs`), the level of the logs (whoever configured them: `cli.broker`).
"""

from dataclasses import dataclass

from region_broker.config.node_config import NodeConfig
from region_broker.groups.settings import GroupSettings
from region_broker.handlers.dispatch.services import Services
from region_broker.node.name_series import NameCollector
from region_broker.partitions.table import PartitionTable
from region_broker.region.tidemarks.service import TidemarkService
from region_broker.replication.pacing import CatchUpRates
from region_broker.wire.memory_budget import MemoryBudget
from region_broker.wire.server import KafkaServer
from txn_coordinator.driver import TransactionCoordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEffects:
    """Every part of a node that a key can change."""

    groups: GroupSettings
    transactions: TransactionCoordinator
    tidemarks: TidemarkService
    partitions: PartitionTable
    kafka: KafkaServer
    memory: MemoryBudget
    names: NameCollector
    services: Services
    catch_up: CatchUpRates

    def take(self, config: NodeConfig) -> None:
        """Let all parts go by `config` from now on."""
        _follow_groups(self.groups, config)
        self.transactions.limit(
            timeout_max_ms=config.transaction_max_timeout_ms,
            id_count_max=config.transactional_id_count_max,
            connection_order=config.connection_order_fence,
        )
        self.tidemarks.change_pace(
            interval_ms=config.tidemark_interval_ms, whole_wait_ms=config.mirror_whole_wait_ms
        )
        self.partitions.room.free_bytes_min = config.disk_free_bytes_min
        self.partitions.kept.kept_ms = config.deleted_topic_retention_ms
        self.partitions.producers.partition_max = config.partition_producers_max
        self.partitions.producers.node_max = config.producers_max
        self.kafka.limit(config.connections_per_address_max, config.connection_rate_per_address)
        self.memory.resize(config.request_memory_bytes)
        self.names.limit(config.metrics_names_max)
        self.catch_up.sent_bytes_per_s = config.catch_up_sent_bytes_per_s
        self.catch_up.taken_bytes_per_s = config.catch_up_taken_bytes_per_s
        self.services.config = config


def _follow_groups(settings: GroupSettings, config: NodeConfig) -> None:
    """Let the group coordinator that has `settings` go by `config`."""
    settings.initial_rebalance_delay_ms = config.group_initial_rebalance_delay_ms
    settings.session_timeout_ms_min = config.group_min_session_timeout_ms
    settings.consumer_session_timeout_ms = config.group_consumer_session_timeout_ms
    settings.consumer_heartbeat_interval_ms = config.group_consumer_heartbeat_interval_ms
    settings.group_count_max = config.group_count_max
    settings.committed_offsets_max = config.committed_offsets_max
