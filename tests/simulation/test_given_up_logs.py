"""Rule T36: a lost log that an operator gives up goes on at the newest tidemark, whatever happens meanwhile (ADR 37).

A region has lost one of a topic's two logs. Each run starts from a copy of its folder, dies somewhere in the acceptance, is
started again, and must end where the run ended that nothing disturbed.
"""

import contextlib
import copy
import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.region.failover.operations import Operation, OperationRefused
from tests.simulation.disk import Crashed
from tests.simulation.folder_faults import lose_log
from tests.simulation.lost_log import COVERED, TOPIC, committed_values, loses_a_log
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region, region_pair, until
from tests.simulation.test_disk_and_clock import connect
from tests.simulation.test_folders_without_history import shown, three_records
from tests.simulation.test_half_folders import reason

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
DURABLE = frozenset({"fdatasync", "write_file_atomic", "rename"})


class Outset:
    """The primary as it stood when it had lost the log; every run starts from here, one at a time."""

    def __init__(self, region: Region) -> None:
        self._region, self._disk = region, copy.deepcopy(region.disk)

    def region(self) -> Region:
        self._region.disk = copy.deepcopy(self._disk)
        return self._region


async def ordered(region: Region) -> Operation | None:
    """Give the order, unless it stands already; None where it does."""
    await until(
        lambda: (
            region.died
            or acts(region)
            or (region.phase is not Phase.ACTING and region.node.failover.running)
        ),
        "it knows",
    )
    if region.died or region.phase is not Phase.DISPUTED:
        return None
    return region.node.operations.begin_accept_loss(confirmed=True)


def acts(region: Region) -> bool:
    return region.phase is Phase.ACTING and region.node.role.acting


async def given_up(region: Region) -> None:
    """Give the order and wait until the region acts, or has died."""
    await ordered(region)
    await until(lambda: region.died or acts(region), "it acts, or died")
    region.disk.crash_at = None


@dataclass(frozen=True)
class Result:
    """What an acceptance led to, as far as it must be the same however often it was interrupted."""

    starts: tuple[int, int]
    values: dict[int, list[bytes]]
    lineage: list[tuple[int, str]]
    lost: tuple[str, ...]
    named: bool
    accepted: bool
    open_transactions: int


async def result_of(region: Region) -> Result:
    logs = [region.partition(TOPIC, index) for index in (0, 1)]
    await until(
        lambda: all(log.sight.visible_end == log.high_watermark for log in logs), "none is open"
    )
    client = await connect(region)
    values = await committed_values(client, logs[0].log_start_offset)
    domain = region.node.storage.metadata.image.main_domain
    stated = region.node.storage.quarantine.statement(domain.name, domain.region_epoch)
    assert stated is not None
    return Result(
        starts=(logs[0].log_start_offset, logs[1].log_start_offset),
        values=values,
        lineage=[(entry.region_epoch, entry.acting_region) for entry in domain.lineage],
        lost=tuple(region.node.storage.partitions.lost()),
        named=f"{TOPIC}-0 (it goes on at {COVERED})" in stated.open_bound,
        accepted=stated.accepted,
        open_transactions=sum(len(log.state.open_transactions()) for log in logs),
    )


async def durable_steps(region: Region) -> list[int]:
    """Return how many disk operations lie before each kind of step that makes something durable, in an acceptance."""
    await region.begin()
    await until(lambda: region.phase is Phase.DISPUTED, "it misses the log")
    steps: dict[tuple[str, str, Phase], int] = {}
    begun = region.disk.operations

    def note(operation: str, path: Path) -> None:
        if operation in DURABLE:
            kind = operation, path.name, region.phase
            steps.setdefault(kind, region.disk.operations - begun - 1)

    region.disk.fault = note
    await given_up(region)
    region.disk.fault = None
    return sorted(steps.values())


async def interrupted(region: Region, at: int, chance: random.Random) -> Result:
    """Die before disk operation `at` of the acceptance, by SIGKILL or by a power cut; end it in the next life."""
    await region.begin()
    await until(lambda: region.phase is Phase.DISPUTED, "it misses the log")
    region.disk.crash_after(at)
    await given_up(region)
    while not acts(region) or region.died:
        await region.kill(power=chance if chance.random() < 0.5 else None)
        with contextlib.suppress(Crashed, BaseExceptionGroup):
            await region.begin()
            await given_up(region)
    result = await result_of(region)
    await region.kill()
    return result


