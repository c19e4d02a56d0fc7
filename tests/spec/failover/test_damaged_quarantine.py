"""What is damaged in quarantine keeps no region from starting, acting or mirroring (INV-QS4)."""

import asyncio
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.region.failover.operations import OperationRefused
from tests.fixtures.failover_regions import ORDERS, Pair, fail_over


async def test_INV_QS4_an_old_primary_returns_beside_a_damaged_tail_and_a_damaged_statement(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.us.kill()
        await pair.eu.write("lost")
        key = pair.eu.partition().topic_id.hex
        await pair.eu.kill()
        await pair.us.start()
        await fail_over(pair.us)
        domain = pair.eu.folder / "quarantine" / "main"
        kept, stated = domain / f"{key}-0", domain / "statements"
        name = f"17-{1:020d}-{1:020d}.json"
        for path in (kept / name, stated / "17.json"):
            await asyncio.to_thread(path.parent.mkdir, parents=True)
            await asyncio.to_thread(path.write_bytes, b"not json")
        await pair.us.write("later")
        await pair.eu.start()
        await pair.eu.until(Phase.MIRRORING)
        await pair.eu.shows("later")
        assert b"lost" not in pair.eu.raw()
        with pytest.raises(OperationRefused, match=r"Give that file back from a copy, or move it"):
            await pair.eu.operations.losses()
        assert (kept / name).read_bytes() == b"not json", "what is there is never changed"
        (kept / name).unlink()
        (stated / "17.json").unlink()
        (losses,) = await pair.eu.operations.losses()
        assert losses.plain_record_count == 1
        assert [tail.edition for tail in pair.eu.quarantine.tails() if tail.topic == ORDERS] == [1]
        assert "17.json is not a loss statement" in caplog.text
        assert name in caplog.text


async def test_INV_QS4_a_region_takes_over_beside_what_it_cannot_read_in_quarantine(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The old primary has promised, durably, when the loss is stated: a node that ended there left nobody to act."""
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.us.kill()
        domain = pair.us.folder / "quarantine" / "main"
        kept = domain / f"{pair.eu.partition().topic_id.hex}-0"
        # A folder of such a name is what the disk refuses to read as a file.
        for folder in (kept / f"17-{1:020d}-{1:020d}.json", domain / "statements" / "17.json"):
            await asyncio.to_thread(folder.mkdir, parents=True)
        for file in (domain / "17-1-1.json", domain.parent / "old.tgz"):
            await asyncio.to_thread(file.write_bytes, b"put here by people")
        await pair.us.start()
        await pair.reached("first")
        operation = await pair.us.ended(pair.us.operations.begin_switch())
        assert operation.status == "succeeded", (operation.error, operation.steps)
        assert any("the loss statement cannot be shown" in step for step in operation.steps)
        assert "passed by" in caplog.text
        await pair.us.write("second")
        await pair.eu.shows("second")
