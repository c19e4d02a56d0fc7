"""What a node of a region with several does for its region while it leads it, and why it does not speak for it otherwise (ADR 48).

Not here: who leads (`region.cluster.leadership`), where the region keeps what it knows of itself (`region.failover.record`).
"""

from collections.abc import Callable
from dataclasses import dataclass

from geo_replicator.failover import State, replay
from idempotency.identity import LeaderEpoch, Member
from region_broker.config.node_config import NodeConfig
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node.storage import Storage
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.record import RegionRecord
from region_broker.region.mirror.primary_side import PrimarySide
from region_broker.region.peers.protocol import NOT_ACTING, NOT_LEADING, PeerRefused
from region_broker.region.tidemarks.service import TidemarkService


def _who_leads(leader: Member | None, own_id: int) -> str:
    """Return who leads this node's region, as far as its metadata say, in words behind "does not lead"."""
    if leader is None:
        return "no node does now"
    if leader.node_id != own_id:
        return f"node {leader.node_id} does"
    return "it was elected, and hears no majority of its region's nodes, or begins to lead only now (tidemark cluster status)"


@dataclass(frozen=True, slots=True)
class LedWith:
    """What runs for a region at the node that leads it."""

    failover: FailoverDriver
    tidemarks: TidemarkService
    source: PrimarySide


class LeadingRegion:
    """`recover` once; `begin`, then `lead`, as often as this node is elected."""

    def __init__(
        self, config: NodeConfig, storage: Storage, record: RegionRecord, led_with: LedWith,
        leads_under: Callable[[], LeaderEpoch | None],
    ) -> None:  # fmt: skip
        """Lead the region of `config`; `leads_under`: None while this node does not lead."""
        self._config = config
        self._storage = storage
        self._record = record
        self._led_with = led_with
        self._leads_under = leads_under
        self._state_before: State | None = None

    def recover(self) -> None:
        """Read what this folder knows from a time when its node was the region's only one; raises `JournalDamaged`, OSError."""
        self._state_before = replay(self._storage.journal.recover())

    def why_silent(self) -> PeerRefused | None:
        """Return why this node does not speak for its region, None where it does."""
        if self._leads_under() is None:
            leadership = self._storage.metadata.image.leadership
            leader = None if leadership is None else leadership.leader
            own = self._config.own_node.node_id
            return PeerRefused(
                NOT_LEADING,
                f"node {own} does not lead region {self._config.region}: {_who_leads(leader, own)}",
            )
        if not self._led_with.failover.running:
            return PeerRefused(NOT_ACTING, "this node begins to lead its region")
        return None

    def show_recorded(self, _image: MetadataImage | None = None) -> None:
        """Let operators see at each node what the one that leads has recorded."""
        if not self._led_with.failover.running:
            self._led_with.failover.show(self._record.recover().state)

    async def begin(self) -> None:
        """Return once the metadata have what the region knows of itself."""
        await self._record.begin(self._state_before)

    async def lead(self) -> None:
        """Go on with what the region is about, from what is recorded (INV-FA3)."""
        self._led_with.source.begin_anew()
        self._storage.hold.begin_anew(self._record.identity.met)
        await self._led_with.tidemarks.take_over_reached()
        await self._led_with.failover.recover()
        try:
            await self._led_with.failover.run()
        finally:
            self.show_recorded()
