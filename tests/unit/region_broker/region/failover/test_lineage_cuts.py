"""What the lineage voids in the logs of one node, and nothing else, is cut off into quarantine (INV-LSH4)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from geo_replicator.failover import CutLogs, Phase
from geo_replicator.failover_events import EntryRecord
from geo_replicator.lineage import Lineage, LineageEntry, TidemarkPoint, in_force, lowest_base
from geo_replicator.quarantine import Provenance
from idempotency.fencing import leader_epoch as epoch_of
from idempotency.fencing import region_epoch_of
from idempotency.identity import LeaderEpoch, LogKey, RegionEpoch
from region_broker.controller import metadata_image
from region_broker.log.cleaning.state import CleanMark
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.partitions.partition import Partition
from region_broker.region.failover.lineage_cuts import (
    LineageCutParts,
    LineageCuts,
    LoggedEpochs,
    digest_of,
    next_cut,
    voiding_of,
)
from region_broker.region.failover.quarantine_store import QuarantineStore, ReadBatches
from region_broker.region.failover.steps.effects import FailoverSteps
from tests.fixtures.kernel_batches import stamp
from tests.fixtures.node_logs import Fixture, InstantClock, batch, fixture

KEY = LogKey(UUID(int=1), 0)
FIRST, PASSED_OVER, IN_FORCE, LATER = (RegionEpoch(number) for number in (8, 9, 10, 17))


def entry(
    region_epoch: int,
    base: tuple[int, int],
    cut: int | None = None,
    *,
    key: LogKey = KEY,
    region: str = "us",
) -> LineageEntry:
    positions = {} if cut is None else {key: cut}
    return LineageEntry(
        RegionEpoch(region_epoch), region, TidemarkPoint(RegionEpoch(base[0]), base[1]), positions
    )


# -- what is void ----------------------------------------------------------------------------------


def logged(region_epochs: Sequence[int], kept_from: int = 0) -> LoggedEpochs:
    """Return a log whose records, from `kept_from` on, are of these region epochs."""
    epochs, end = LeaderEpochs(), kept_from + len(region_epochs)
    for offset, region_epoch in enumerate(region_epochs, kept_from):
        epochs.note(epoch_of(RegionEpoch(region_epoch), 1), offset)

    def end_of_older(leader_epoch: LeaderEpoch) -> int:
        starts = [start for epoch, start in epochs.entries() if epoch >= leader_epoch]
        return min(starts, default=end)

    return LoggedEpochs(KEY, kept_from, end, end_of_older)


def cut_position(log: LoggedEpochs, lineage: Lineage) -> int | None:
    """Return where a log ends once nothing of it is void; None where it stays as it is."""
    position = None
    while (found := next_cut(log, voiding_of(lineage))) is not None:
        position = found.position
        log = LoggedEpochs(log.key, log.kept_from, position, log.end_of_older)
    return position


EPOCHS = some.integers(1, 9)


@some.composite
def lineages(draw: some.DrawFn) -> Lineage:
    entries = []
    for region_epoch in sorted(draw(some.sets(some.integers(2, 9), max_size=5))):
        base = (draw(some.integers(1, region_epoch - 1)), draw(some.integers(1, 4)))
        entries.append(entry(region_epoch, base, draw(some.none() | some.integers(0, 12))))
    return Lineage(tuple(entries))


@given(some.lists(EPOCHS, max_size=12).map(sorted), some.integers(0, 5), lineages())
def test_INV_LNC1_after_the_cut_nothing_is_void_and_nothing_else_was_cut(
    records: list[int], kept_from: int, lineage: Lineage
) -> None:
    standing = in_force(lineage.entries)
    passed_over = {each.region_epoch for each in lineage.entries} - {
        each.region_epoch for each in standing
    }

    def is_void(offset: int, region_epoch: int) -> bool:
        return region_epoch in passed_over or any(
            region_epoch < each.region_epoch and offset >= each.positions[KEY]
            for each in standing
            if KEY in each.positions
        )

    void = [at for at, epoch in enumerate(records, kept_from) if is_void(at, epoch)]
    log = logged(records, kept_from)
    position = cut_position(log, lineage)
    assert position == (void[0] if void else None)
    if position is not None:
        left = logged(records[: position - kept_from], kept_from)
        assert cut_position(left, lineage) is None, "INV-LNC3"


def test_INV_LNC1_a_log_that_an_entry_does_not_name_is_left_alone_by_it() -> None:
    lineage = Lineage((entry(IN_FORCE, (FIRST, 3), 2, key=LogKey(UUID(int=2), 0)),))
    assert next_cut(logged([FIRST] * 5), voiding_of(lineage)) is None


def test_INV_LNC1_INV_LN4_all_of_an_epoch_that_was_passed_over_is_void_and_what_it_would_have_cut_is_not() -> (
    None
):
    lineage = Lineage((entry(PASSED_OVER, (FIRST, 3), 2), entry(IN_FORCE, (FIRST, 5), 6)))
    assert cut_position(logged([FIRST] * 4 + [PASSED_OVER] * 2), lineage) == 4
    assert cut_position(logged([FIRST] * 6), lineage) is None


def test_INV_LNC2_a_tail_is_filed_under_the_first_entry_that_voids_it() -> None:
    lineage = Lineage((entry(IN_FORCE, (FIRST, 5), 6), entry(LATER, (FIRST, 3), 4)))
    assert len(in_force(lineage.entries)) == 2
    found = next_cut(logged([FIRST] * 9), voiding_of(lineage))
    assert found is not None
    assert (found.entry.region_epoch, found.position) == (IN_FORCE, 6)
    found = next_cut(logged([FIRST] * 6), voiding_of(lineage))
    assert found is not None
    assert (found.entry.region_epoch, found.position) == (LATER, 4)


def test_INV_LNC2_what_was_passed_over_is_filed_under_the_entry_that_did_so() -> None:
    first = entry(FIRST, (1, 3), 2)
    lineage = Lineage((first, entry(PASSED_OVER, (FIRST, 3), 2), entry(IN_FORCE, (FIRST, 5), 6)))
    found = next_cut(logged([FIRST] * 4 + [PASSED_OVER] * 4), voiding_of(lineage))
    assert found is not None
    assert (found.entry.region_epoch, found.position) == (IN_FORCE, 4), "in one tail"


def test_T13_a_log_that_begins_above_the_base_lacks_what_is_below_whatever_else_is_void() -> None:
    lineage = Lineage((entry(PASSED_OVER, (FIRST, 3), 2), entry(IN_FORCE, (FIRST, 5), 6)))
    found = next_cut(logged([PASSED_OVER] * 3, kept_from=7), voiding_of(lineage))
    assert found is not None
    assert (found.position, found.lacks) == (7, True)


def test_INV_LNC1_an_epoch_that_was_passed_over_voids_nothing_where_the_log_begins_behind_it() -> (
    None
):
    lineage = Lineage((entry(PASSED_OVER, (FIRST, 3)), entry(IN_FORCE, (FIRST, 5))))
    starts = {epoch_of(IN_FORCE, 0): 4, epoch_of(PASSED_OVER, 0): 2}
    log = LoggedEpochs(KEY, 5, 8, lambda epoch: starts.get(epoch, 0))
    assert next_cut(log, voiding_of(lineage)) is None


def test_a_digest_tells_takeovers_of_one_region_apart_by_their_bases() -> None:
    one, other = entry(IN_FORCE, (FIRST, 3), 2), entry(IN_FORCE, (FIRST, 5), 2)
    assert digest_of(Lineage((one,))) != digest_of(Lineage((other,)))


def test_a_digest_tells_takeovers_apart_and_nothing_else() -> None:
    one, two = entry(IN_FORCE, (FIRST, 5), 6), entry(LATER, (FIRST, 3), 4)
    seen = {digest_of(Lineage(each)) for each in [(), (one,), (one, two), (two,)]}
    assert len(seen) == 4
    assert digest_of(Lineage((entry(IN_FORCE, (FIRST, 5)),))) == digest_of(Lineage((one,)))


# -- the driver ------------------------------------------------------------------------------------


def holding(partition: Partition, *batches: tuple[int, int]) -> None:
    """Write batches of (records, region epoch), as a link brings them."""
    partition.become_mirror()
    for count, region_epoch in batches:
        data = bytearray(batch(count))
        epoch = epoch_of(RegionEpoch(region_epoch), 1)
        stamp(data, 0, base_offset=partition.log_end_offset, leader_epoch=epoch)
        partition.writer.append_mirrored(bytes(data))


def cuts_of(
    node: Fixture, entries: Sequence[LineageEntry], store: QuarantineStore | None = None
) -> tuple[LineageCuts, QuarantineStore]:
    store = store or QuarantineStore(node.disk, Path("/data/quarantine"))
    lineage = Lineage(tuple(entries))
    made = LineageCuts(
        LineageCutParts(
            region="eu", domain="main", logs=lambda: node.partitions, lineage=lambda: lineage, quarantine=store, clock=InstantClock()
        )
    )  # fmt: skip
    return made, store


def named(
    node: Fixture, region_epoch: int, base: int, cuts: Mapping[int, int], region: str = "us"
) -> LineageEntry:
    keys = [partition.key for partition in node.partitions]
    positions = {keys[number]: at for number, at in cuts.items()}
    return LineageEntry(RegionEpoch(region_epoch), region, TidemarkPoint(FIRST, base), positions)


def kept_in(store: QuarantineStore) -> list[tuple[int, int, int, int, str]]:
    return sorted(
        (tail.partition, tail.lineage_epoch, tail.first_offset, tail.last_offset, tail.cause.value)
        for tail in store.tails()
    )


async def test_INV_LS1_INV_LNC2_tails_are_kept_under_the_takeovers_that_voided_them() -> None:
    node = fixture(partition_count=3)
    for partition in node.partitions:
        holding(partition, (4, FIRST), (2, FIRST), (3, FIRST))
    node.sync()
    entries = [named(node, IN_FORCE, 5, {0: 6, 1: 9}), named(node, LATER, 3, {0: 4, 1: 9})]
    cuts, store = cuts_of(node, entries)
    assert [cuts.owes(each) for each in node.partitions] == [True, False, False]
    await cuts.run()
    assert [each.log_end_offset for each in node.partitions] == [4, 9, 9]
    assert kept_in(store) == [(0, IN_FORCE, 6, 8, "lineage"), (0, LATER, 4, 5, "lineage")]
    assert cuts.digest == digest_of(Lineage(tuple(entries)))


async def test_INV_LNC3_cutting_again_changes_nothing_also_when_the_log_has_grown() -> None:
    node = fixture()
    holding(node.partition, (4, FIRST), (3, FIRST))
    node.sync()
    cuts, store = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4})])
    await cuts.run()
    holding(node.partition, (5, IN_FORCE))
    node.sync()
    assert not cuts.owes(node.partition)
    await cuts.run()
    assert node.partition.log_end_offset == 9
    assert kept_in(store) == [(0, IN_FORCE, 4, 6, "lineage")]
    assert region_epoch_of(node.partition.written_epoch) == IN_FORCE


async def test_INV_LNC1_what_was_written_behind_a_base_of_a_takeover_that_was_passed_over_goes() -> (
    None
):
    node = fixture()
    holding(node.partition, (4, FIRST), (3, PASSED_OVER))
    node.sync()
    cuts, store = cuts_of(
        node, [named(node, PASSED_OVER, 3, {0: 4}), named(node, IN_FORCE, 5, {0: 9})]
    )
    await cuts.run()
    assert node.partition.log_end_offset == 4
    assert kept_in(store) == [(0, IN_FORCE, 4, 6, "lineage")]


async def test_INV_LS4_a_log_that_cannot_be_read_stops_or_is_left_and_the_others_are_cut() -> None:
    node = fixture(partition_count=3)
    for partition in node.partitions:
        holding(partition, (4, FIRST), (3, FIRST))
    node.sync()
    move_in = QuarantineStore.move_in

    class OneIsNotWhole(QuarantineStore):
        """A store that finds no whole batch in the second log's tail."""

        async def move_in(self, provenance: Provenance, read: ReadBatches) -> Provenance:
            is_gone = provenance.partition == 1
            return await move_in(self, provenance, (lambda _offset: b"") if is_gone else read)

    node.partitions[0].stop("it is played to be damaged")
    cuts, store = cuts_of(
        node,
        [named(node, IN_FORCE, 5, {0: 4, 1: 4, 2: 4})],
        OneIsNotWhole(node.disk, Path("/data/quarantine")),
    )
    await cuts.run()
    assert [each.failed is None for each in node.partitions] == [False, False, True]
    assert [each.log_end_offset for each in node.partitions] == [7, 7, 4]
    assert kept_in(store) == [(2, IN_FORCE, 4, 6, "lineage")]
    assert not any(cuts.owes(each) for each in node.partitions)


