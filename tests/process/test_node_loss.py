"""Real processes: the leading one of a region's three nodes is SIGKILLed in the middle of transactions of confluent-kafka."""

import time
from pathlib import Path

import pytest

from chaos.nodes.clients import TOPICS, Load, NodesClients
from chaos.nodes.judge import judged
from chaos.nodes.plan import Fault, Victim
from chaos.nodes.stage import NodesStage
from chaos.readers import read_all
from region_broker.workbench.stage import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
GETS_ON_S = 30.0


@pytest.mark.own_process
def test_nothing_is_lost_with_the_node_that_leads_and_every_client_gets_on(tmp_path: Path) -> None:
    stage = NodesStage(5, tmp_path / "cluster")
    load = Load(tellers=2, producers=1, workers=1, rows=3_000, clients=())
    clients = NodesClients(stage.bootstrap, 5, tmp_path, load, {})

    def all_get_on() -> None:
        since_s = time.monotonic()
        wait_until("progress of every client", GETS_ON_S, lambda: not clients.behind(since_s))

    with stage.cluster as cluster:
        stage.start()
        assert stage.wait_whole()
        clients.prepare()
        clients.start()
        all_get_on()
        name, roles = stage.victim_of(Victim.LEADER)
        assert "leader" in roles
        stage.hurt(Fault.KILL, name)
        all_get_on()
        assert clients.stop() == []
        found = read_all(stage.bootstrap, TOPICS)
        assert judged(clients, found, stage.bootstrap) == []
        assert not cluster.dead()
