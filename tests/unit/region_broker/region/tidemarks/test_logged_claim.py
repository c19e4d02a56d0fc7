"""What a region claims that neither acts nor mirrors: read from its `__tidemarks`, as seldom as it can be (T24)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from region_broker.region.mirror.mirror_log import TidemarkLog
from region_broker.region.tidemarks.service import TidemarkService
from tests.fixtures.failover_regions import Pair


async def test_T24_a_claim_is_read_from_the_log_once_for_each_state_that_the_logs_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    read = TidemarkLog.tidemark_records

    def reading(log: TidemarkLog, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        reads.append(start_offset)
        return read(log, start_offset)

    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        await pair.us.role.stand_still("for a test")
        idle = TidemarkService(pair.us.tidemarks._parts)
        monkeypatch.setattr(TidemarkLog, "tidemark_records", reading)
        first = idle.claim()
        assert first == pair.us.tidemarks.claim()
        assert reads
        del reads[:]
        assert idle.claim() == first
        assert not reads
        log = pair.us.partition()
        log.truncate_to(0)
        assert idle.claim().point < first.point, "it does not outlive its bytes"
