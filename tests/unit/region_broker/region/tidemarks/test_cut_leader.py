"""The cut leader on a real node: what wakes it, what it counts on from, and how its term ends."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from geo_replicator.cut_rounds import RoundPhase, RoundsCore
from geo_replicator.effects import RoundEffect
from geo_replicator.events import RoundEvent, SomethingChanged
from geo_replicator.tidemark import TermRecord, Tidemark
from idempotency.identity import Round
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.tidemarks.cut_leader import CutLeader
from tests.fixtures.failover_regions import Pair
from tests.fixtures.linked_regions import Site, running
from tests.fixtures.waiting import until

REST_MS = 3_600_000


async def test_INV_CL5_a_log_that_moves_again_and_again_wakes_a_resting_leader_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RoundEvent] = []
    step = RoundsCore.step

    def watched(core: RoundsCore, event: RoundEvent, *, now_ms: int) -> list[RoundEffect]:
        seen.append(event)
        return step(core, event, now_ms=now_ms)

    monkeypatch.setattr(RoundsCore, "step", watched)
    site = Site(tmp_path, "primary")
    async with running() as tasks:
        site.start(tasks)
        leader = await site.act(tasks)
        await site.create_topic("orders", 1)
        leader.core.interval_ms = REST_MS
        await leader.final_round()
        await until(lambda: leader.core.phase is RoundPhase.RESTING, what="rest")
        seen.clear()
        for _ in range(20):
            await site.produce("orders", b"x")
        assert seen == [SomethingChanged(urgent=False)]
        resting_at = leader.published.number
        leader.core.interval_ms = 0
        await leader.final_round()
        await site.produce("orders", b"y")
        await until(
            lambda: leader.published.number > resting_at + 1, what="a round that nobody asked for"
        )


async def test_T31_a_final_round_is_repeated_for_what_became_durable_behind_its_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between D and the record of the tidemark a last batch gets durable; it is answered, so it must be covered."""
    site = Site(tmp_path, "primary")
    async with running() as tasks:
        site.start(tasks)
        leader = await site.act(tasks)
        await site.create_topic("orders", 1)
        await leader.final_round()
        leader.core.interval_ms = REST_MS
        publish, late = leader._publish, list[int]()

        async def publish_later(number: int, ledger: Mapping[int, int]) -> None:
            if not late:
                late.append(await site.produce("orders", b"late"))
            await publish(Round(number), ledger)

        monkeypatch.setattr(leader, "_publish", publish_later)
        await site.produce("orders", b"x")
        await leader.final_round()
        orders = site.partition("orders")
        assert late == [1]
        assert leader.published_cut().position_of(key_of(orders)) == orders.high_watermark == 2


async def test_INV_CL7_since_when_something_waits_for_a_tidemark_is_known(tmp_path: Path) -> None:
    site = Site(tmp_path, "primary")
    async with running() as tasks:
        site.start(tasks)
        leader = await site.act(tasks)
        await site.create_topic("orders", 1)
        await leader.final_round()
        leader.core.interval_ms = REST_MS
        await until(lambda: leader.core.phase is RoundPhase.RESTING, what="rest")

        def waiting_since_ms() -> int | None:
            return leader.waiting_since_ms

        assert waiting_since_ms() is None
        await site.produce("orders", b"x")
        since_ms = waiting_since_ms()
        assert since_ms is not None
        await site.produce("orders", b"y")
        assert waiting_since_ms() == since_ms, "the first one counts"
        await leader.final_round()
        assert waiting_since_ms() is None


def end_syncs_at_next_tidemark(
    leader: CutLeader, syncing: "asyncio.Task[None]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the next record of `__tidemarks` be appended, and not become durable."""
    append = leader._append

    def append_only(record: Tidemark | TermRecord, wall_ms: int) -> tuple[int, int]:
        syncing.cancel()
        return append(record, wall_ms)

    monkeypatch.setattr(leader, "_append", append_only)


async def test_INV_CL10_a_term_counts_on_from_a_tidemark_whose_sync_was_under_way_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A tidemark is appended. 2. The node stands still and acts again, before its sync has ended: two of one number stop each mirror."""
    site = Site(tmp_path, "primary")
    async with running() as tasks:
        syncing = tasks.create_task(site.group_commit.run())
        tasks.create_task(site.partitions.noted_starts.run())
        leader = await site.act(tasks)
        await site.create_topic("orders", 1)
        before = await leader.final_round()
        end_syncs_at_next_tidemark(leader, syncing, monkeypatch)
        await site.produce("orders", b"x")
        await until(lambda: leader.publishes, what="a tidemark that is not durable")
        opening = tasks.create_task(site.tidemarks.open_cut_leader(site.term, adopts=False))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not opening.done()
        tasks.create_task(site.group_commit.run())
        assert (await opening).published.number > before.number


async def test_INV_RR9_a_leader_that_is_deposed_while_a_tidemark_waits_tells_nobody_to_take_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        leader = pair.eu.tidemarks.cut_leader
        assert leader is not None
        end_syncs_at_next_tidemark(leader, pair.eu._tasks[0], monkeypatch)
        await pair.eu.write("second")
        await until(lambda: leader.publishes, what="a tidemark that is not durable")
        await pair.eu.role.follow("node 2 leads this region")
        assert "Take over in a region that mirrors" not in caplog.text
        assert "it goes on when a region acts" in leader.failed
