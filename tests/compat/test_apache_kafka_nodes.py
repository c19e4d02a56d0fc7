"""How the Apache Kafka that is measured against is set up (`tests.compat.apache_kafka`): no broker is started here."""

from pathlib import Path

import pytest

from tests.compat.apache_kafka import main, places, properties


def lines(count: int, *, sync: bool = False) -> list[str]:
    nodes = places(count, 9192, 9193)
    return properties(nodes, nodes[-1], Path("/k"), sync=sync).splitlines()


def test_three_nodes_have_three_copies_of_everything_two_of_them_in_sync() -> None:
    found = lines(3)
    assert "node.id=3" in found
    assert "controller.quorum.voters=1@127.0.0.1:9193,2@127.0.0.1:9203,3@127.0.0.1:9213" in found
    assert "listeners=PLAINTEXT://127.0.0.1:9212,CONTROLLER://127.0.0.1:9213" in found
    for ledger in ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
        assert f"{ledger}.replication.factor=3" in found
    assert {"default.replication.factor=3", "min.insync.replicas=2"} <= set(found)
    assert {"transaction.state.log.min.isr=2", "share.coordinator.state.topic.min.isr=2"} <= set(
        found
    )
    assert not any("flush" in line for line in found)


def test_one_node_is_as_kafka_ships_it() -> None:
    found = lines(1)
    assert "offsets.topic.replication.factor=1" in found
    assert not any(line.startswith(("default.replication", "min.insync")) for line in found)
    assert lines(1, sync=True)[-1] == "log.flush.interval.messages=1"


def test_as_secure_as_a_region_of_ours_means_tls_and_logins_for_clients(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("drawn\n")
    (node,) = nodes = places(1, 9192, 9193)
    found = properties(nodes, node, Path("/k"), sync=False, secure=tmp_path).splitlines()
    told = dict(line.split("=", 1) for line in found)  # Kafka takes the last word on each key
    assert told["listeners"] == "SASL_SSL://127.0.0.1:9192,CONTROLLER://127.0.0.1:9193"
    assert told["advertised.listeners"] == "SASL_SSL://127.0.0.1:9192"
    assert told["sasl.enabled.mechanisms"] == "SCRAM-SHA-512"
    assert told["ssl.keystore.location"] == "/k/node.pem"
    assert told["ssl.truststore.location"] == str(tmp_path / "ca" / "ca.pem")
    jaas = told["listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config"]
    assert jaas.endswith('username="admin" password="drawn";')
    assert "authorizer.class.name" in told


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["--nodes", "3"]) == 2
    assert "java" in capsys.readouterr().err