async def test_T18_giving_up_a_log_killed_at_any_durable_step_ends_as_if_it_had_not_been(
    tmp_path: Path,
) -> None:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    try:
        await loses_a_log(region)
        outset = Outset(region)
        steps = await durable_steps(outset.region())
        expected = await result_of(region)
        await region.kill()
        assert expected == Result(
            starts=(COVERED, 0),
            values={0: [], 1: [b"both-0", b"both-1", b"both-2"]},
            lineage=[(16, "eu")],
            lost=(),
            named=True,
            accepted=True,
            open_transactions=0,
        )
        for at in steps:
            assert await interrupted(outset.region(), at, random.Random(at)) == expected, at
    finally:
        await region.kill()


async def dies_in_the_middle(region: Region) -> None:
    """Let a region that misses a log die once the order to give it up is durable, and its log goes on empty."""
    await region.begin()
    await until(lambda: region.phase is Phase.DISPUTED, "it misses the log")

    def die_closing_history(operation: str, path: Path) -> None:
        if region.phase is Phase.FENCING and (operation, path.name) == ("fdatasync", "journal"):
            region.disk.crash_after(0)

    region.disk.fault = die_closing_history
    await given_up(region)
    assert region.died
    await region.kill()


@pytest.mark.parametrize("topic", [TOPIC, TRANSACTION_LEDGER])
async def test_T36_a_log_that_is_lost_while_another_one_is_given_up_was_not_meant_by_the_order(
    tmp_path: Path, topic: str
) -> None:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    try:
        await loses_a_log(region)
        await dies_in_the_middle(region)
        number = 1 if topic == TOPIC else 0
        lose_log(region, topic, number)
        await region.begin()
        await until(lambda: f"{topic}-{number}" in reason(region) or acts(region), "it says which")
        assert not acts(region)
        await until(lambda: "whole data folder back" in reason(region), "it says the ways out")
        if topic == TOPIC:
            operation = region.node.operations.begin_accept_loss(confirmed=True)
            await until(lambda: operation.status != "running", "it ends")
            assert operation.status == "succeeded", operation
            assert operation.statement is not None
            assert f"{TOPIC}-1 (it goes on at {COVERED})" in operation.statement.open_bound
        else:
            with pytest.raises(OperationRefused, match="whole data folder back"):
                region.node.operations.begin_accept_loss(confirmed=True)
    finally:
        await region.kill()


async def test_T36_a_ledger_that_is_lost_in_the_middle_of_a_takeover_is_not_taken_for_empty(
    tmp_path: Path,
) -> None:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    try:
        await loses_a_log(region)
        await region.begin()

        def die_adopting(operation: str, path: Path) -> None:
            if region.phase is Phase.ADOPTING:
                region.disk.crash_after(0)

        region.disk.fault = die_adopting
        await given_up(region)
        assert region.died
        await region.kill()
        lose_log(region, TRANSACTION_LEDGER, 0)
        await region.begin()
        await until(lambda: acts(region) or f"{TRANSACTION_LEDGER}-0" in reason(region), "which")
        assert region.phase is Phase.ADOPTING
        assert "whole data folder back" in reason(region)
        with pytest.raises(OperationRefused, match="the loss was accepted, as operation"):
            region.node.operations.begin_accept_loss(confirmed=True)
    finally:
        await region.kill()


async def test_T36_a_region_that_answers_again_in_the_middle_keeps_a_log_from_being_given_up(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.stop()
        lose_log(pair.eu, TOPIC, 0)
        await dies_in_the_middle(pair.eu)
        await pair.us.start()
        await pair.eu.begin()
        await pair.until(
            lambda: acts(pair.eu) or "region failover --to us" in reason(pair.eu), "it says why not"
        )
        assert not acts(pair.eu)
        assert pair.us.partition(TOPIC, 0).log_start_offset == 0
        await pair.until(lambda: pair.us.phase in {Phase.MIRRORING, Phase.FENCED}, "us may act")
        await pair.fail_over()
        await pair.until(
            lambda: pair.eu.phase is Phase.MIRRORING and shown(pair.eu) == 3, "it got it back"
        )


async def test_T36_a_region_that_speaks_and_cannot_be_reached_keeps_a_log_from_being_given_up(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.eu.kill()
        lose_log(pair.eu, TOPIC, 0)
        pair.fabric.bar("eu", "us")
        await pair.eu.begin()
        await pair.until(lambda: pair.eu.phase is Phase.DISPUTED, "it misses the log")
        await pair.until(lambda: "us" in pair.eu.node.failover.outlook.heard_ms, "us speaks to it")
        operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
        await pair.until(lambda: operation.status != "running", "it ends")
        assert operation.status == "failed", operation
        assert "region us answers, and may hold what is lost here" in operation.error
        assert pair.us.partition(TOPIC, 0).log_start_offset == 0
