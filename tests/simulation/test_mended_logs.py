"""Two whole regions: damage at rest of one is mended from the other, where both are known to hold the same, and never else."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from geo_replicator.history import LastBatch
from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.record_batch import iter_headers
from region_broker.log.failures import NotMended
from region_broker.partitions.mending import Wanted
from region_broker.records.batches import Record, build_batch
from region_broker.region.mending import range_side
from region_broker.region.mending.messages import AskRange, RangeSent
from region_broker.region.mending.range_source import PeerRanges
from region_broker.region.mending.shared_logs import NothingShared, SharedLogs
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.peers.protocol import PeerRefused
from tests.fixtures.linked_regions import PlayedIdentity
from tests.simulation.http_client import get
from tests.simulation.region_pair import Pair, Region, region_pair
from tests.simulation.test_folders_without_history import TOPIC, shown, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
RECORDS = 14
PAYLOAD_AT = 200
CRC_AT = 17


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    """Two regions with the same full segments of one topic."""
    async with region_pair(tmp_path, 7) as made:
        await made.eu.node.topics.create_topic(
            TOPIC, 1, {"segment.bytes": "4096", "retention.ms": "-1"}
        )
        await made.until(
            lambda: made.us.node.storage.partitions.get(TOPIC, 0) is not None, "the topic arrives"
        )
        for number in range(RECORDS):
            await write(made.eu, b"%06d" % number * 150)
        await made.until(lambda: shown(made.us) == RECORDS, "the mirror shows all")
        await made.until(
            lambda: all(len(segments(region)) >= 2 for region in made.regions.values()),
            "segments are sealed",
        )
        yield made


def segments(region: Region) -> list[Path]:
    """Return the paths of the sealed segments of the topic."""
    return region.partition(TOPIC, 0).log.sealed_paths()


def batch_places(region: Region, path: Path) -> list[int]:
    """Return where batches begin in a file."""
    return [at for at, _ in iter_headers(bytes(region.disk.content(path)))]


def flip(region: Region, which: int = 1, at: int = PAYLOAD_AT) -> tuple[Path, bytes]:
    """Flip one bit in a batch of the first segment; return its path, and what it held."""
    path = segments(region)[0]
    before = bytes(region.disk.content(path))
    region.disk.damage(path, batch_places(region, path)[which] + at)
    return path, before


async def scrubbed(region: Region) -> str | None:
    """Look at all once; return what is damaged and not mended."""
    await region.as_process(region.node.scrubber.run_pass())
    return region.node.scrubber.problem()


@pytest.mark.parametrize("name", ["eu", "us"])
async def test_damage_of_one_region_is_mended_from_the_other(pair: Pair, name: str) -> None:
    region = pair.regions[name]
    path, before = flip(region)
    assert await scrubbed(region) is None
    assert bytes(region.disk.content(path)) == before
    assert region.node.scrubber.figures()["mended_ranges"] == 1
    await write(pair.eu, b"goes on")
    await pair.until(lambda: shown(pair.us) == RECORDS + 1, "the link goes on")
    await region.kill()
    await region.start()
    assert region.partition(TOPIC, 0).failed is None
    assert bytes(region.disk.content(path)) == before


async def test_it_is_found_and_mended_by_itself_a_minute_after_a_start(pair: Pair) -> None:
    path, before = flip(pair.us)
    await asyncio.sleep(90)
    assert bytes(pair.us.disk.content(path)) == before
    assert pair.us.node.scrubber.figures()["passes"] == 1


async def test_each_mends_the_other_where_they_are_damaged_in_different_places(pair: Pair) -> None:
    held = [(pair.eu, *flip(pair.eu, 0)), (pair.us, *flip(pair.us, 2))]
    for region, path, before in held:
        assert await scrubbed(region) is None
        assert bytes(region.disk.content(path)) == before


async def test_each_mends_the_other_where_they_are_damaged_side_by_side(pair: Pair) -> None:
    """What lies behind eu's range is damaged at us, and proves nothing until that is mended, from eu."""
    held = [(pair.eu, *flip(pair.eu, 0)), (pair.us, *flip(pair.us, 1))]
    assert "damaged here, too: orders-0 at 1" in str(await scrubbed(pair.eu))
    assert await scrubbed(pair.us) is None
    await asyncio.sleep(75)
    for region, path, before in held:
        assert region.node.scrubber.problem() is None
        assert bytes(region.disk.content(path)) == before


