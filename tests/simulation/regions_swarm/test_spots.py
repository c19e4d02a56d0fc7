"""That who looks at a mirror looks at no node that was deposed, once it has met a later one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.simulation.kafka_client import Connection
from tests.simulation.regions_swarm import spots
from tests.simulation.regions_swarm.spots import RegionAuditor
from tests.simulation.view_audit import Auditor


async def test_INV_TKO1_a_view_is_not_held_against_that_of_a_leader_that_was_deposed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []

    async def look(_self: Auditor, _connection: Connection) -> None:
        looked.append(spot.leader)

    monkeypatch.setattr(spots, "leader_epoch_of", lambda leader: leader)
    monkeypatch.setattr(spots, "spots", lambda *_: {"us": spot})
    monkeypatch.setattr(Auditor, "__init__", lambda *_: None)
    monkeypatch.setattr(Auditor, "_look", look)
    spot: Any = SimpleNamespace(leader=1, met=1)
    auditor = RegionAuditor(cast("Any", None), "us")
    auditor.name = "us"
    for leader in (1, 3, 2, 3, 4):
        spot.leader = spot.met = leader
        if leader == 2:
            with pytest.raises(ConnectionAbortedError, match="deposed"):
                await auditor._look(cast("Connection", None))
        else:
            await auditor._look(cast("Connection", None))
    assert looked == [1, 3, 3, 4]
