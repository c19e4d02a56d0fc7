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
