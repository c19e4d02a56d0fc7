"""Rule T33 (b): what an operator accepts as lost is named, wherever it is held, and up to its last record."""

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.loss import LogBound, LossStatement
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover import answers
from region_broker.region.peers.history_messages import AskHeld, HistoryJudged, LogDifference
from tests.fixtures.failover_regions import ORDERS, Pair
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as running:
        yield running


async def wound_back(pair: Pair, *, shown: list[str], copied: list[str], again: list[str]) -> None:
    """The primary, restored from a copy that holds "kept", has written `again` in partition 0, where the mirror holds
    others.

    The mirror has `shown` of them, and behind these `copied`, which no tidemark covers; partition 1 tells of the dispute.
    """
    copy = await pair.copied_with("kept")
    for value in shown:
        await pair.eu.write(value)
    await pair.eu.write("proof", number=1)
    for value in (*shown, "proof"):
        await pair.reached(value)
    await pair.stop_tidemarks()
    for value in copied:
        await pair.eu.write(value)
    await pair.copied(pair.eu.partition().topic_id, 1 + len(shown) + len(copied))
    await pair.eu.kill()
    await pair.us.kill()
    copy.restore()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    for value in again:
        await pair.eu.write(value)
    await pair.us.start()
    await pair.eu.until(Phase.DISPUTED)


def bound_of(statement: LossStatement, number: int) -> LogBound:
    (bound,) = [b for b in statement.bounds if (b.topic, b.partition) == (ORDERS, number)]
    return bound


@pytest.mark.parametrize(
    ("shown", "copied", "again"),
    [
        ([], ["unconfirmed", "also"], ["other", "another", "a third", "a fourth"]),
        (["gone", "also gone", "gone as well"], ["unconfirmed"], ["other"]),
    ],
    ids=[
        "only what was copied differs",
        "they part far below",
    ],
)
async def test_T33_the_statement_names_all_that_the_mirror_holds_beyond_the_region(
    pair: Pair,
    caplog: pytest.LogCaptureFixture,
    shown: list[str],
    copied: list[str],
    again: list[str],
) -> None:
    caplog.set_level(logging.INFO)
    await wound_back(pair, shown=shown, copied=copied, again=again)
    stated = await pair.eu.operations.loss_to_accept()
    shown_end, end = 1 + len(shown), 1 + len(shown) + len(copied)
    assert [(r.partition, r.first_offset, r.last_offset) for r in stated.plain] == [
        (0, 1, end - 1),
        (1, 0, 0),
    ]
    bound = bound_of(stated, 0)
    assert (bound.cut, bound.shown_end, bound.copied_end) == (1, shown_end, end)
    told = f"has not shown to its readers yet: {ORDERS}-0 from {shown_end} to {end}"
    assert told in stated.open_bound
    operation = await pair.eu.ended(pair.eu.operations.begin_accept_loss(confirmed=True))
    assert operation.status == "succeeded", (operation.error, operation.steps)
    assert operation.statement is not None
    assert operation.statement.plain == stated.plain
    await pair.us.until(Phase.MIRRORING)
    await until(lambda: pair.us.raw() == pair.eu.raw(), "the mirror follows")
    held = {
        (tail.partition, offset)
        for tail in pair.us.quarantine.tails()
        if tail.topic == ORDERS
        for offset in range(tail.first_offset, tail.last_offset + 1)
    }
    assert held == {(1, 0), *((0, offset) for offset in range(1, end))}
    (losses,) = await pair.us.operations.losses()
    assert losses.exact
    assert not losses.unexplained
    assert losses.plain_record_count == end
    assert "the disk has lost" not in caplog.text, "it was given up, by a word"
    assert pair.us.quarantine.diverged_records == 0, "so nobody is to be alarmed"


async def test_INV_AL3_what_cannot_be_named_is_told_and_the_rest_is_named(pair: Pair) -> None:
    await wound_back(pair, shown=["gone"], copied=[], again=["other"])
    rounds = pair.eu.tidemarks.cut_leader
    assert rounds is not None
    await until(lambda: bool(rounds.failed), "no round is under way: it would move the base")
    stated = await pair.eu.operations.loss_to_accept()
    base = TidemarkPoint(stated.tidemark_region_epoch, stated.tidemark_number)
    assert base == pair.eu.tidemarks.claim().point
    assert "not compared" not in stated.open_bound
    pair.eu.partition().stop("its disk is gone")
    own = await pair.eu.operations.loss_to_accept()
    assert [r.partition for r in own.plain] == [1]
    told = f"below its end may be lost, too, and is not named: {ORDERS}-0 (its disk is gone"
    assert told in own.open_bound
    pair.us.partition().stop("a bit is flipped")
    half = await pair.eu.operations.loss_to_accept()
    assert [r.partition for r in half.plain] == [1]
    assert "a bit is flipped" in half.open_bound
    await pair.us.kill()
    nothing = await pair.eu.operations.loss_to_accept()
    assert "everything that region us holds beyond this region, which cannot be named now" in (
        nothing.open_bound
    )
    assert (nothing.tidemark_region_epoch, nothing.tidemark_number) == base
    assert nothing.accepted


