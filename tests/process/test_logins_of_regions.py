"""Two regions that ask for logins: the first user by file, others made at the mirror, known in both."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewTopic

from region_broker.security.login import Security
from region_broker.security.sasl.scram_keys import keys_of, line_of
from region_broker.workbench.credentials import present_as
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_until
from tests.fixtures.secret_scan import save_metrics

pytestmark = [pytest.mark.process, pytest.mark.slow]
CALL_S = 20
ROOTS_PASSWORD, ALICES_PASSWORD, WRONG_PASSWORD = (
    "root-71c0-password",
    "alice-71c0-password",
    "wrong-71c0-password",
)


def settings(user: str, password: str) -> dict[str, Any]:
    return {
        "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password,
        "error_cb": lambda _error: None, "log_level": 0,
    }  # fmt: skip


def admin(bootstrap: str, user: str, password: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, **settings(user, password)})


def logs_in(bootstrap: str, user: str, password: str) -> bool:
    try:
        return bool(admin(bootstrap, user, password).list_topics(timeout=2).brokers)
    except KafkaException:
        return False


def made(results: Mapping[str, Any]) -> None:
    for future in results.values():
        future.result(CALL_S)


def test_users_are_made_at_a_mirror_and_log_in_everywhere(tmp_path: Path) -> None:
    users = tmp_path / "users.txt"
    users.write_text(
        line_of(keys_of("root", "SCRAM-SHA-512", ROOTS_PASSWORD.encode(), b"salty" * 4, 4096))
        + "\n"
    )
    keys = {
        "security_protocol": "SASL_PLAINTEXT", "sasl_users_file": str(users),
        "super_users": "User:root;User:alice",
    }  # fmt: skip
    with LocalCluster.open(
        tmp_path / "c", region_count=2, port=0, new_cluster_id=UUID(int=13), settings=keys
    ) as cluster:
        cluster.start()
        primary, mirror = (place.bootstrap for place in cluster.plan.regions)
        wait_until("the mirror to serve", CALL_S, lambda: logs_in(mirror, "root", ROOTS_PASSWORD))
        at_mirror = admin(mirror, "root", ROOTS_PASSWORD)
        made(at_mirror.create_topics([NewTopic("orders", 1, 1)]))
        alice = UserScramCredentialUpsertion(
            "alice",
            ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096),
            ALICES_PASSWORD.encode(),
            b"s" * 20,
        )
        made(at_mirror.alter_user_scram_credentials([alice]))
        assert logs_in(primary, "alice", ALICES_PASSWORD)
        wait_until("alice at the mirror", CALL_S, lambda: logs_in(mirror, "alice", ALICES_PASSWORD))
        assert not logs_in(mirror, "alice", WRONG_PASSWORD)
        producer = Producer({"bootstrap.servers": mirror, **settings("alice", ALICES_PASSWORD)})
        heard: list[KafkaError | None] = []
        producer.produce("orders", b"x", on_delivery=lambda error, _record: heard.append(error))
        producer.flush(CALL_S)
        assert heard == [None]
        present_as(Security(user="root", password=ROOTS_PASSWORD))
        save_metrics(cluster)
