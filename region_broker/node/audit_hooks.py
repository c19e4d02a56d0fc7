"""Lets the audit trail hear who was let in and who was refused, at every door of a node.

INV-NAH2  which versions of a key of sealed topics count at this node is recorded at its start and whenever it changes: a version that it has
          forgotten is one that was destroyed, as far as this node goes
INV-NAH1  what a peer, a client or a browser said is recorded as names and codes: no request, no header, no credential
Logins by SASL are told by `handlers.sasl.sasl_authenticate`, refused peers by `region.peers.server`. Who only asks over HTTP and may is not
recorded, however he proves who he is: orders are (`http_api.audited_orders`).
Not here: the doors themselves.
"""

from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.http_api.doors import Doors
from region_broker.node.http_doors import told_to
from region_broker.ports.handshakes import GONE
from region_broker.ports.network import FailedHandshake
from region_broker.region.peers.server import PeerServer
from region_broker.security.access import Operation, ResourceType
from region_broker.security.audit.events import AuditEvent, Kind, Outcome
from region_broker.security.audit.trail import AuditTrail
from region_broker.security.failed_handshakes import FailedHandshakes
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, host_of
from region_broker.security.sealing.sealing import CountingKey
from region_broker.wire.listening import BY_TLS
from region_broker.wire.server import KafkaServer


def hear_refusals(
    trail: AuditTrail, doors: Doors, *, peers: PeerServer, failed: FailedHandshakes
) -> None:
    """Let `trail` hear who is refused at the doors that a node has before it has joined its region, too (INV-ARH1)."""
    if not trail.is_on:
        return

    def not_encrypted(port: str, handshake: FailedHandshake) -> None:
        if handshake.reason == GONE:  # a probe
            return
        host = host_of(handshake.peer)
        if port == "peer":
            trail.peer_refused(ANONYMOUS_PRINCIPAL, host, code=handshake.reason)
        else:
            nobody = Identity(ANONYMOUS_PRINCIPAL, host, BY_TLS)
            trail.login(nobody, right=False, reason=f"{port}: {handshake.reason}")

    peers.audit = trail
    doors.on_passed = told_to(trail)
    failed.heard = not_encrypted


def hear(
    trail: AuditTrail, services: Services, doors: Doors, *,
    kafka: KafkaServer, peers: PeerServer, failed: FailedHandshakes,
) -> None:  # fmt: skip
    """Let `trail` hear of refusals and logins; nothing is told where there is none."""
    if not trail.is_on:
        return

    def denied(
        ctx: RequestContext, operation: Operation, resource_type: ResourceType, name: str
    ) -> None:
        trail.refused(
            ctx.identity, operation.name, resource_type.name, name, request_id=ctx.client_id or ""
        )

    def counts(key: CountingKey) -> None:
        trail.record(
            AuditEvent(
                kind=Kind.CHANGE,
                operation="keys",
                outcome=Outcome.DONE,
                resource_type="KEY",
                resource=key.name,
                details={"versions": list(key.versions), "forgotten": list(key.forgotten)},
            )
        )

    services.partitions.sealing.tell(counts)
    services.on_denied = denied
    hear_refusals(trail, doors, peers=peers, failed=failed)
    kafka.on_certificate = lambda identity, reason: trail.login(
        identity, right=not reason, reason=reason
    )