async def test_INV_FS4_a_quarantine_without_room_is_said_and_tried_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    node = fixture()
    holding(node.partition, (4, FIRST), (3, FIRST))
    node.sync()
    tries = 0

    class Full(QuarantineStore):
        """A store without room, twice."""

        async def move_in(self, provenance: Provenance, read: ReadBatches) -> Provenance:
            nonlocal tries
            tries += 1
            if tries <= 2:
                raise OSError("no room")
            return await super().move_in(provenance, read)

    cuts, store = cuts_of(
        node, [named(node, IN_FORCE, 5, {0: 4})], Full(node.disk, Path("/data/quarantine"))
    )
    await cuts.run()
    assert caplog.text.count("no room") == 2
    assert node.partition.log_end_offset == 4
    assert len(kept_in(store)) == 1


@pytest.mark.parametrize(("acts", "begins_at"), [("us", 0), ("eu", 6)])
async def test_T13_a_log_that_begins_above_the_base_is_copied_anew_where_another_region_acts(
    acts: str, begins_at: int
) -> None:
    node = fixture()
    node.partition.become_mirror()
    node.partition.start_at(6)
    holding(node.partition, (3, FIRST))
    node.sync()
    cuts, store = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4}, region=acts)])
    await cuts.run()
    assert (node.partition.kept_from, node.partition.log_end_offset) == (begins_at, begins_at)
    assert kept_in(store) == [(0, IN_FORCE, 6, 8, "lineage")]


