"""Times and limits of a region's controller.

Not here: those of the quorum (`raft.settings`).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Times in ms.

    A node that flaps is let in again after a pause: none the first time, then `unfence_pause_ms`, doubled each time up to
    `unfence_pause_max_ms`; it is forgiven when it stayed for `forgiven_after_ms`.
    """

    session_timeout_ms: int = 750
    """A node that is not heard for so long is fenced."""
    reset_grace_ms: int = 100
    """A node whose connection was reset is fenced then, unless it is heard again."""
    heartbeat_ms: int = 50
    look_max_ms: int = 100
    """Time without any event counts as this much at most: the controller itself stood still."""
    retry_ms: int = 100
    """After a refusal nothing is proposed for so long, unless the metadata changed."""
    unfence_pause_ms: int = 500
    unfence_pause_max_ms: int = 15_000
    forgiven_after_ms: int = 60_000
    orders_max: int = 64
    """Orders that wait."""
    preferred_node_id: int | None = None
    """Who leads where several may; None: the one with the lowest node id."""

    def __post_init__(self) -> None:
        """Refuse times that do not fit together."""
        assert 0 < self.heartbeat_ms < self.reset_grace_ms < self.session_timeout_ms
        assert 3 * self.heartbeat_ms < self.session_timeout_ms, "two heartbeats may be lost"
        assert self.heartbeat_ms <= self.look_max_ms < self.session_timeout_ms
        assert 0 < self.unfence_pause_ms <= self.unfence_pause_max_ms < self.forgiven_after_ms
        assert min(self.retry_ms, self.orders_max) > 0
