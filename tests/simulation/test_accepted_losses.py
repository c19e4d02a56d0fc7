"""What an accepted loss gives up is hidden while logs are cut, and no longer (INV-LK9, INV-PT9): found by an attack by hand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from geo_replicator.effects import Diverged
from geo_replicator.failover import Phase
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.link.reaching import Reaching
from geo_replicator.topology import MirrorTopic
from geo_replicator.whole_ends import NOTHING_WHOLE, WholeEnds
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover.log_surgery import DivergedLogs
from region_broker.region.mirror.mirror_topics import MirrorTopicStore
from tests.simulation.folder_faults import copy_of, restore
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_older_copies import TOPIC, shows

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def write_both(region: Region, value: bytes) -> None:
    """Append one record to each of two partitions, in one step: each tidemark has both of them, or none."""
    partitions = [region.partition(TOPIC, number) for number in range(2)]
    batch = build_batch([Record(None, value)])
    outcomes = [partition.writer.append(batch) for partition in partitions]
    for partition, outcome in zip(partitions, outcomes, strict=True):
        await partition.wait_committed(outcome.next_offset)


async def published(pair: Pair, value: bytes) -> None:
    """Let eu write to both partitions, and publish one more tidemark."""
    before = pair.eu.node.tidemarks.claim().point
    await write_both(pair.eu, value)
    await until(lambda: pair.eu.node.tidemarks.claim().point > before, "a tidemark")


def looks(region: Region) -> tuple[bytes, bytes]:
    """Return what the newest of "gone" and "other" is that each partition shows, nothing where it says no end."""
    found = []
    for number in range(2):
        partition = region.partition(TOPIC, number)
        data = b""
        if partition.sight.is_known and partition.failed is None:
            end = partition.sight.visible_end
            data = bytes(partition.reader.read_raw(0, 1 << 20, end)) if end > 0 else b""
        found.append(next((each for each in (b"other", b"gone") if each in data), b""))
    return found[0], found[1]


@asynccontextmanager
async def disputed(
    folder: Path, *values: bytes, grows: bool = False, rounds: int = 5
) -> AsyncIterator[Pair]:
    """Let eu write each of `values` in a life of its own, and us show them; then eu starts from a copy that was made before,
    alone, writes on, and meets us.
    """
    async with region_pair(folder, 3) as pair:
        await pair.create_topic(TOPIC, 2)
        await published(pair, b"kept")
        await shows(pair, pair.us, b"kept")
        await pair.eu.kill()
        copy = copy_of(pair.eu)
        for value in values:
            await pair.eu.start()
            await until(lambda: pair.eu.node.role.acting, "the primary acts")
            await published(pair, value)
            await shows(pair, pair.us, value)
            await pair.until(lambda: looks(pair.us) == (b"gone", b"gone"), "us shows both")
            await pair.eu.kill()
        restore(pair.eu, copy)
        pair.fabric.cut("eu", "us")
        await pair.eu.start()
        if grows:
            await pair.eu.node.topics.grow_topic(TOPIC, 3, 2)
        for number in range(rounds):
            await published(pair, b"other %d" % number)
        pair.fabric.heal("eu", "us")
        await pair.until(lambda: pair.eu.phase is Phase.DISPUTED, "they meet")
        yield pair


async def accept(pair: Pair) -> None:
    operation = pair.eu.node.operations.begin_accept_loss(confirmed=True)
    await pair.until(lambda: operation.status != "running", "the loss is accepted")
    assert operation.status == "succeeded", operation.error
    await pair.until(lambda: looks(pair.us) == (b"other", b"other"), "us shows what eu has")


def told_ends(pair: Pair) -> list[tuple[bool, int]]:
    """Return what us says of the ends: whether they are known, and where they are."""
    sights = [pair.us.partition(TOPIC, number).sight for number in range(2)]
    return [(sight.knows_end(Isolation.READ_UNCOMMITTED), sight.visible_end) for sight in sights]


def seen_by_readers(pair: Pair) -> list[tuple[bytes, bytes]]:
    """Return what us shows whenever it changes, from now on."""
    seen: list[tuple[bytes, bytes]] = []
    loop = asyncio.get_running_loop()

    def look_soon() -> None:  # not in the middle of a step
        loop.call_soon(lambda: seen.append(looks(pair.us)))

    for number in range(2):
        pair.us.partition(TOPIC, number).watchers.add(look_soon)
    return seen


@pytest.mark.parametrize(
    ("values", "rounds"),
    [((b"gone",), 5), ((b"gone", b"gone 2"), 15)],
    ids=["one life", "two: one is cut by leader epoch, then the other by its bytes"],
)
async def test_T17_what_an_accepted_loss_gives_up_is_hidden_in_all_logs_at_once(
    tmp_path: Path, values: tuple[bytes, ...], rounds: int
) -> None:
    """What us has shown is not in eu's history, whose base lies above it: us cuts log after log."""
    async with disputed(tmp_path, *values, rounds=rounds) as pair:
        seen = seen_by_readers(pair)
        await accept(pair)
        assert len(set(seen)) > 1
        assert not [at for at in seen if (at[0] == b"gone") != (at[1] == b"gone")], seen


