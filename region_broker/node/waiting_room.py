"""A node of a region with several, before it has joined: it says over HTTP, and in its log, what it waits for.

INV-WRM1  whoever answers is not said to have not come in, and has a region that is not new: a folder that is not taken in because another one of
          its node runs says that this may be so, and how to find out

The node that is joined together then binds the same HTTP port anew.
Not here: what it waits for (`cluster_node`), the routes (`http_api.waiting`).
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from idempotency.identity import Member
from region_broker.config.node_config import NodeConfig
from region_broker.http_api.app import HttpServer
from region_broker.http_api.waiting import Waiting, waiting_app
from region_broker.node.audit_hooks import hear_refusals
from region_broker.node.auditing import keeps_trail
from region_broker.node.http_doors import DoorCollector, doors_of
from region_broker.node.node_ports import Ports
from region_broker.node.storage import Begun
from region_broker.region.peers.server import PeerServer
from region_broker.security.audit.held_events import HeldEvents
from region_broker.security.audit.trail import AuditTrail

TOLD_EACH_MS: Final = 10_000
JOINS: Final = "joins"
REGISTERS: Final = "registers with"
PREPARES: Final = "waits for the birth to be known in"
OPENS: Final = "opens its logs to join"

_log: Final = logging.getLogger("tidemark.node")


class WaitingRoom:
    """`http` is bound while the node waits; `stage` says what it does once somebody leads the quorum."""

    def __init__(
        self, config: NodeConfig, ports: Ports, begun: Callable[[], Begun], hears: Callable[[Member], bool],
        met: Callable[[], Sequence[int]],
    ) -> None:  # fmt: skip
        """`hears`: whether a member's connection to here stands. `met`: the nodes of the region that answer, while this folder is to be taken in."""
        self._config = config
        self._clock = clock = ports.clock
        self._failed = ports.speaks.failed
        self._held = HeldEvents(clock)
        self._begun = begun
        self._hears = hears
        self._met = met
        self._began_ms = clock.monotonic_ms()
        self.stage = JOINS
        waiting = Waiting(
            region=config.region, reason=self.reason, without_leader_ms=self._without_leader_ms
        )
        self.doors: Final = doors_of(config, ports, lambda: begun().metadata.image.access)
        collectors = [DoorCollector(config, self.doors)]
        self.http: Final = HttpServer(
            waiting_app(waiting, self.doors, collectors, warning=ports.speaks.warning),
            tls=ports.speaks.http,
            on_failed=ports.speaks.failed.on_port("http"),
        )

    def hear(self, peers: PeerServer) -> None:
        """Hold who is refused, by `peers` and over HTTP, for a trail that is not open yet, where the node keeps one."""
        if keeps_trail(self._config):
            hear_refusals(self._held, self.doors, peers=peers, failed=self._failed)

    def tell_trail(self, trail: AuditTrail) -> None:
        """Hand over to the trail that is open by now what was heard since (INV-ARH1)."""
        self._held.tell(trail)

    async def tell(self) -> None:
        """Tell the log again and again, until cancelled."""
        while True:
            await self._clock.sleep_ms(TOLD_EACH_MS)
            _log.warning("%s", self.reason())

    def reason(self) -> str:
        """Return what keeps this node from joining now, and the way out."""
        region, begun = self._config.region, self._begun()
        leader = begun.metadata.group.leader
        if self._is_led() and leader is not None:
            return f"this node {self.stage} region {region}; node {leader.node_id} leads its quorum"
        met = self._met()
        if met and not begun.metadata.group.is_member:
            return self._not_taken_in(met)
        voters = [each for each in begun.metadata.group.membership.voters if each != begun.member]
        silent = [each.node_id for each in voters if not self._hears(each)]
        asked = silent or [node.node_id for node in self._config.siblings]
        names = ", ".join(map(str, sorted(asked)))
        way_out = (
            "Start them; where they run, this node's log says what keeps it from meeting them, and their logs and tidemark cluster status"
            " there say more (docs/runbooks/quorum_lost.md). The region"
            " is not new: do not run tidemark init"
            if begun.identity.history is not None or begun.metadata.image.version
            else "If the region is new, run tidemark init once, at one of its nodes, while that one is stopped"
        )
        return (
            f"this node waits for the quorum of region {region}: most of its voters must run, and nodes {names} have not come in,"
            f" or lead nothing. {way_out}"
        )

    def _not_taken_in(self, met: Sequence[int]) -> str:
        """Say what keeps a folder out that others speak with (INV-WRM1)."""
        own, names = self._config.own_node.node_id, ", ".join(map(str, met))
        return (
            f"nodes {names} of region {self._config.region} answer, and have not taken this folder in yet. Either nobody leads their quorum"
            f" (docs/runbooks/quorum_lost.md), or another folder of node {own} runs: tidemark cluster status there says so. End that one, and this"
            " one takes its place by itself; if it is to stay, give this one a node id of its own (tidemark cluster node add). Or the region does"
            f" not know node {own}, as it was removed and is in no file of the others: tidemark cluster node add {own} makes it known"
        )

    def _is_led(self) -> bool:
        group = self._begun().metadata.group
        return group.is_member and group.leader is not None

    def _without_leader_ms(self) -> int:
        return 0 if self._is_led() else max(1, self._clock.monotonic_ms() - self._began_ms)
