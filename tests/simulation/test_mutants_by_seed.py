"""Do the simulated runs bite? A node that leaves out one rule must be caught by one of the first seeds.

Each mutant takes one rule out of the product, as a plausible implementation would (`tidemarks.md` section 1), and
nothing else. What the runs cannot see of a rule has a test of its own in `tests/spec`.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from idempotency.identity import Round
from idempotency.partition_state import PartitionState
from idempotency.producer_state import ProducerTable
from idempotency.window import BatchWindow
from region_broker.handlers.dispatch import dispatcher as dispatch
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.log.parts.durability import LogDurability
from region_broker.partitions.parts.sight import Sight
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.steps import effects as failover_steps
from region_broker.wire.server import CloseConnection
from tests.simulation import region_pair as pairs
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.test_pipelined import Life as PipelinedLife
from tests.simulation.test_restarts import Alone
from tests.simulation.test_restarts import run as restart
from tests.simulation.test_transfers import Life
from txn_coordinator.ports import MarkerOrder, MarkerResult
from txn_coordinator.rounds import EnteredRound, RoundGate
from txn_coordinator.serving.ledger_rounds import LedgerRounds

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
SEEDS_MAX = 25
Mutant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A mutant that hangs has been caught; and nothing is said of the dying process's last words."""
    monkeypatch.setattr(pairs, "WAIT_LOOKS", 2_500)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def one_life(folder: Path, seed: int) -> None:
    async with pairs.region_pair(folder, seed) as pair:
        await Life(pair, random.Random(seed)).run()


async def restarts(folder: Path, seed: int) -> None:
    alone = Alone(folder, seed)
    await alone.start()
    try:
        await restart(alone)
    finally:
        await alone.stop()


async def pipelined(folder: Path, seed: int) -> None:
    # With delays: what is sent behind a request must have the time to arrive after that one has failed.
    async with pairs.region_pair(folder, seed, delay_ms_max=1.0) as pair:
        await PipelinedLife(pair, random.Random(seed)).run()


def a_cut_is_where_the_logs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold no markers, and cut at HW; shards answer a little late, as they would from other nodes."""
    enter_round = LedgerRounds.enter_round

    async def late(self: LedgerRounds, round_: int) -> dict[int, EnteredRound]:
        entered = await enter_round(self, Round(round_))
        await asyncio.sleep(0.005)
        return entered

    monkeypatch.setattr(LedgerRounds, "enter_round", late)
    monkeypatch.setattr(RoundGate, "is_free", lambda _self, _stamp: True)
    monkeypatch.setattr(PartitionState, "first_commit_marker", lambda _self, _stamp: None)


def mirror_shows_all_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sight, "visible_end", property(lambda self: self.high_watermark))


def candidate_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def cut_logs(*_args: object) -> list[object]:
        return []

    monkeypatch.setattr(failover_steps, "cut_logs", cut_logs)


def quarantine_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def move_in(_self: object, provenance: Any, _read: object) -> Any:
        return provenance

    monkeypatch.setattr(QuarantineStore, "move_in", move_in)


def one_partition_gets_no_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    write = PartitionMarkerChannel.write

    def forgetful(self: PartitionMarkerChannel, orders: Sequence[MarkerOrder]) -> None:
        for order in orders:
            for tp in order.partitions:
                if tp.partition == 3:
                    order.listener.marked(order, tp, MarkerResult.DONE)
                else:
                    write(self, [replace(order, partitions=(tp,))])

    monkeypatch.setattr(PartitionMarkerChannel, "write", forgetful)


def answers_before_the_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        LogDurability, "stable_offset", property(lambda self: self._content.end_offset)
    )


def duplicates_are_not_recognised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BatchWindow, "find", lambda *_args: None)


def producers_expire_by_event_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Kafka does: by the times that records carry, and the wall clock (C8)."""

    def expire(self: ProducerTable, _monotonic_ms: int, retention_ms: int) -> list[int]:
        oldest_ms = LoopClock().wall_ms() - retention_ms
        found = [e for e in self if not e.in_transaction and e.last_timestamp_ms <= oldest_ms]
        for entry in found:
            del self._entries[entry.producer_id]
        return [entry.producer_id for entry in found]

    monkeypatch.setattr(ProducerTable, "expire", expire)


def a_failed_produce_is_overtaken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer it and go on with what was sent behind it, as Kafka does."""
    forward = dispatch.Dispatcher._forward

    async def answered(self: dispatch.Dispatcher, api: Any, ctx: Any, *request: Any) -> Any:
        try:
            return await forward(self, api, ctx, *request)
        except CloseConnection as closing:
            ctx.connection_state.produce_broken = False
            if closing.answer is None:
                raise
            return closing.answer

    monkeypatch.setattr(dispatch.Dispatcher, "_forward", answered)
    monkeypatch.setattr(dispatch, "_in_order", lambda *_args: nullcontext())


Run = Callable[[Path, int], Any]
MUTANTS: list[tuple[Mutant, Run]] = [
    (a_cut_is_where_the_logs_end, one_life),
    (mirror_shows_all_it_has, one_life),
    (candidate_cuts_nothing, one_life),
    (quarantine_keeps_nothing, one_life),
    (one_partition_gets_no_marker, one_life),
    (answers_before_the_sync, restarts),
    (duplicates_are_not_recognised, restarts),
    (producers_expire_by_event_times, pipelined),
    (a_failed_produce_is_overtaken, pipelined),
]


@pytest.mark.parametrize(("mutant", "run"), MUTANTS, ids=[m.__name__ for m, _ in MUTANTS])
async def test_a_node_without_a_rule_is_caught(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mutant: Mutant, run: Run
) -> None:
    mutant(monkeypatch)
    for seed in range(SEEDS_MAX):
        try:
            await run(tmp_path / str(seed), seed)
        except (AssertionError, ExceptionGroup, OSError) as caught:
            print(f"seed {seed}: {caught!r}"[:300])
            return
    pytest.fail(f"{SEEDS_MAX} runs did not notice")
