"""Groups and transactional ids without end: new ones are refused at a limit, those that are there are served."""

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from idempotency import fencing
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId
from region_broker.groups import coordinator
from region_broker.groups.messages import CommitRequest, JoinOutcome, MemberIdentity, OffsetToCommit
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.ports import TxnProducer
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.handlers.groups.errors import ERROR_OF
from tests.fixtures.coordinator import REGION_EPOCH
from tests.fixtures.coordinator_driver import Fixture as TxnFixture
from tests.unit.region_broker.groups.fakes import Fixture, join_request, running, stable_member, tp
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.settings import TxnSettings
from txn_coordinator.verdicts import TxnVerdict

DAY_MS = 24 * 3_600_000
INVALID_GROUP_ID = 24


def commit(group_id: str) -> CommitRequest:
    return CommitRequest(group_id=group_id, offsets=(OffsetToCommit(tp(), 1),))


async def attempts(fixture: Fixture, group_id: str) -> list[V]:
    """Try every way of making a group; return what came of each."""
    join: JoinOutcome = await fixture.groups.join(group_id, join_request())
    beat = await fixture.groups.consumer_heartbeat(
        HeartbeatRequest(
            group_id=group_id, member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
            topic_names=("orders",), owned={},
        )
    )  # fmt: skip
    plain = await fixture.groups.commit_offsets(commit(group_id))
    staged = await fixture.groups.txn_commit_offsets(
        commit(group_id), TxnProducer(ProducerId(7), ProducerEpoch(0))
    )
    return [join.verdict, beat.verdict, plain.verdict, staged.verdict]