@pytest.mark.parametrize("grows", [False, True])
async def test_T16_no_end_is_told_while_the_view_is_taken_back(
    tmp_path: Path, *, grows: bool
) -> None:
    async with disputed(tmp_path, b"gone", grows=grows) as pair:
        told: set[tuple[bool, int]] = set()

        async def look() -> None:
            while True:
                told.update(told_ends(pair))
                await asyncio.sleep(0.0005)

        looking = asyncio.get_running_loop().create_task(look())
        await accept(pair)
        looking.cancel()
        assert min(end for is_known, end in told if is_known) >= 1, told


async def cut_off_at(pair: Pair, taken: asyncio.Event) -> None:
    """Accept the loss; once us has `taken` what it hooks, eu is gone for a while."""
    pair.eu.node.operations.begin_accept_loss(confirmed=True)
    await pair.until(taken.is_set, "taken back")
    await pair.eu.kill()
    del pair.regions["eu"]
    await pair.us.node.failover.parts.clock.sleep_ms(20_000)


async def test_T16_a_topic_that_grew_does_not_end_at_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with disputed(tmp_path, b"gone", grows=True) as pair:
        taken, original = asyncio.Event(), MirrorTopicStore.open_logs

        async def open_logs(self: MirrorTopicStore, topic: MirrorTopic) -> None:
            await original(self, topic)
            if topic.name == TOPIC and not taken.is_set():
                taken.set()
                pair.fabric.cut("eu", "us")

        monkeypatch.setattr(MirrorTopicStore, "open_logs", open_logs)
        await cut_off_at(pair, taken)
        assert told_ends(pair) == [(True, 2)] * 2


async def test_T16_a_view_is_there_while_the_primary_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. us has taken its view back. 2. The link breaks before the first log is cut, and eu is lost."""
    async with disputed(tmp_path, b"gone") as pair:
        taken, original = asyncio.Event(), Reaching.take_back_view

        def take_back_view(self: Reaching) -> None:
            original(self)
            if not taken.is_set():
                taken.set()
                pair.fabric.cut("eu", "us")

        monkeypatch.setattr(Reaching, "take_back_view", take_back_view)
        await cut_off_at(pair, taken)
        assert all(is_known and end >= 1 for is_known, end in told_ends(pair))


async def test_INV_LD7_whole_ends_are_forgotten_before_a_log_is_cut_whose_history_was_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. us has cut, and holds eu's tidemark k: a lost one had that number. 2. us dies before it is a durable fact: the ends
    that are stored beside that number are not those of the tidemark that us holds now.
    """
    async with disputed(tmp_path, b"gone") as pair:
        reached = pair.us.node.storage.reached
        assert reached.whole != NOTHING_WHOLE
        before, original = reached.point, DivergedLogs.diverged
        at_cuts: list[tuple[TidemarkPoint, WholeEnds]] = []

        async def diverged(self: DivergedLogs, divergences: Sequence[Diverged]) -> None:
            at_cuts.append((reached.point, reached.whole))
            await original(self, divergences)

        monkeypatch.setattr(DivergedLogs, "diverged", diverged)
        await accept(pair)
        assert at_cuts, "logs were cut"
        assert all(each == (before, NOTHING_WHOLE) for each in at_cuts), at_cuts
        await pair.until(lambda: reached.whole != NOTHING_WHOLE, "the ends in eu's history")