async def test_INV_LS4_a_disk_that_refuses_to_empty_a_compacted_log_costs_no_other_log() -> None:
    """It was compacted beyond the cut, so it is to be copied anew."""
    node = fixture(partition_count=2)
    for partition in node.partitions:
        holding(partition, (4, FIRST), (3, FIRST))
    node.sync()
    node.partition.log.cleaning.note(CleanMark(7, cleaned_here_below=7))

    def refuse(operation: str, path: Path) -> None:
        if operation == "write_file_atomic" and path == node.folder / "checkpoint":
            raise OSError(5, "input/output error")

    node.disk.fault = refuse
    cuts, store = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4, 1: 4})])
    await cuts.run()
    assert "input/output error" in str(node.partition.failed)
    assert node.partitions[1].log_end_offset == 4
    assert kept_in(store) == [(0, IN_FORCE, 4, 6, "lineage"), (1, IN_FORCE, 4, 6, "lineage")]


async def test_T13_a_region_that_acts_again_does_not_empty_a_log_for_an_earlier_takeover() -> None:
    node = fixture()
    node.partition.become_mirror()
    node.partition.start_at(6)
    holding(node.partition, (3, FIRST))
    node.sync()
    taken = [
        named(node, IN_FORCE, 5, {0: 4}, region="us"),
        named(node, LATER, 5, {0: 4}, region="eu"),
    ]
    cuts, store = cuts_of(node, taken)
    await cuts.run()
    assert node.partition.log_end_offset == 6, "offsets are not given out again"
    assert kept_in(store) == [(0, IN_FORCE, 6, 8, "lineage")]


