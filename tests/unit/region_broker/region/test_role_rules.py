"""A region's role on one node of several: in which order it stops, and what leads when it begins."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from idempotency.identity import RegionEpoch
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.verdicts import GroupVerdict
from region_broker.log.failures import NotLeader
from region_broker.partitions.parts.sight import Isolation
from region_broker.region.ports import RegionLog, RoleServices, RoundFailed, Term
from region_broker.region.role import NodeIdentity, RegionRole
from region_broker.region.role_sides import GroupRole
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture
from tests.unit.region_broker.groups import fakes

REGION_EPOCH = RegionEpoch(8)
TERM = Term(REGION_EPOCH, LEADER_EPOCH, "eu")


class Coordinator:
    """Transactions, or groups: what it was asked for stands in `said`."""

    def __init__(self, said: list[str], name: str, services: "Services") -> None:
        self._said, self._name, self._services = said, name, services

    async def load(self, _term: Term) -> None:
        self._said.append(f"{self._name} load")

    async def resign(self) -> None:
        self._said.append(f"{self._name} resign, {self._services.told()}")

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self._said.append(f"{self._name} ends")


class CutLeader:
    """Publishes nothing."""

    async def run(self) -> None:
        await asyncio.Event().wait()


async def _opened_cut_leader(_term: object, _adopts: bool) -> Any:
    return CutLeader()


class Services:
    """A role with real logs, and coordinators that only say what they are told."""

    def __init__(self, groups: GroupRole | None = None) -> None:
        self.some: Fixture = fixture(leads=False)
        self.said: list[str] = []
        self.committed = asyncio.Event()
        self.committed.set()
        services = RoleServices(
            logs=self._logs,
            settle_logs=self._settle_logs,
            transactions=cast("Any", Coordinator(self.said, "transactions", self)),
            groups=groups or cast("Any", Coordinator(self.said, "groups", self)),
            open_cut_leader=_opened_cut_leader,
            open_link=cast("Any", None),
            settle_commits=self._settle_commits,
        )
        self.role = RegionRole(NodeIdentity("c", "eu", 1, "h", 1), services, REGION_EPOCH)

    def told(self) -> str:
        """Return what clients are told now, and what logs take."""
        gate = "open" if self.role.acting else "closed"
        return f"gate {gate}, {'leads' if self.some.partition.is_leader else 'follows'}"

    def is_steady(self) -> bool:
        return self.role.acting and not self.role.awaits_readers

    def _logs(self) -> Iterable[RegionLog]:
        return cast("Iterable[RegionLog]", list(self.some.table))

    async def _settle_logs(self) -> None:
        self.said.append("logs")

    async def _settle_commits(self, _term: Term) -> None:
        self.said.append(f"commits, {self.told()}")
        await self.committed.wait()

    async def act(self) -> None:
        await self.role.act(TERM, adopts=False, base={}, reason="it begins")


@asynccontextmanager
async def played(groups: GroupRole | None = None) -> AsyncIterator[Services]:
    services = Services(groups)
    running = asyncio.get_running_loop().create_task(services.role.run())
    yield services
    running.cancel()
    await asyncio.wait([running])


async def test_INV_LSH3_coordinators_load_behind_the_commit_of_all_that_the_logs_hold() -> None:
    """R6: what an older leader left may be in a ledger, and not be committed yet."""
    async with played() as services:
        services.committed.clear()
        acting = asyncio.get_running_loop().create_task(services.act())
        for _ in range(20):
            await asyncio.sleep(0)
        assert services.said == ["logs", "commits, gate closed, leads"]
        assert services.role.leader_epoch == -1
        services.committed.set()
        await acting
        assert services.said[2:] == ["groups load", "transactions load"]
        assert services.role.leader_epoch == LEADER_EPOCH


async def test_a_node_that_follows_resigns_with_its_gate_closed_and_its_logs_as_they_were() -> None:
    """Coordinators answer who waits first: behind that, logs fail what is under way as unknown (P18)."""
    async with played() as services:
        await services.act()
        services.role.open_gate()
        await asyncio.sleep(0)
        services.said.clear()
        await services.role.follow("node 2 leads")
        assert services.said[:2] == [
            "transactions resign, gate closed, leads", "groups resign, gate closed, leads",
        ]  # fmt: skip
        assert {"transactions ends", "groups ends"} <= set(services.said)
        assert services.told() == "gate closed, follows"
        assert services.role.serving is None
        assert services.role.reason_not_acting == "node 2 leads"


async def test_INV_PT9_who_leads_no_more_tells_no_reader_that_its_logs_end_where_they_begin() -> (
    None
):
    """1. A node that led stands still, and is deposed. 2. It goes on, and follows. 3. A Fetch that came meanwhile is read before it knows whom.

    Found by `chaos.nodes --secure` on a busy machine: a reader was told of every log that it is empty.
    """
    async with played() as services:
        await services.act()
        services.role.open_gate()
        partition = services.some.partition
        partition.writer.append(batch())
        services.some.sync()
        assert partition.sight.last_stable_offset == 1
        told = list[tuple[bool, int]]()

        def read() -> None:
            told.append((partition.sight.is_known, partition.sight.last_stable_offset))

        partition.watchers.add(read)
        await services.role.follow("node 2 leads")
        read()
        assert (True, 0) not in told


async def test_INV_PT9_a_region_that_is_fenced_goes_on_telling_the_end_that_readers_saw() -> None:
    """1. A candidate asks a region that acts for a promise. 2. It stands fenced. 3. Nothing is cut: its logs end where they ended."""
    async with played() as services:
        await services.act()
        services.role.open_gate()
        partition = services.some.partition
        partition.writer.append(batch())
        services.some.sync()
        told = list[tuple[bool, int, int]]()

        def read() -> None:
            sight = partition.sight
            is_known = all(map(sight.knows_end, Isolation))
            told.append((is_known, sight.visible_end, sight.last_stable_offset))

        partition.watchers.add(read)
        await services.role.fence("another region is about to act")
        read()
        assert not partition.is_leader
        assert set(told) == {(True, 1, 1)}


async def test_INV_PT9_a_fence_tells_no_end_that_nobody_knew() -> None:
    """1. A node starts, and no role has said yet how far readers see. 2. Another region asks for a promise."""
    async with played() as services:
        await services.role.fence("another region is about to act")
        assert not services.some.partition.sight.is_known


async def test_INV_LSH5_a_node_follows_before_changes_under_way_have_ended() -> None:
    """1. A topic is being made. 2. Another node leads. 3. What makes the topic waits for a quorum, up to 10 s; nobody else does."""
    async with played() as services:
        await services.act()
        services.role.open_gate()
        partition = services.some.partition
        partition.writer.append(batch())
        waiting = asyncio.get_running_loop().create_task(partition.wait_committed(1))
        await asyncio.sleep(0)
        with services.role.change():
            following = asyncio.get_running_loop().create_task(services.role.follow("node 2 leads"))
            for _ in range(20):
                await asyncio.sleep(0)
            assert waiting.done()
            assert following.done()
            assert services.role.serving is None
        with pytest.raises(NotLeader):
            waiting.result()


async def test_INV_NX9_no_pattern_of_a_group_holds_up_a_change_of_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A tenant's pattern is looked up in a thread, for minutes. 2. Another region asks for a promise: the role ends when its services have."""
    matching = fakes.HeldMatching(monkeypatch)
    some = fakes.Fixture()
    for name in "abc":
        some.topics.put(name, 1)
    async with played(GroupRole(some.groups)) as services:
        await services.act()
        await fakes.settle()
        joins = HeartbeatRequest(
            group_id="g", member_id="A", member_epoch=0, rebalance_timeout_ms=60_000,
            topic_names=(), topic_regex=".*", owned={},
        )  # fmt: skip
        joined = await some.groups.consumer_heartbeat(joins)
        assert joined.verdict is GroupVerdict.OK
        matching.hold()
        some.topics.put("d", 1)
        goes_on = HeartbeatRequest(group_id="g", member_id="A", member_epoch=joined.member_epoch)
        assert (await some.groups.consumer_heartbeat(goes_on)).verdict is GroupVerdict.OK
        await matching.begun.wait()
        fencing = asyncio.get_running_loop().create_task(services.role.fence("another one acts"))
        await fakes.settle()
        matching.let_go()
        await fencing
    assert matching.looked == ["a"]


