"""The trail hears of refusals and logins at every door (INV-NAH1)."""

import asyncio
import base64
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from region_broker.http_api.doors import Doors, Passed
from region_broker.node.audit_hooks import hear
from region_broker.ports.handshakes import GONE
from region_broker.ports.network import FailedHandshake
from region_broker.ports.system.disk import RealDisk
from region_broker.security.access import Operation, ResourceType
from region_broker.security.audit.trail import NO_AUDIT
from region_broker.security.failed_handshakes import FailedHandshakes
from region_broker.security.identity import Identity
from region_broker.security.sealing.key_ring import destroyed, with_version, write_ring
from region_broker.security.sealing.key_sources import KeySource, KeySources
from region_broker.security.sealing.sealing import LOOK_MS, KeysFile, Sealing, without_keys
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.node_logs import ManualClock
from tests.fixtures.waiting import until

_NOW = "2026-11-28T04:30:00Z"
ALICE = Identity("User:alice", "10.0.0.1", "SCRAM-SHA-256")


class Node:
    """The doors of a node that keeps `trail`."""

    def __init__(self, trail: Any, sealing: Sealing | None = None) -> None:
        sealing = sealing or without_keys()
        self.sealing = sealing
        partitions = SimpleNamespace(sealing=sealing)
        self.services = cast("Any", SimpleNamespace(on_denied=None, partitions=partitions))
        self.doors = Doors()
        self.kafka = cast("Any", SimpleNamespace(on_certificate=None))
        self.peers = cast("Any", SimpleNamespace(audit=NO_AUDIT))
        self.failed = FailedHandshakes(ManualClock())
        hear(
            trail, self.services, self.doors,
            kafka=self.kafka, peers=self.peers, failed=self.failed,
        )  # fmt: skip


def test_what_no_acl_allows_is_told_with_operation_and_resource() -> None:
    trail = ToldTrail()
    ctx = SimpleNamespace(identity=ALICE, client_id="billing")
    Node(trail).services.on_denied(ctx, Operation.WRITE, ResourceType.TOPIC, "orders")
    [told] = trail.told
    assert (told.kind, told.operation, told.resource_type, told.resource, told.actor.principal) == (
        "refusal", "WRITE", "TOPIC", "orders", "User:alice",
    )  # fmt: skip


def test_what_the_http_door_refuses_is_told_and_questions_that_it_lets_in_are_not() -> None:
    trail = ToldTrail()
    node = Node(trail)
    node.doors.on_passed(Passed(ALICE, "GET", "/v1/region", ""))
    node.doors.on_passed(Passed(ALICE, "POST", "/v1/region/switch", "forbidden"))
    assert [(each.operation, each.reason) for each in trail.told] == [("POST /v1/region/switch", "forbidden")]  # fmt: skip


def test_handshakes_of_tls_that_fail_are_wrong_logins_or_refused_peers_and_probes_are_neither() -> None:  # fmt: skip
    trail = ToldTrail()
    node = Node(trail)
    node.failed.on_port("kafka")(FailedHandshake("10.9.9.9:5", "bad-certificate", "x"))
    node.failed.on_port("peer")(FailedHandshake("10.9.9.9:5", "no-certificate", "x"))
    node.failed.on_port("kafka")(FailedHandshake("10.9.9.9:5", GONE, "x"))
    assert [(each.kind.value, each.actor.host, each.reason) for each in trail.told] == [
        ("login", "10.9.9.9", "kafka: bad-certificate"), ("peer-refusal", "10.9.9.9", "no-certificate"),
    ]  # fmt: skip


def test_logins_by_certificate_are_told_right_and_wrong() -> None:
    trail = ToldTrail()
    node = Node(trail)
    node.kafka.on_certificate(ALICE, "")
    node.kafka.on_certificate(ALICE, "its certificate names nobody")
    assert [each.outcome.value for each in trail.told] == ["done", "refused"]
    assert node.peers.audit is trail


async def test_INV_NAH2_INV_SEA4_a_key_that_is_made_and_destroyed_leaves_a_record(
    tmp_path: Path,
) -> None:
    path, trail = tmp_path / "keys.toml", ToldTrail()
    held = tmp_path / "orders.key"
    held.write_text(base64.b64encode(os.urandom(32)).decode())
    source = KeySource(file=str(held))
    ring = with_version(KeySources(RealDisk()), {}, "orders", source, _NOW)
    first = ring["orders"].versions[0].id
    write_ring(RealDisk().write_file_atomic, path, ring)
    sealing = Sealing(KeysFile(RealDisk(), path), lambda: 0)
    sealing.read()
    Node(trail, sealing)
    clock = ManualClock()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sealing.run(clock))
        await until(lambda: bool(clock.sleepers), what="it sleeps")
        assert len(trail.told) == 1, "what counts at a start"
        write_ring(RealDisk().write_file_atomic, path, destroyed(ring, "orders", first, _NOW))
        clock.pass_ms(LOOK_MS)
        await until(lambda: len(trail.told) == 2, what="the look has found it")
        await until(lambda: bool(clock.sleepers), what="it sleeps")
        clock.pass_ms(LOOK_MS)
        await until(lambda: bool(clock.sleepers), what="it has looked, and found nothing new")
        running.cancel()
    assert [
        (each.kind.value, each.operation, each.resource_type, each.resource, dict(each.details))
        for each in trail.told
    ] == [
        ("change", "keys", "KEY", "orders", {"versions": [first], "forgotten": []}),
        ("change", "keys", "KEY", "orders", {"versions": [], "forgotten": [first]}),
    ]  # fmt: skip


def test_without_a_trail_nothing_hears() -> None:
    node = Node(NO_AUDIT)
    assert node.services.on_denied is None
    assert node.kafka.on_certificate is None


async def test_INV_NAH2_INV_SEA4_a_key_that_is_taken_out_of_the_file_is_forgotten_and_recorded(
    tmp_path: Path,
) -> None:
    path, trail = tmp_path / "keys.toml", ToldTrail()
    held = tmp_path / "orders.key"
    held.write_text(base64.b64encode(os.urandom(32)).decode())
    source = KeySource(file=str(held))
    ring = with_version(KeySources(RealDisk()), {}, "orders", source, _NOW)
    other = with_version(KeySources(RealDisk()), {}, "pay", source, _NOW)
    write_ring(RealDisk().write_file_atomic, path, {**ring, **other})
    sealing = Sealing(KeysFile(RealDisk(), path), lambda: 0)
    sealing.read()
    Node(trail, sealing)
    clock = ManualClock()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(sealing.run(clock))
        await until(lambda: bool(clock.sleepers), what="it sleeps")
        del trail.told[:]
        write_ring(RealDisk().write_file_atomic, path, other)
        clock.pass_ms(LOOK_MS)
        await until(lambda: bool(trail.told), what="the look has found it")
        running.cancel()
    forgotten = ring["orders"].versions[0].id
    assert [(each.resource, dict(each.details)) for each in trail.told] == [
        ("orders", {"versions": [], "forgotten": [forgotten]})
    ]
