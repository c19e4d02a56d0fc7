"""What two regions say to each other about who acts: status, promises, drains, loss statements.

INV-FMS1  an answer with a region epoch that there cannot be ends its connection, as a Hello does (INV-PHL1): what is learnt of one is
          recorded for good, and counted on from
Asking twice changes nothing: a promise, a drain and its end may be repeated by the same asker.
Not here: framing and handshakes (`peers.protocol`), what the answers cause (`failover.driver`).
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from geo_replicator.directory import Promise, RegionReport
from geo_replicator.failover import Phase
from geo_replicator.lineage import TidemarkPoint
from idempotency.fencing import REGION_EPOCH_MAX
from idempotency.identity import RegionEpoch
from region_broker.region.peers.protocol import PeerMessage

DRAIN_OVER: Final = "drain-over"
DRAIN_FAILED: Final = "drain-failed"

Epoch: TypeAlias = Annotated[RegionEpoch, msgspec.Meta(ge=-1, le=REGION_EPOCH_MAX)]
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class AskStatus(PeerMessage, frozen=True, kw_only=True):
    """How do you stand?"""

    region: str


class SiteStatus(PeerMessage, frozen=True, kw_only=True):
    """How a region stands, and the greatest tidemark that it claims."""

    region: str
    phase: str
    acting: bool
    region_epoch: Epoch
    promised_epoch: Epoch
    promised_candidate: str = msgspec.field(name="promised_taker")
    highest_epoch_known: Epoch
    claim_region_epoch: Epoch
    claim_number: Number

    @property
    def claim(self) -> TidemarkPoint:
        """Return the greatest tidemark that the region published or reached."""
        return TidemarkPoint(self.claim_region_epoch, self.claim_number)

    @property
    def is_primary(self) -> bool:
        """Return whether the region acts, is draining in order to stop, or stands in dispute: nobody else acts."""
        return self.phase in {Phase.ACTING, Phase.DRAINING, Phase.DISPUTED}

    def report(self) -> RegionReport:
        """Return the status as `geo_replicator.directory` judges it."""
        return RegionReport(
            region=self.region,
            region_epoch=self.region_epoch,
            acting=self.acting,
            promise=Promise(self.promised_epoch, self.promised_candidate),
            claim=self.claim,
        )


class AskPromise(PeerMessage, frozen=True, kw_only=True):
    """`candidate` wants to act under `region_epoch`; `planned` only if you are drained for it."""

    domain: str
    region_epoch: RegionEpoch
    candidate: str = msgspec.field(name="taker")
    planned: bool


class PromiseAnswer(PeerMessage, frozen=True, kw_only=True):
    """The durable answer, with the greatest tidemark that the region published or reached."""

    granted: bool
    reason: str
    claim_region_epoch: Epoch
    claim_number: Number

    @property
    def claim(self) -> TidemarkPoint:
        """Return the claim as a point."""
        return TidemarkPoint(self.claim_region_epoch, self.claim_number)


class AskDrain(PeerMessage, frozen=True, kw_only=True):
    """Stop taking writes and publish a last tidemark; write again after `timeout_ms` without a promise."""

    operation_id: str
    to_region: str
    timeout_ms: int


class Drained(PeerMessage, frozen=True, kw_only=True):
    """The last tidemark: it covers everything that was acknowledged."""

    region_epoch: Epoch
    number: Number


class EndDrain(PeerMessage, frozen=True, kw_only=True):
    """The takeover will not come: write again."""

    operation_id: str
    reason: str


class DrainEnded(PeerMessage, frozen=True, kw_only=True):
    """Whether the region acts again."""

    acting: bool


class AskStatement(PeerMessage, frozen=True, kw_only=True):
    """Send the loss statement made before acting under `region_epoch`."""

    domain: str
    region_epoch: RegionEpoch


class StatementAnswer(PeerMessage, frozen=True, kw_only=True):
    """The statement as JSON in the attachment; nothing attached where there is none."""

    found: bool