async def test_INV_RR8_a_region_that_took_over_acts_steadily_once_readers_are_back() -> None:
    async with played() as services:
        await services.act()
        services.role.open_gate()
        assert services.is_steady()
        key = services.some.partition.key
        await services.role.act(TERM, adopts=False, base={key: 0}, reason="it took over")
        services.role.open_gate()
        assert services.role.acting
        assert not services.is_steady()
        services.role.readers_are_back()
        assert services.is_steady()


async def test_INV_RR4_a_last_tidemark_that_waits_is_refused_where_the_term_ends_meanwhile() -> (
    None
):
    """1. A candidate asks for a promise. 2. A change under way is waited for. 3. This node is deposed. 4. The change ends.

    Found by `tests.simulation.regions_swarm --seed 5417 --minutes 0.2`: the node ended.
    """
    async with played() as services:
        await services.act()
        services.role.open_gate()
        with services.role.change():
            waiting = asyncio.get_running_loop().create_task(services.role.final_round())
            await asyncio.sleep(0)
            await services.role.follow("node 2 leads")
        with pytest.raises(RoundFailed, match="ask again"):
            await waiting


async def test_INV_LSH1_the_gate_is_closed_before_a_follower_waits_for_anything() -> None:
    services = Services()  # it does not run yet
    services.role._gate_open = True
    following = asyncio.get_running_loop().create_task(services.role.follow("node 2 leads"))
    await asyncio.sleep(0)
    assert not services.role.acting
    following.cancel()


async def test_INV_RGR11_who_tells_leaders_of_data_groups_hears_when_the_gate_moves() -> None:
    async with played() as services:
        told: list[bool] = []
        services.role.on_gate = lambda: told.append(services.role.acting)
        await services.act()
        services.role.open_gate()
        services.role.close_gate("another region takes over")
        services.role.close_gate("it does")
        assert told == [True, False]
        assert services.role.reason_not_acting == "it does"
