"""What must hold at every moment of a life, whatever happens: looked at when it may have changed, and judged here.

INV-IVE1  ends: log start <= last stable offset <= visible end <= HW <= log end, in each partition
INV-IVE2  HW and log end of a leader never go back in its term
INV-IVE3  leader epochs and the offsets where they start rise strictly in each log, and none starts beyond its end
INV-IVE4  what a producer sent last is below the log end, its batches follow one another in offsets and in sequences
INV-IVE5  what a partition knows of producers and open transactions is what a replay of its log finds
INV-IVA1  under one region epoch one region acts, ever
INV-IVA2  the tidemark that a region has reached goes back only with its folder or one of its logs, or where its lineage
          voids it or an operator gave up what it had shown
INV-IVA3  what is in quarantine stays, byte by byte, as long as the folder
INV-IVA4  a mirror that holds the base of its lineage shows no more than the tidemark that it has reached says
INV-IVA5  who forwards to another region shows nothing that the lineage took from its logs

Ends are looked at within each change of what a partition shows (`ReadableWatchers`); who acts and what is reached every
LOOK_S, and what who forwards shows with either; the rest, which reads logs, where a region is killed, and at the end.
Not here: what clients saw (`chaos`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from geo_replicator.lineage import TidemarkPoint
from idempotency.partition_state import PartitionState, ProducerFacts
from idempotency.producer_state import ProducerEntry
from tests.fixtures.node_logs import with_markers

SEQUENCES: Final = 1 << 31
LOOK_S: Final = 0.1


class Ends(NamedTuple):
    """Where a partition is. `term`: under which leader epoch it leads, None where it does not."""

    log_start: int
    last_stable: int
    visible: int
    high_watermark: int
    log_end: int
    term: int | None


def wrong_ends(before: Ends | None, now: Ends) -> Iterator[str]:
    """Yield what is wrong with the ends of a partition, which were `before` in the same life (INV-IVE1, INV-IVE2)."""
    if not now.log_start <= now.last_stable <= now.visible <= now.high_watermark <= now.log_end:
        yield f"INV-IVE1 {now}"
    same_term = before is not None and now.term is not None and before.term == now.term
    if before is not None and same_term and not (
        before.high_watermark <= now.high_watermark and before.log_end <= now.log_end
    ):  # fmt: skip
        yield f"INV-IVE2 {before} became {now}"


def wrong_epochs(entries: Sequence[tuple[int, int]], log_end: int) -> Iterator[str]:
    """Yield what is wrong with (leader epoch, start offset), oldest first (INV-IVE3)."""
    for (epoch, start), (next_epoch, next_start) in pairwise(entries):
        if next_epoch <= epoch or next_start <= start:
            yield f"INV-IVE3 {entries}"
    if entries and entries[-1][1] > log_end:
        yield f"INV-IVE3 {entries[-1]} begins behind the log's end, {log_end}"


def wrong_producers(
    entries: Iterable[ProducerEntry],
    log_end: int,
    gaps_of: Collection[int] = (),
    holes_below: int = 0,
) -> Iterator[str]:
    """Yield what is wrong with the producers of a partition (INV-IVE4); those in `gaps_of` had a gap accepted (T22).

    What compaction took away below `holes_below` is missing where a start, or a mirror, reads the log.
    """
    for entry in entries:
        batches = entry.window.batches
        if batches and batches[-1].last_offset >= log_end:
            yield f"INV-IVE4 producer {entry.producer_id} has {batches[-1]}, the log ends at {log_end}"
        for one, other in pairwise(batches):
            follows = other.base_sequence == (one.last_sequence + 1) % SEQUENCES
            gap = entry.producer_id in gaps_of or one.last_offset < holes_below
            if other.base_offset <= one.last_offset or not (follows or gap):
                yield f"INV-IVE4 producer {entry.producer_id}: {one}, then {other}"


def replayed(data: bytes) -> PartitionState:
    """Return what a whole log makes of a partition."""
    state = PartitionState()
    for header, marker in with_markers(data):
        state.apply(header, marker)
    return state


def wrong_state(live: PartitionState, replay: PartitionState) -> Iterator[str]:
    """Yield in what a partition's state differs from the replay of its log (INV-IVE5).

    A producer may have expired, which is no matter of the log; none that has a transaction does.
    """
    if live.end_offset != replay.end_offset:
        yield f"INV-IVE5 it ends at {live.end_offset}, its log at {replay.end_offset}"
    ours, theirs = _by_id(live.producers()), _by_id(replay.producers())
    for producer_id, facts in ours.items():
        if theirs.get(producer_id) != facts:
            yield f"INV-IVE5 {facts}; its log says {theirs.get(producer_id)}"
    if live.open_transactions() != replay.open_transactions():
        yield f"INV-IVE5 open are {live.open_transactions()}; its log says {replay.open_transactions()}"


def _by_id(facts: Iterable[ProducerFacts]) -> Mapping[int, ProducerFacts]:
    return {each.producer_id: each for each in facts}


def wrong_actors(known: dict[int, str], acting: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield which regions act under one epoch, now or ever; `known` is who acted under each (INV-IVA1)."""
    for region, epoch in acting:
        if known.setdefault(epoch, region) != region:
            yield f"INV-IVA1 {region} acts under epoch {epoch}, as {known[epoch]} did"


def wrong_reached(before: TidemarkPoint, now: TidemarkPoint) -> Iterator[str]:
    """Yield whether a region has reached less than it had, with the same folder (INV-IVA2)."""
    if now < before:
        yield f"INV-IVA2 it had reached {before}, now {now}"


def wrong_quarantine(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> Iterator[str]:
    """Yield what left quarantine, or was changed in it, of files by name (INV-IVA3)."""
    for name, content in before.items():
        if now.get(name) != content:
            yield f"INV-IVA3 {name} is {'changed' if name in now else 'gone'}"


def wrong_shown(shown: Mapping[str, int], cut: Mapping[str, int]) -> Iterator[str]:
    """Yield what a mirror shows beyond its tidemark, by partition (INV-IVA4)."""
    for partition, end in shown.items():
        if end > cut.get(partition, 0):
            yield f"INV-IVA4 {partition} shows {end}, its tidemark says {cut.get(partition, 0)}"


def wrong_history(visible: int, own_end: int, base: int) -> Iterator[str]:
    """Yield whether a partition shows records of older terms beyond the base of the newest one (INV-IVA5).

    `own_end`: where its records of older terms end.
    """
    if min(visible, own_end) > base:
        yield f"INV-IVA5 it shows {visible}, of older terms up to {own_end}; the newest one begins at {base}"
