"""The audit trail of this node: whether it keeps one, where, and its figures.

INV-NAU1  a node keeps a trail where `audit` says so, and with "auto" as soon as a key of its security is set: who locks doors wants to
          know who came
Not here: what is recorded (`security.audit`), keys (`config.node_config`).
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from geo_replicator.failover import State
from geo_replicator.failover_events import Event
from region_broker.config.node_config import NodeConfig
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.storage import Storage
from region_broker.ports.disk import Disk
from region_broker.security.audit.chain_files import AuditRefused, ChainFiles, Owner, owner_problem
from region_broker.security.audit.events import AuditEvent, Kind, Outcome, present_actor
from region_broker.security.audit.recorder import AuditRecorder
from region_broker.security.audit.trail import AuditTrail

FOLDER_NAME: Final = "audit"
_OF_SECURITY: Final = (
    "tls_", "sasl_", "security_protocol", "peer_security_protocol", "http_security_protocol", "listeners",
    "super_users", "encryption_", "http_token",
)  # fmt: skip
"""What keys of security begin with."""


def keeps_trail(config: NodeConfig) -> bool:
    """Return whether a node with that configuration keeps an audit trail (INV-NAU1)."""
    if config.audit != "auto":
        return config.audit == "on"
    return any(
        getattr(config, field.name) != _default(field)
        for field in msgspec.structs.fields(NodeConfig)
        if field.name.startswith(_OF_SECURITY)
    )


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def trail_folder(config: NodeConfig) -> Path:
    """Return where the trail of a node lies."""
    return Path(config.audit_dir) if config.audit_dir else Path(config.data_dir) / FOLDER_NAME


def open_trail(config: NodeConfig, ports: Ports, storage: Storage) -> None:
    """Open the trail that the configuration asks for, and let the metadata be recorded in it; raises `NodeRefused`, `OSError`.

    It is closed with the storage.
    """
    if not keeps_trail(config):
        return
    owner = _owner(config, storage.folder.identity.folder_id)
    try:
        files = ChainFiles.open(
            ports.disk,
            trail_folder(config),
            owner,
            file_bytes_max=config.audit_file_bytes,
            wall_ms=ports.clock.wall_ms(),
        )
    except AuditRefused as error:
        raise NodeRefused(str(error)) from error
    recorder = AuditRecorder(files, ports.clock, node=owner.node, bytes_max=config.audit_bytes_max)
    recorder.record(AuditEvent(kind=Kind.TRAIL, operation="node-started", outcome=Outcome.DONE))
    storage.metadata.audit = recorder


def _owner(config: NodeConfig, folder_id: str) -> Owner:
    return Owner(config.cluster_id, config.region, config.own_node.node_id, folder_id)


def trail_problem(config: NodeConfig, disk: Disk) -> str | None:
    """Return why a start would not open the trail, as far as its folder tells; writes nothing; raises `OSError`."""
    if not keeps_trail(config):
        return None
    return owner_problem(disk, trail_folder(config), _owner(config, ""))


def step_recorder(trail: AuditTrail, region: str) -> Callable[[Event, State, State], None]:
    """Return what records the steps of a region's failover in `trail`, behind: a takeover that has begun goes on with a trail that is full."""

    def record(event: Event, before: State, after: State) -> None:
        takeover = after.takeover or before.takeover
        actor = present_actor()
        if takeover is not None and not actor.request_id:
            actor = msgspec.structs.replace(actor, request_id=f"operation {takeover.operation_id}")
        trail.record(
            AuditEvent(
                kind=Kind.STEP,
                operation=type(event).__name__,
                outcome=Outcome.DONE,
                actor=actor,
                resource_type="REGION",
                resource=region,
                details={
                    "from": before.phase.value,
                    "to": after.phase.value,
                    "region_epoch": int(after.region_epoch),
                },
            )
        )

    return record


def register_figures(trail: AuditTrail, registry: CollectorRegistry) -> None:
    """Let /metrics tell of a trail, where there is one."""
    if isinstance(trail, AuditRecorder):
        registry.register(AuditCollector(trail))


class AuditCollector(Collector):
    """What /metrics tells of a trail."""

    def __init__(self, trail: AuditRecorder) -> None:
        """Read the figures of `trail`."""
        self._trail = trail

    def collect(self) -> Iterator[Metric]:
        """Return the series of this moment."""
        trail = self._trail
        for name, text, counts in (
            ("audit_records", "Audit records written", trail.recorded),
            ("audit_lost", "Events that the audit trail only counted", trail.lost),
        ):
            counter = CounterMetricFamily(f"tidemark_{name}", text, labels=["kind"])
            for kind in Kind:
                counter.add_metric([kind.value], counts[kind.value])
            yield counter
        for name, text, value in (
            ("audit_sequence", "Number of the last audit record", trail.head.seq),
            ("audit_carried_sequence", "Number of the last audit record that is in the topic", trail.carried_seq),
            ("audit_bytes", "Bytes of all files of the audit trail", trail.total_bytes),
            ("audit_unwritable", "1 while changes are refused, as they cannot be recorded", int(trail.problem() is not None)),
        ):  # fmt: skip
            yield GaugeMetricFamily(f"tidemark_{name}", text, value=value)
