"""That a drill's doors are shut, and that who knocks there would tell if one were open."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.cimpl import Producer

from chaos.access.doors import LOOKER, SEALED, WRITER, Doors
from chaos.access.guard import Guard
from chaos.access.judge import Change
from chaos.access.knockers import Knocker, comes_in
from chaos.nodes.clients import writers_write
from chaos.soak_stage import ClusterStage
from chaos.writers.fleet import Fleet
from chaos.writers.writer import TOPIC
from tests.fixtures.secret_scan import noted, save_metrics

pytestmark = [pytest.mark.process, pytest.mark.slow]
ANSWER_S = 20.0
WORD = noted("behind-shut-doors-3c95")


@contextmanager
def behind_doors(folder: Path) -> Iterator[tuple[ClusterStage, Guard, str]]:
    """A region of one node behind shut doors, with the topic, the users and the ACLs of a drill, and a record."""
    stage = ClusterStage(folder, 1, Random(3))
    doors = Doors(stage.cluster)
    try:
        stage.cluster.start()
        bootstrap = stage.cluster.bootstrap
        guard = Guard(doors, stage.cluster, Random(3), topic=TOPIC, tell=stage.tell, blame=stage.blame)  # fmt: skip
        guard.prepare(bootstrap, writers_write(), 1)
        Fleet.prepare(bootstrap, 1, SEALED)
        producer = Producer({"bootstrap.servers": bootstrap, **doors.login(WRITER).kafka_config()})
        producer.produce(TOPIC, value=WORD, partition=0)
        assert producer.flush(ANSWER_S) == 0
        yield stage, guard, bootstrap
        save_metrics(stage.cluster)
    finally:
        stage.cluster.stop()


def knock(knocker: Knocker, bootstrap: str) -> list[str]:
    return [each(bootstrap) for each in (knocker._log_in, knocker._write, knocker._read)]


def test_INV_DRA4_INV_DRA5_who_must_not_come_in_does_not_and_would_be_seen(tmp_path: Path) -> None:
    with behind_doors(tmp_path) as (stage, guard, bootstrap):
        doors = guard.doors
        assert comes_in(bootstrap, doors.login(LOOKER))
        assert comes_in(bootstrap, replace(doors.login(LOOKER), password="another")) is False
        knocker = Knocker([bootstrap], doors.login(LOOKER), TOPIC)
        refused = "TOPIC_AUTHORIZATION_FAILED"
        assert knock(knocker, bootstrap) == ["wrong password refused", f"write {refused}", f"read {refused}"]  # fmt: skip
        assert not knocker.let_in
        literal, topic = ResourcePatternType.LITERAL, ResourceType.TOPIC
        may = [(LOOKER, topic, TOPIC, literal, each) for each in (AclOperation.WRITE, AclOperation.READ)]  # fmt: skip
        doors.let_in(bootstrap, may)
        knock(knocker, bootstrap)
        assert len(knocker.let_in) == 2, "written, and read"
        changes = [Change(1, 0, "user passing-1", "4097", answered=True)]
        guard._judge_logins(1, changes, {}, ("eu",))
        doors.renew("eu")
        doors.rotate(mirror="eu", acting="eu")
        assert knock(knocker, bootstrap)[0] == "wrong password refused"
        assert comes_in(bootstrap, doors.login(LOOKER)), "by the new certificate"
        stage.check_ends()
        assert not stage.anomalies
