"""What is asked of groups of the new protocol and what they answer.

Not here: decisions (`heartbeat`), Kafka's shapes (`handlers`).
"""

from dataclasses import dataclass

from region_broker.groups.messages import Sight
from region_broker.groups.modern.assignors.assignment import Partitions
from region_broker.groups.verdicts import GroupVerdict


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A member joins (epoch 0), goes on, or leaves (-1, or -2 for a static one that will be back).

    None, and -1 for the time-out, mean what they meant in the member's last request.
    """

    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    must_know_member_id: bool = False  # v1: the client draws it
    sight: Sight | None = None  # None: all topics

    @property
    def is_full(self) -> bool:
        """Return whether the member says everything: then it is told its whole assignment."""
        subscribes = self.topic_names is not None or self.topic_regex is not None
        return self.member_epoch == 0 or (
            self.rebalance_timeout_ms != -1 and subscribes and self.owned is not None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatOutcome:
    """The answer; `assignment` is None if the member knows it."""

    verdict: GroupVerdict
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernMemberDescription:
    """One member as ConsumerGroupDescribe shows it."""

    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernDescription:
    """One group as ConsumerGroupDescribe shows it."""

    verdict: GroupVerdict
    group_id: str
    message: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[ModernMemberDescription, ...] = ()


class Refused(Exception):
    """A request that changes nothing; `verdict` says why to programs, the text to people."""

    def __init__(self, verdict: GroupVerdict, message: str) -> None:
        """Say why, and what to do."""
        super().__init__(message)
        self.verdict = verdict
