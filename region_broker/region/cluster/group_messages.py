"""What followers send to the node that leads a replica group, by the leader epoch that they name: a message names no group (ADR 53).

Not here: what is answered (`replica_leading`), which group that is (`region_groups`).
"""

from collections.abc import Callable

from idempotency.identity import LeaderEpoch
from region_broker.region.cluster.replica_leading import ReplicaLeading
from region_broker.region.cluster.replica_messages import (
    CheckedReplicaLogs,
    CheckReplicaLogs,
    DurableReport,
    ReplicaFetch,
)
from region_broker.region.peers.sessions import Handlers, NodeSession, Reply


class GroupMessages:
    """Of all groups of a node; `named` returns what leads under a leader epoch, or, where nothing does, what refuses it."""

    def __init__(self, named: Callable[[LeaderEpoch], ReplicaLeading]) -> None:
        """Nothing is registered."""
        self._named = named

    def serve_on(self, handlers: Handlers[NodeSession]) -> None:
        """Answer them; once, before the peer port is bound."""
        handlers.register(CheckReplicaLogs, self._check)
        handlers.register(ReplicaFetch, self._fetch)
        handlers.register_notice(DurableReport, self._reported)

    async def _check(
        self, session: NodeSession, message: CheckReplicaLogs, attachment: memoryview
    ) -> CheckedReplicaLogs:
        return await self._named(message.leader_epoch).check(session, message, attachment)

    async def _fetch(
        self, session: NodeSession, message: ReplicaFetch, attachment: memoryview
    ) -> Reply:
        return await self._named(message.leader_epoch).fetch(session, message, attachment)

    def _reported(
        self, session: NodeSession, message: DurableReport, attachment: memoryview
    ) -> None:
        self._named(message.leader_epoch).reported(session, message, attachment)
