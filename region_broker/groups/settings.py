"""What an operator may set about groups; Kafka's names in the field comments.

Not here: hard limits (`region_broker.limits`).
"""

from dataclasses import dataclass

from region_broker.limits import COMMITTED_OFFSETS_DEFAULT, GROUP_COUNT_DEFAULT


@dataclass(slots=True, kw_only=True)
class GroupSettings:
    """Settings of one region's group coordinator.

    A node changes some of them while it runs (`node.config_effects`): who holds this reads a value when it needs it.
    """

    initial_rebalance_delay_ms: int = 0  # group.initial.rebalance.delay.ms; Kafka's default: 3 s
    session_timeout_ms_min: int = 6_000  # group.min.session.timeout.ms
    session_timeout_ms_max: int = 1_800_000  # group.max.session.timeout.ms
    new_member_join_timeout_ms: int = 300_000  # Kafka's fixed NewMemberJoinTimeoutMs
    offsets_retention_ms: int = 7 * 24 * 3_600_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    group_count_max: int = GROUP_COUNT_DEFAULT  # Kafka has no such limit
    committed_offsets_max: int = COMMITTED_OFFSETS_DEFAULT  # nor this one

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if not 0 < self.session_timeout_ms_min <= self.session_timeout_ms_max:
            raise ValueError(
                f"session time-outs from {self.session_timeout_ms_min} to "
                f"{self.session_timeout_ms_max} ms: the minimum must be above 0 and not above the "
                "maximum; set group_min_session_timeout_ms"
            )
        if self.initial_rebalance_delay_ms < 0 or self.retention_check_interval_ms <= 0:
            raise ValueError("group delays must not be negative, the retention check above 0")
        if not 0 < self.consumer_heartbeat_interval_ms < self.consumer_session_timeout_ms:
            raise ValueError(
                f"a heartbeat every {self.consumer_heartbeat_interval_ms} ms does not keep a session of "
                f"{self.consumer_session_timeout_ms} ms: set group_consumer_heartbeat_interval_ms "
                "below group_consumer_session_timeout_ms, and above 0"
            )
