"""Clients by two listeners of a region of three nodes, one with TLS and one without, while the node that leads is killed.

Goal: each client works, through the election too, and never hears of an address of the other listener, nor of the `kafka` address.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.client.retirement import retire
from region_broker.security.tls_contents import TlsFiles
from tests.fixtures.certificates import put, user_certificate
from tests.process.client_fixture import CALL_S
from tests.process.tls_cluster import LISTENERS, TlsCluster, open_tls_cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC = "t"
SUPER_USERS = "User:CN=alice;User:ANONYMOUS"
"""Where a listener asks who clients are, only these may do anything without ACLs."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    folder = tmp_path_factory.mktemp("listeners")
    with open_tls_cluster(folder, 1, node_count=3, further=True, super_users=SUPER_USERS) as made:
        made.start()
        yield made


class Client:
    """Clients by one listener, and the addresses that they have ever heard of."""

    def __init__(self, cluster: TlsCluster, listener: str, alice: TlsFiles) -> None:
        self.places = cluster.met_by(listener)
        secured = {
            "security.protocol": "SSL", "ssl.ca.location": alice.ca, "ssl.certificate.location": alice.certificate, "ssl.key.location": alice.key,
        }  # fmt: skip
        self._settings: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.places.values()), "log_level": 0, "statistics.interval.ms": 50, "stats_cb": self._note,
            **(secured if listener == "MUTUAL" else {}),
        }  # fmt: skip
        self.heard_of: set[str] = set()
        self.value = f"by-{listener}"
        self.admin = AdminClient(self._settings)
        self.producer = Producer(self._settings | {"transactional.id": self.value})

    def _note(self, statistics: str) -> None:
        """Take the address of each node that a client was told of: such a broker has an id."""
        for broker in json.loads(statistics)["brokers"].values():
            if broker["nodeid"] >= 0:
                self.heard_of.add(broker["nodename"])

    def told(self) -> dict[int, str]:
        """Return where nodes are met, as metadata have it now."""
        brokers = self.admin.list_topics(timeout=CALL_S).brokers.values()
        return {broker.id: f"{broker.host}:{broker.port}" for broker in brokers}

    def commits(self, round_number: int) -> None:
        self.producer.begin_transaction()
        self.write(round_number)
        self.producer.commit_transaction(CALL_S)

    def write(self, round_number: int) -> None:
        for partition in range(3):
            self.producer.produce(TOPIC, f"{self.value}-{round_number}", partition=partition)

    def reads(self, count: int) -> list[str]:
        """Return `count` committed values, sorted."""
        consumer = Consumer(
            self._settings | {"group.id": self.value, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        )  # fmt: skip
        consumer.subscribe([TOPIC])
        found: list[str] = []
        for _ in range(100):
            messages = consumer.consume(100, 0.5)
            found += [m.value().decode() for m in messages if m.error() is None]  # type: ignore[union-attr]
            if len(found) >= count:
                break
        consumer.close()
        return sorted(found)


def test_each_client_works_by_its_own_listener_though_the_leader_is_killed(
    cluster: TlsCluster, tmp_path: Path
) -> None:
    alice = put(tmp_path / "alice", user_certificate())
    clients = [Client(cluster, listener, alice) for listener in LISTENERS]
    ids = {node.name: node.node_id for node in cluster.plan.nodes}
    clients[0].admin.create_topics([NewTopic(TOPIC, 3, 3)])[TOPIC].result(CALL_S)
    for client in clients:
        assert client.told() == {ids[name]: place for name, place in client.places.items()}
        client.producer.init_transactions(CALL_S)
        client.commits(0)
        client.producer.begin_transaction()
        client.write(1)
    leader = clients[1].admin.list_topics(TOPIC, CALL_S).topics[TOPIC].partitions[0].leader
    cluster.kill(next(name for name, node_id in ids.items() if node_id == leader))
    for client in clients:
        client.producer.commit_transaction(CALL_S)
        client.commits(2)
    expected = sorted(f"{c.value}-{number}" for c in clients for number in range(3) for _ in range(3))  # fmt: skip
    for client in clients:
        assert client.reads(len(expected)) == expected
        assert client.told().items() <= {(ids[n], place) for n, place in client.places.items()}
        assert retire(client.producer) == 0
        assert client.heard_of <= set(client.places.values()), "no address of another listener"
        assert client.heard_of