async def test_a_takeover_that_comes_while_logs_are_cut_is_cut_for_too() -> None:
    node = fixture()
    holding(node.partition, (4, FIRST), (3, FIRST))
    node.sync()
    entries = [named(node, IN_FORCE, 5, {0: 7})]
    store = QuarantineStore(node.disk, Path("/data/quarantine"))
    reads = 0

    def lineage() -> Lineage:
        nonlocal reads
        reads += 1
        if reads == 2:
            entries.append(named(node, LATER, 3, {0: 4}))
        return Lineage(tuple(entries))

    cuts = LineageCuts(
        LineageCutParts(
            region="eu", domain="main", logs=lambda: node.partitions, lineage=lineage, quarantine=store, clock=InstantClock()
        )
    )  # fmt: skip
    await cuts.run()
    assert node.partition.log_end_offset == 4
    assert cuts.digest == digest_of(Lineage(tuple(entries)))


async def test_the_digest_is_that_of_the_lineage_that_was_cut_by() -> None:
    node = fixture()
    told = [Lineage((named(node, IN_FORCE, 5, {0: 7}),)), Lineage(())]
    cuts, _ = cuts_of(node, ())
    cuts._parts = replace(cuts._parts, lineage=lambda: told.pop(0))
    assert digest_of(await cuts.once()) == cuts.digest != digest_of(Lineage(()))


