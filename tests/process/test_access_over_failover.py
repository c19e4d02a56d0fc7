"""Users, ACLs and quotas that were made in the primary region are in force in the other one: while it is cut off, and when it acts.

INV-SAC1, by real nodes, a client that is not ours, and the commands of an operator.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, ThrottleEvent
from confluent_kafka.admin import AdminClient

from region_broker.security.login import Security
from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.workbench.credentials import present_as
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_until
from tests.fixtures.secret_scan import noted, save_metrics
from tests.fixtures.tidemark_forks import run_tidemark

pytestmark = [pytest.mark.process, pytest.mark.slow]
CALL_S = 20
ROOT, ALICE = "root-55e1-password", "alice-55e1-password"
RATE_BYTES = 1_000


@pytest.fixture
def regions(tmp_path: Path) -> Iterator[LocalCluster]:
    noted(ROOT)
    noted(ALICE)
    for name, secret in (("root", ROOT), ("alice", ALICE)):
        path = tmp_path / f"{name}.password"
        path.write_text(secret)
        path.chmod(0o600)
    users = tmp_path / "users.txt"
    users.write_text(line_of(keys_of("root", "SCRAM-SHA-512", ROOT.encode(), b"salty" * 4, 4096)))
    keys = {"security_protocol": "SASL_PLAINTEXT", "sasl_users_file": str(users), "super_users": "User:root"}  # fmt: skip
    with LocalCluster.open(
        tmp_path / "c", region_count=2, port=0, new_cluster_id=UUID(int=13), settings=keys
    ) as cluster:
        cluster.start()
        yield cluster
        present_as(Security(user="root", password=ROOT))
        save_metrics(cluster)


def settings(bootstrap: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user, "sasl.password": password, "log_level": 0,
    }  # fmt: skip


def topics_of(bootstrap: str, user: str, password: str) -> list[str] | None:
    """Return which topics somebody is shown; None: it was not let in."""
    client = AdminClient(settings(bootstrap, user, password) | {"error_cb": lambda _error: None})
    try:
        return sorted(client.list_topics(timeout=3).topics)
    except KafkaException:
        return None


def written(bootstrap: str, user: str, password: str, topic: str, size: int = 1) -> tuple[int, int]:
    """Write a record as somebody; return its error, and for how many milliseconds the node has throttled the client."""
    heard: list[KafkaError | None] = []
    waits: list[int] = [0]

    def throttled(event: ThrottleEvent) -> None:
        waits.append(int(event.throttle_time * 1_000))

    more = {"throttle_cb": throttled, "message.timeout.ms": CALL_S * 1_000}
    producer = Producer(settings(bootstrap, user, password) | more)
    producer.produce(topic, os.urandom(size), on_delivery=lambda error, _: heard.append(error))
    producer.flush(CALL_S)
    producer.poll(0.2)
    [error] = heard
    return 0 if error is None else error.code(), max(waits)


class Operator:
    """Gives commands as root, at any node."""

    def __init__(self, folder: Path, cluster: LocalCluster) -> None:
        self._environment = {
            "TIDEMARK_BOOTSTRAP": ",".join(place.bootstrap for place in cluster.plan.regions),
            "TIDEMARK_URL": cluster.http, "TIDEMARK_USER": "root", "TIDEMARK_PROTOCOL": "SASL_PLAINTEXT",
            "TIDEMARK_PASSWORD_FILE": str(folder / "root.password"), "TIDEMARK_CONTEXTS": str(folder / "none.json"),
        }  # fmt: skip

    def __call__(self, *words: str) -> None:
        done = run_tidemark(*words, environment=self._environment)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


def test_INV_SAC1_who_may_what_and_how_much_holds_where_the_primary_region_is_gone(
    regions: LocalCluster, tmp_path: Path
) -> None:
    us = regions.place("us").bootstrap
    order = Operator(tmp_path, regions)
    order("topic", "create", "orders")
    order("topic", "create", "secrets")
    order("quota", "set", f"producer_byte_rate={RATE_BYTES}", "--for-user", "alice")
    order("user", "create", "alice", "--new-password-file", str(tmp_path / "alice.password"))
    order("acl", "add", "alice", "write", "topic:orders")
    wait_until("alice at the mirror", CALL_S, lambda: topics_of(us, "alice", ALICE) == ["orders"])
    regions.kill("eu")
    assert {"orders", "secrets"} <= set(topics_of(us, "root", ROOT) or ())
    assert topics_of(us, "alice", ALICE) == ["orders"], "what it has counts on while it is cut off"
    assert topics_of(us, "alice", "wrong-55e1-password") is None
    order("region", "failover", "--to", "us", "--yes")
    assert written(us, "alice", ALICE, "secrets")[0] == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written(us, "root", ROOT, "secrets", 5 * RATE_BYTES) == (0, 0)
    error, waits_ms = written(us, "alice", ALICE, "orders", 5 * RATE_BYTES)
    assert error == 0
    assert waits_ms >= 4_000, "one second's worth is free"