async def test_damage_of_both_in_one_place_is_told_by_both_and_changes_nothing(pair: Pair) -> None:
    for region in pair.regions.values():
        flip(region)
    files = {r.name: bytes(r.disk.content(segments(r)[0])) for r in pair.regions.values()}
    for region, other in ((pair.eu, "us"), (pair.us, "eu")):
        problem = await scrubbed(region)
        assert problem is not None
        assert f"region {other}: it is damaged here, too" in problem
        assert f"{TOPIC}-0" in problem
        client = pair.fabric.site("somebody")
        ready = await get(client, region.http_port, "/readyz")
        assert (ready.status, orjson.loads(ready.body)["checks"]["damage"]) == (503, problem)
        view = await get(client, region.http_port, "/v1/region")
        assert orjson.loads(view.body)["damage"] == problem
        metrics = await get(client, region.http_port, "/metrics")
        assert b"\ntidemark_scrub_damaged_ranges 1.0\n" in metrics.body
        assert bytes(region.disk.content(segments(region)[0])) == files[region.name]


# Holds INV-RGQ1.
@pytest.mark.parametrize("name", ["eu", "us"])
async def test_T33_a_log_whose_next_batch_is_another_one_is_not_copied_from(
    pair: Pair, name: str
) -> None:
    """The other region's bytes are sound, of the same offsets, sizes and leader epochs: of another history."""
    region = pair.regions[name]
    other = pair.us if region is pair.eu else pair.eu
    path, before = flip(region)
    damaged = bytes(region.disk.content(path))
    content = other.disk.content(segments(other)[0])
    for at in batch_places(other, segments(other)[0])[1:3]:
        header = next(header for _, header in iter_headers(bytes(content[at:])))
        made = bytearray(build_batch([Record(None, b"another" * 128 + b"1234")]))
        assert len(made) == header.size_bytes
        made[:16] = content[at : at + 16]
        content[at : at + header.size_bytes] = made
    problem = await scrubbed(region)
    assert "its log is another one" in str(problem)
    assert bytes(region.disk.content(path)) == damaged != before


async def test_T33_after_a_takeover_nobody_copies_over_the_border_of_region_epochs(
    pair: Pair,
) -> None:
    pair.fabric.bar("us", "eu")
    pair.fabric.bar("eu", "us")
    await pair.fail_over()
    await write(pair.us, b"written by the new one")
    path, _ = flip(pair.eu)
    damaged = bytes(pair.eu.disk.content(path))
    assert "region us" in str(await scrubbed(pair.eu))
    assert bytes(pair.eu.disk.content(path)) == damaged
    pair.fabric.unbar("us", "eu")
    pair.fabric.unbar("eu", "us")
    await pair.until(lambda: pair.eu.node.role.mirrors, "eu has returned")
    await pair.until(lambda: shown(pair.eu) == RECORDS + 1, "and follows")
    await pair.eu.as_process(pair.eu.node.scrubber.run_pass())
    assert pair.eu.node.scrubber.problem() is None
    assert pair.eu.node.scrubber.figures()["mended_ranges"] == 1


async def test_a_region_that_is_away_is_named_and_asked_again(pair: Pair) -> None:
    path, before = flip(pair.eu)
    await pair.us.kill()
    problem = await scrubbed(pair.eu)
    assert "not mended" in str(problem)
    assert "region us" in str(problem)
    await pair.us.start()
    await pair.until(lambda: pair.us.node.role.mirrors, "us is back")
    await asyncio.sleep(75)
    assert pair.eu.node.scrubber.problem() is None
    assert bytes(pair.eu.disk.content(path)) == before