async def test_INV_GN1_new_groups_are_refused_when_there_are_too_many(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = Fixture(group_count_max=3)
    fixture.topics.put("orders", 1)
    async with running(fixture):
        for n in range(2):
            assert (await fixture.groups.commit_offsets(commit(f"g{n}"))).verdict is V.OK
        joined = await stable_member(fixture, "g2")
        with caplog.at_level(logging.WARNING):
            assert set(await attempts(fixture, "new")) == {V.TOO_MANY_GROUPS}
            assert set(await attempts(fixture, "newer")) == {V.TOO_MANY_GROUPS}
        (said,) = [record.message for record in caplog.records]
        assert "'new'" in said
        assert "group_count_max = 3" in said
        assert ERROR_OF[V.TOO_MANY_GROUPS] == INVALID_GROUP_ID
        assert sum(shard.group_count() for shard in fixture.groups.shards) == 3

        assert (await fixture.groups.commit_offsets(commit("g1"))).verdict is V.OK
        who = MemberIdentity(joined.member_id)
        mine = replace(commit("g2"), who=who, generation=joined.generation)
        assert (await fixture.groups.commit_offsets(mine)).verdict is V.OK
        rejoined = await fixture.groups.join("g2", join_request(joined.member_id))
        assert rejoined.verdict is V.OK


async def test_INV_GN2_groups_that_went_make_room() -> None:
    fixture = Fixture(group_count_max=2)
    async with running(fixture):
        await fixture.groups.commit_offsets(commit("g0"))
        await fixture.groups.commit_offsets(commit("g1"))
        assert (await fixture.groups.commit_offsets(commit("g2"))).verdict is V.TOO_MANY_GROUPS
        assert await fixture.groups.delete_group("g0") is V.OK
        # Within a second of the last count nobody counts again.
        assert (await fixture.groups.commit_offsets(commit("g2"))).verdict is V.TOO_MANY_GROUPS
        await fixture.clock.advance(1_000)
        assert (await fixture.groups.commit_offsets(commit("g2"))).verdict is V.OK
        assert (await fixture.groups.commit_offsets(commit("g3"))).verdict is V.TOO_MANY_GROUPS
        await fixture.clock.advance(8 * DAY_MS)
        await fixture.groups.expire_offsets()
        assert (await fixture.groups.commit_offsets(commit("g3"))).verdict is V.OK


@pytest.mark.parametrize("how", ["refused", "invited", "offsets expire"])
async def test_INV_GL2_a_group_that_came_to_nothing_makes_room_after_a_takeover_too(
    how: str,
) -> None:
    """Groups begin at a generation above 0 then, which was taken for a record in the ledger: they counted until a restart."""
    fixture = Fixture(group_count_max=1)
    async with running(fixture):
        await fixture.groups.load(region_epoch=fencing.region_epoch(2, 0))
        if how == "refused":
            refused = await fixture.groups.join("g0", join_request(protocols=()))
            assert refused.verdict is V.INCONSISTENT_PROTOCOL
        elif how == "invited":
            asked = await fixture.groups.join("g0", join_request(must_know_member_id=True))
            assert asked.verdict is V.MEMBER_ID_REQUIRED
            await fixture.clock.advance(10_000)
        else:
            await fixture.groups.commit_offsets(commit("g0"))
            await fixture.groups.join("g0", join_request(protocols=()))
            await fixture.clock.advance(8 * DAY_MS)
            await fixture.groups.expire_offsets()
        await fixture.clock.advance(1_000)
        assert sum(shard.group_count() for shard in fixture.groups.shards) == 0
        joined = await stable_member(fixture, "g1")
        assert joined.generation > 1, "as after a takeover"
        fixture.assert_live_is_replay()


async def test_INV_GN3_no_new_group_has_an_id_of_any_length() -> None:
    """20,000 ids of 32 kB are 650 MB, several times over, and a list that no answer holds."""
    fixture = Fixture()
    fixture.topics.put("orders", 1)
    longest = "g" * 1_022 + "\u00e9"
    async with running(fixture):
        assert V.TOO_MANY_GROUPS not in await attempts(fixture, longest)
        assert set(await attempts(fixture, longest + "g")) == {V.TOO_MANY_GROUPS}


async def test_no_new_transactional_id_is_of_any_length() -> None:
    fixture = TxnFixture()
    ports: dict[str, Any] = {"ledger": fixture.ledger, "markers": fixture.markers}
    txn = TransactionCoordinator(**ports, id_blocks=fixture.ids, clock=fixture.clock)
    async with asyncio.TaskGroup() as tasks:
        running_task = tasks.create_task(txn.run())
        await txn.load(LeaderEpoch(fixture.ledger.leader_epoch), REGION_EPOCH)
        # Flink's FlinkKafkaProducer: 1,000 characters of a task's name, an operator's id, a number (FLINK-17691).
        of_flink = "\u0436" * 1_000 + "-" + "0123456789abcdef" * 2 + f"-{2**63 - 1}"
        for name, verdict in ((of_flink, TxnVerdict.OK), ("x" * 2_100, TxnVerdict.OK), ("x" * 2_101, TxnVerdict.INVALID_REQUEST)):  # fmt: skip
            assert (await txn.clients.init_producer_id(name, 60_000)).verdict is verdict
        running_task.cancel()


async def test_INV_GN1_what_was_loaded_counts() -> None:
    first = Fixture(group_count_max=2)
    async with running(first):
        for n in range(2):
            await first.groups.commit_offsets(commit(f"g{n}"))
    again = Fixture(first.ledger, group_count_max=2)
    async with running(again):
        assert (await again.groups.commit_offsets(commit("g2"))).verdict is V.TOO_MANY_GROUPS
        assert (await again.groups.commit_offsets(commit("g1"))).verdict is V.OK


async def test_INV_GN1_a_limit_that_changes_counts_what_is_there() -> None:
    """A limit that is raised to a number that is reached already lets nobody in."""
    first = Fixture(group_count_max=3)
    async with running(first):
        for n in range(3):
            await first.groups.commit_offsets(commit(f"g{n}"))
    again = Fixture(first.ledger, group_count_max=1)
    async with running(again):
        again.groups._settings.group_count_max = 3
        assert (await again.groups.commit_offsets(commit("g3"))).verdict is V.TOO_MANY_GROUPS
        again.groups._settings.group_count_max = 4
        await again.clock.advance(1_000)
        assert (await again.groups.commit_offsets(commit("g3"))).verdict is V.OK
        again.groups._settings.group_count_max = 2
        assert (await again.groups.commit_offsets(commit("g4"))).verdict is V.TOO_MANY_GROUPS
        assert (await again.groups.commit_offsets(commit("g0"))).verdict is V.OK


async def test_C24_limits_of_transactions_that_change_count_for_what_comes_from_then_on() -> None:
    fixture = TxnFixture()
    ports: dict[str, Any] = {"ledger": fixture.ledger, "markers": fixture.markers}
    txn = TransactionCoordinator(**ports, id_blocks=fixture.ids, clock=fixture.clock)
    async with asyncio.TaskGroup() as tasks:
        running_task = tasks.create_task(txn.run())

        async def init(name: str, timeout_ms: int) -> TxnVerdict:
            return (await txn.clients.init_producer_id(name, timeout_ms)).verdict

        for reloaded in range(2):
            txn.limit(timeout_max_ms=900_000, id_count_max=50, connection_order=True)
            await txn.load(LeaderEpoch(fixture.ledger.leader_epoch), REGION_EPOCH)
            assert await init(f"a{reloaded}", 60_000) is TxnVerdict.OK
            count = 1 + reloaded
            txn.limit(timeout_max_ms=50_000, id_count_max=count, connection_order=True)
            assert await init(f"a{reloaded}", 60_000) is TxnVerdict.INVALID_TIMEOUT
            assert await init(f"a{reloaded}", 50_000) is TxnVerdict.OK
            assert await init(f"b{reloaded}", 50_000) is TxnVerdict.INVALID_REQUEST
        running_task.cancel()


async def test_transactional_ids_without_end_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    fixture = TxnFixture()
    ports: dict[str, Any] = {"ledger": fixture.ledger, "markers": fixture.markers}
    txn = TransactionCoordinator(
        **ports, id_blocks=fixture.ids, clock=fixture.clock, settings=TxnSettings(id_count_max=2)
    )
    async with asyncio.TaskGroup() as tasks:
        running_task = tasks.create_task(txn.run())
        await txn.load(LeaderEpoch(fixture.ledger.leader_epoch), REGION_EPOCH)
        for name in ("a", "b"):
            assert (await txn.clients.init_producer_id(name, 60_000)).verdict is TxnVerdict.OK
        with caplog.at_level(logging.WARNING):
            for name in ("c", "d"):
                refused = await txn.clients.init_producer_id(name, 60_000)
                assert refused.verdict is TxnVerdict.INVALID_REQUEST
        (said,) = [record.message for record in caplog.records]
        assert "transactional_id_count_max = 2" in said
        again = await txn.clients.init_producer_id("a", 60_000)
        assert (again.verdict, again.producer_epoch) == (TxnVerdict.OK, 1)
        assert (await txn.clients.init_producer_id(None, 60_000)).verdict is TxnVerdict.OK
        running_task.cancel()


async def test_C45_offsets_of_very_many_groups_are_looked_at_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator, "LOOKS_AT_ONCE", 50)
    fixture = Fixture(retention_check_interval_ms=100 * DAY_MS)
    async with running(fixture):
        for n in range(40):
            await fixture.groups.commit_offsets(commit(f"g{n}"))
        await fixture.clock.advance(8 * DAY_MS)
        expiring = asyncio.get_running_loop().create_task(fixture.groups.expire_offsets())
        seen: set[int] = set()
        while not expiring.done():
            seen.add(sum(shard.group_count() for shard in fixture.groups.shards))
            await asyncio.sleep(0)
        await expiring
        assert len(seen) > 2
        assert sum(shard.group_count() for shard in fixture.groups.shards) == 0
        fixture.assert_live_is_replay()