async def test_INV_TLC3_who_has_a_log_that_has_stopped_has_not_cut_all() -> None:
    """What the lineage voids in it is in no quarantine: other nodes are not to count the losses as if they had it."""
    node = fixture()
    holding(node.partition, (4, FIRST), (3, FIRST))
    node.sync()
    cuts, store = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4})])
    node.partition.log.content.fail("its disk is broken")
    await cuts.run()
    assert not store.tails()
    assert cuts.digest != 0, "other logs are copied meanwhile"
    assert cuts.digest_of_all == 0


@pytest.mark.parametrize("has_nodes", [False, True])
async def test_INV_RLD6_the_failover_machine_leaves_nothing_that_followers_have_cut(
    has_nodes: bool,
) -> None:
    """What was copied from a takeover that was passed over may lie below the base of the one that is cut for."""
    node = fixture()
    holding(node.partition, (4, FIRST), (3, PASSED_OVER))
    node.sync()
    key = node.partition.key.encode()
    kept = [
        metadata_image.LineageEntry(
            region_epoch=epoch, acting_region="us", base_region_epoch=FIRST, base_number=number, positions={key: at}
        )
        for epoch, number, at in [(PASSED_OVER, 3, 4), (IN_FORCE, 5, 9)]
    ]  # fmt: skip
    domain = SimpleNamespace(name="main", lineage=tuple(kept))
    image = SimpleNamespace(leadership=object() if has_nodes else None)
    store = QuarantineStore(node.disk, Path("/data/quarantine"))
    parts: Any = SimpleNamespace(
        domain="main", metadata=SimpleNamespace(image=image), role=SimpleNamespace(logs=lambda: node.partitions),
        quarantine=store, clock=InstantClock(),
    )  # fmt: skip
    outlook: Any = SimpleNamespace(parts=parts, settings=None, region="eu", domain=domain)
    state: Any = SimpleNamespace(phase=Phase.CUTTING, region_epoch=FIRST)
    records = tuple(EntryRecord(**msgspec.structs.asdict(each)) for each in kept)
    newest = records[1].entry()
    effect = CutLogs(lowest_base((newest,)), IN_FORCE, records, records[1:])
    await FailoverSteps(outlook, lambda: state)._cut_all(state, effect)
    assert node.partition.log_end_offset == (4 if has_nodes else 7)


async def test_INV_T10_a_log_that_has_stopped_may_hold_what_is_void() -> None:
    node = fixture()
    holding(node.partition, (4, FIRST), (3, FIRST))
    node.sync()
    node.partition.log.content.fail("its disk is broken")
    void, _ = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4})])
    assert void.may_owe(node.partition, is_known=True)
    sound, _ = cuts_of(node, [named(node, IN_FORCE, 5, {0: 7})])
    assert not sound.may_owe(node.partition, is_known=True)
    assert sound.may_owe(node.partition, is_known=False), "nobody has read it"
    first, _ = cuts_of(node, ())
    assert not first.may_owe(node.partition, is_known=False), "nobody ever took over"


async def test_INV_TLC7_who_has_put_a_log_aside_uncut_has_not_cut_all() -> None:
    node = fixture()
    cuts, _ = cuts_of(node, [named(node, IN_FORCE, 5, {0: 4})])
    await cuts.run()
    assert cuts.digest_of_all == cuts.digest != 0
    cuts._parts = replace(cuts._parts, aside_uncut=lambda: ["a/0.uncut.damaged"])
    assert cuts.digest_of_all == 0