@pytest.mark.parametrize("agreed_end", [-1, 1 << 40])
async def test_INV_AL3_a_region_that_says_to_hold_what_nobody_showed_it_is_not_believed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, agreed_end: int
) -> None:
    await wound_back(pair, shown=["gone"], copied=[], again=["other"])

    async def held(_: object, message: AskHeld) -> HistoryJudged:
        found = [
            LogDifference(log.key, agreed_end, log.cut_offset, log.end_offset, "played")
            for log in message.logs
        ]
        return HistoryJudged(differences=tuple(found))

    monkeypatch.setattr(answers, "held_here", held)
    stated = await pair.eu.operations.loss_to_accept()
    told = "everything that region us holds beyond this region, which cannot be named now: region us says that it holds"
    assert told in stated.open_bound
    assert "nobody asked for that" in stated.open_bound


async def write_as_one(pair: Pair, *values: str) -> None:
    """Append all of `values` as one batch at the primary."""
    log = pair.eu.partition()
    outcome = log.writer.append(build_batch([Record(None, value.encode()) for value in values]))
    await log.wait_committed(outcome.next_offset)


@pytest.mark.parametrize(
    ("gone", "other"),
    [
        (("gone", "gone, too", "the last gone"), ("other", "another")),
        (("gone", "gone, too"), ("other", "another", "the last other")),
    ],
    ids=["the primary's batch is shorter", "the primary's batch is longer"],
)
@pytest.mark.parametrize("choice", ["failover", "accept-loss"])
async def test_INV_SH3_histories_that_part_within_a_batch_of_the_other_come_together(
    pair: Pair, gone: tuple[str, ...], other: tuple[str, ...], choice: str
) -> None:
    copy = await pair.copied_with("kept")
    await write_as_one(pair, *gone)
    await pair.reached(gone[-1])
    await pair.eu.kill()
    await pair.us.kill()
    copy.restore()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    await write_as_one(pair, *other)
    await pair.us.start()
    await pair.eu.until(Phase.DISPUTED)
    await until(lambda: f"{ORDERS}-0" in pair.eu.role.reason_not_acting, "the log is named")
    assert "LastBatch" not in pair.eu.role.reason_not_acting, "said in words"
    lost, keeper = (pair.eu, pair.us) if choice == "failover" else (pair.us, pair.eu)
    begin = (
        keeper.operations.begin_failover
        if choice == "failover"
        else keeper.operations.begin_accept_loss
    )
    operation = await keeper.ended(begin(confirmed=True))
    assert operation.status == "succeeded", (operation.error, operation.steps)
    await lost.until(Phase.MIRRORING)
    await keeper.write("later")
    await lost.shows("later")
    assert lost.raw() == keeper.raw()
    cut_off = other if choice == "failover" else gone
    assert {
        (tail.first_offset, tail.last_offset)
        for tail in lost.quarantine.tails()
        if tail.topic == ORDERS
    } == {(1, len(cut_off))}
    assert (lost.partition().reader.corrupt_reads, keeper.partition().reader.corrupt_reads) == (
        0,
        0,
    )
    losses = await lost.operations.losses()
    assert [found.unexplained for found in losses] == [()] * len(losses)


async def test_T33_a_topic_that_no_tidemark_covers_is_named_too(pair: Pair) -> None:
    copy = await pair.copied_with("kept")
    await pair.stop_tidemarks()
    made = await pair.eu.topics.create_topic("second", 1, {})
    await pair.eu.write("precious", topic="second")
    await pair.copied(made.topic_id, 1)
    await pair.eu.kill()
    copy.restore()
    await pair.eu.start()
    await pair.eu.until(Phase.DISPUTED)
    stated = await pair.eu.operations.loss_to_accept()
    assert [(r.topic_id, r.first_offset, r.last_offset) for r in stated.plain] == [
        (made.topic_id.hex, 0, 0)
    ]