async def test_an_older_version_that_does_not_know_the_question_is_named(pair: Pair) -> None:
    flip(pair.eu)
    del pair.us.node.peers._handlers._requests[AskRange.__name__]
    assert "region us: its version cannot send single ranges" in str(await scrubbed(pair.eu))


# Holds INV-RGS1, INV-RGS2, INV-SLG1.
async def test_only_what_is_shared_and_whole_is_sent(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = pair.us.partition(TOPIC, 0)
    epoch = pair.us.node.role.region_epoch
    peers = pair.eu.node.failover.parts.peers

    async def asked(**changed: object) -> tuple[RangeSent, bytes]:
        fields = {
            "region_epoch": epoch, "key": key_of(partition).encode(), "from_offset": 1,
            "to_offset": 3, "bytes_max": 1 << 40, **changed,
        }  # fmt: skip
        message = AskRange(**fields)  # type: ignore[arg-type]
        return await peers.ask_attached("us", message, RangeSent, timeout_ms=5_000)

    told, data = await pair.eu.as_process(asked())
    assert [header.base_offset for _, header in iter_headers(data)] == [1, 2]
    assert told.above_base_offset == 3
    _, data = await pair.eu.as_process(asked(bytes_max=-5))
    assert [header.base_offset for _, header in iter_headers(data)] == [1]
    monkeypatch.setattr(range_side, "RANGE_BYTES_MAX", 900)
    _, data = await pair.eu.as_process(asked())
    assert [header.base_offset for _, header in iter_headers(data)] == [1]
    for changed in (
        {"region_epoch": RegionEpoch(epoch + 8)}, {"region_epoch": RegionEpoch(0)},
        {"to_offset": RECORDS + 5}, {"to_offset": RECORDS}, {"from_offset": -1},
        {"from_offset": 3}, {"to_offset": 0}, {"key": "none"}, {"key": f"{'0' * 32}/0"},
    ):  # fmt: skip
        with pytest.raises(PeerRefused):
            await pair.eu.as_process(asked(**changed))
    pair.us.node.storage.partitions.get(TOPIC, 0).log.cleaning.mark = (  # type: ignore[union-attr]
        type(partition.log.cleaning.mark)(0, 0, 2)
    )
    with pytest.raises(PeerRefused, match="not within"):
        await pair.eu.as_process(asked())


# Holds INV-RGQ2, INV-SLG2.
async def test_nothing_is_asked_for_that_is_not_proved_to_be_shared(pair: Pair) -> None:
    above = LastBatch(LeaderEpoch(1), 1, 1)
    node = pair.eu.node
    source = node.scrubber._parts.source
    assert isinstance(source, PeerRanges)
    partition = pair.eu.partition(TOPIC, 0)
    with pytest.raises(NotMended, match="is under a tidemark here yet"):
        await source.piece(partition, Wanted(0, RECORDS + 1, above))
    await node.role.stand_still("played")
    with pytest.raises(NotMended, match="neither acts nor mirrors"):
        await source.piece(partition, Wanted(0, 1, above))


# Holds INV-SLG1.
async def test_a_region_shares_nothing_under_a_region_epoch_without_a_tidemark(pair: Pair) -> None:
    """As where it has heard of a takeover, and its logs were not compared with those of the new primary yet (T23)."""
    node = pair.us.node
    epoch, key = node.role.region_epoch, key_of(pair.us.partition(TOPIC, 0))
    later = RegionEpoch(epoch + 8)

    def shared(region_epoch: RegionEpoch) -> SharedLogs:
        identity = PlayedIdentity("us", region_epoch=region_epoch)
        return SharedLogs(identity, node.tidemarks, node._source, lambda: True)

    assert shared(epoch).end_of(key, epoch) == RECORDS
    with pytest.raises(NothingShared, match="no tidemark of region epoch"):
        shared(later).end_of(key, later)
    with pytest.raises(NothingShared, match="is at region epoch"):
        shared(later).end_of(key, epoch)
