"""What retention may delete while leaders are spread, joined together: at the main leader, and at the leaders of data groups.

Not here: any rule (`region.tidemarks.told_holds`, `region.tidemarks.retention_hold`).
"""

import asyncio
from collections.abc import Callable
from typing import Final

from idempotency.identity import LeaderEpoch, Member
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.storage import Storage
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.node_asking import ask_node
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import (
    AnyMessage,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.tidemarks.told_holds import TellingHolds, TellingParts, ToldHolds

ANSWER_TIMEOUT_S: Final = 5.0


class _Lines:
    """A connection for each message: once a minute, and where a mirror is new."""

    def __init__(self, line: LineParts) -> None:
        self._line = line

    async def call(
        self, member: Member, message: PeerMessage, answer_type: type[AnyMessage]
    ) -> AnyMessage:
        answers: list[AnyMessage] = []

        async def ask(client: NodeClient) -> None:
            answers.append(await client.call(message, answer_type))

        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                failed = await ask_node(self._line, member, REPLICA, ask)
        except TimeoutError as error:
            raise PeerUnreachable("it did not answer in time", sent=True) from error
        if isinstance(failed, PeerRefused | PeerUnreachable):
            raise failed
        if not answers:
            raise PeerUnreachable(str(failed), sent=True)
        return answers[0]


class Holding:
    """`told` at a data leader, `telling` at the main leader; a node may be either, and then the other."""

    def __init__(
        self, cluster: ClusterParts, storage: Storage, leads_under: Callable[[], LeaderEpoch | None]
    ) -> None:
        """Join them, and be told by the other nodes."""
        metadata = storage.metadata
        self._hold = storage.hold
        self.told: Final = ToldHolds(cluster.member, lambda: metadata.image)
        self.told.serve_on(cluster.door.handlers_for(REPLICA))
        self.telling: Final = TellingHolds(
            TellingParts(
                image=lambda: metadata.image,
                partitions=lambda: storage.partitions,
                hold_of=storage.hold.of,
                mirrors=lambda: storage.hold.mirrors,
                leads_under=leads_under,
                lines=_Lines(cluster.line),
            )
        )

    async def meet(self, region: str) -> None:
        """Know a mirror before it is answered (INV-THD3)."""
        await self.telling.meet(region, self._hold.meet)
