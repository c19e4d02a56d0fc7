"""That the judge of quorums sees what is wrong: it is told what no member of a region of three has done."""

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from region_broker.controller.raft.effects import KeepSnapshotPiece, Persist, Role
from region_broker.controller.raft.entries import HardState, LogIndex, Term
from tests.simulation.cluster_swarm.plan import Plan
from tests.simulation.cluster_swarm.stage import Stage
from tests.simulation.quorum_watch import WatchedLife
from tests.simulation.region_cluster import NAMES, Member
from tests.simulation.simulated_loop import run_simulated
from tests.simulation.trace import Trace

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

WELL_S = 30.0


def watched(member: Member) -> WatchedLife:
    """Return who watches the present life of a node."""
    store: Any = member.member._begun.metadata.group._carrier._store
    return cast("WatchedLife", store._told)


def leads_with_others(leader: WatchedLife, follower: WatchedLife) -> None:
    follower._leads(max(leader._quorum.leaders))


def commits_another(_leader: WatchedLife, follower: WatchedLife) -> None:
    last = follower._quorum.committed[follower.applied]
    follower.applied = LogIndex(follower.applied - 1)
    follower._commits(msgspec.structs.replace(last, payload=b"another"))


def leaves_out(_leader: WatchedLife, follower: WatchedLife) -> None:
    follower._commits(follower._quorum.committed[follower.applied])


def commits_alone(leader: WatchedLife, _follower: WatchedLife) -> None:
    quorum = leader._quorum
    last = quorum.committed[max(quorum.committed)]
    new = msgspec.structs.replace(last, index=last.index + 100)
    leader.applied = LogIndex(new.index - 1)
    leader.persisted(Persist(None, None, (new,)))
    leader._commits(new)


def leads_without(leader: WatchedLife, follower: WatchedLife) -> None:
    last = max(each for each in leader._quorum.committed if each > follower.held.snapshot)
    follower.held.entries.pop(last, None)
    follower._leads(max(leader._quorum.leaders) + 1)


def drops_too_much(leader: WatchedLife, _follower: WatchedLife) -> None:
    leader.dropped(leader.held.snapshot + 1)


def loads_as_leader(leader: WatchedLife, _follower: WatchedLife) -> None:
    leader._look(KeepSnapshotPiece.__new__(KeepSnapshotPiece))


def forgets_its_term(leader: WatchedLife, _follower: WatchedLife) -> None:
    leader.persisted(Persist(HardState(Term(0), None), None, ()))


WRONGS: dict[str, list[Callable[[WatchedLife, WatchedLife], None]]] = {
    "INV-QWR1": [forgets_its_term],
    "INV-QWR2": [leads_with_others],
    "INV-QWR3": [commits_alone],
    "INV-QWR4": [leaves_out],
    "INV-QWR5": [drops_too_much],
    "INV-QWR6": [loads_as_leader],
    "INV-QWR7": [commits_another, leads_without],
}


async def seen() -> dict[str, list[list[str]]]:
    """Return what is blamed for each of `WRONGS`."""
    stage = Stage(Plan(7), Trace(), None)
    for name in NAMES:
        await stage.start_soundly(name)
    assert await stage.until(stage.is_well, WELL_S), stage.told_state()
    lives = [watched(stage.nodes[name]) for name in NAMES]
    [leader] = [each for each in lives if each._carrier._core.role is Role.LEADER]
    follower = next(each for each in lives if each is not leader)
    assert not stage.anomalies
    found: dict[str, list[list[str]]] = {}
    for rule, wrongs in WRONGS.items():
        for wrong in wrongs:
            stage.anomalies.clear()
            wrong(leader, follower)
            found.setdefault(rule, []).append(list(stage.anomalies))
    for name in NAMES:
        await stage.kill(name)
    return found


def test_INV_QWR1_INV_QWR2_INV_QWR3_INV_QWR4_INV_QWR5_INV_QWR6_INV_QWR7_what_is_wrong_is_seen() -> (
    None
):
    found = run_simulated(seen(), 7)
    for rule, told in found.items():
        assert all(any(text.startswith(rule) for text in texts) for texts in told), (rule, told)
