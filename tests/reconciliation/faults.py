"""The fault injector: every way in which two regions can differ, and the one finding that must name it.

The table of `spark.md` 4.4, extended to every kind of finding. `spoil` edits a sound pair; `roots` are the
findings without a cause that `verify` and `transactions` together must then show, as (kind, place);
`transaction_roots` what `transactions` alone must show.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geo_replicator.reconciliation.findings import Kind
from geo_replicator.reconciliation.plan import Until
from idempotency.record_batch import (
    HEADER_BYTES,
    ControlType,
    MarkerFacts,
    build_marker,
    read_header,
    read_marker,
)
from tests.reconciliation.two_regions import (
    A0,
    A1,
    OFFSETS,
    PLAIN,
    TIMEOUT_MS,
    TXN_LEDGER,
    Pair,
    Place,
    Primary,
    Txn,
    end_of,
    flipped,
    restamped,
    segments,
    sound_primary,
    with_crc,
)

Root = tuple[Kind, str]
NEXT_LEADER_EPOCH = 17 << 16 | 1


@dataclass(frozen=True)
class Fault:
    """One fault. `place` is the partition it spoils, for faults that can be paired."""

    name: str
    build: Callable[[], Pair]
    roots: frozenset[Root]
    transaction_roots: frozenset[Root] = frozenset()
    until: Until = Until.CUT
    exit_code: int = 1


def name_of(place: Place) -> str:
    return f"{place[0]}-{place[1]}"


def sound_pair() -> Pair:
    return Pair.of(sound_primary())


# Edits of a mirror's log. Each takes the pair, a place and the index of a batch in it.


def remove(pair: Pair, place: Place, index: int) -> None:
    del pair.mirror[place][index]


def flip_payload(pair: Pair, place: Place, index: int) -> None:
    pair.mirror[place][index] = flipped(pair.mirror[place][index])


def flip_header(pair: Pair, place: Place, index: int) -> None:
    """Flip a bit of the producer id, which the CRC covers."""
    pair.mirror[place][index] = flipped(pair.mirror[place][index], at=47)


def change_payload(pair: Pair, place: Place, index: int) -> None:
    pair.mirror[place][index] = with_crc(flipped(pair.mirror[place][index], at=-2))


def swap(pair: Pair, place: Place, index: int) -> None:
    log = pair.mirror[place]
    index -= index % pair.roll_batches == pair.roll_batches - 1  # both in one segment
    log[index], log[index + 1] = log[index + 1], log[index]


def write_twice(pair: Pair, place: Place, index: int) -> None:
    pair.mirror[place].insert(index, pair.mirror[place][index])


def remove_at_source(pair: Pair, place: Place, index: int) -> None:
    del pair.source[place][index]


def remove_on_both(pair: Pair, place: Place, index: int) -> None:
    del pair.source[place][index]
    del pair.mirror[place][index]


def damage_length(pair: Pair, place: Place, index: int) -> None:
    batch = bytearray(pair.mirror[place][index])
    struct.pack_into(">i", batch, 8, -5)
    pair.byte_faults.append(
        _overwrite(place, read_header(pair.mirror[place][index]).base_offset, bytes(batch))
    )


def _overwrite(place: Place, base_offset: int, batch: bytes) -> Callable[[Path, Path], None]:
    def spoil(_: Path, away: Path) -> None:
        needle = struct.pack(">q", base_offset) + batch[12:HEADER_BYTES]
        for path in segments(away, place):
            data = bytearray(path.read_bytes())
            at = _find(data, base_offset, batch)
            if at >= 0:
                data[at : at + len(batch)] = batch
                path.write_bytes(data)
                return
        raise AssertionError(needle)

    return spoil


def _find(data: bytearray, base_offset: int, batch: bytes) -> int:
    """Return where the batch with that offset and content starts, whatever its length field says."""
    at = data.find(batch[12:])
    return at - 12 if at >= 12 else -1


LOCAL_EDITS: dict[str, tuple[Callable[[Pair, Place, int], None], Kind]] = {
    "batch_removed": (remove, Kind.MISSING),
    "payload_bit_flipped": (flip_payload, Kind.CRC_BAD_LOCAL),
    "header_bit_flipped": (flip_header, Kind.CRC_BAD_LOCAL),
    "payload_changed_crc_recomputed": (change_payload, Kind.DIVERGENT),
    "two_batches_swapped": (swap, Kind.REORDERED),
    "batch_written_twice": (write_twice, Kind.OVERLAP),
    "batch_lost_at_source": (remove_at_source, Kind.EXTRA),
    "batch_lost_on_both": (remove_on_both, Kind.OFFSET_GAP),
    "length_damaged": (damage_length, Kind.TORN_BATCH),
}
"""Edits of one batch anywhere below the cut, and the kind of their root."""


def edited(name: str, place: Place, index: int) -> Fault:
    edit, kind = LOCAL_EDITS[name]

    def build() -> Pair:
        pair = sound_pair()
        edit(pair, place, index)
        return pair

    return Fault(name, build, frozenset({(kind, name_of(place))}))


def _pair_fault(
    name: str, spoil: Callable[[Pair], None], roots: set[Root], *, alone: set[Root] | None = None,
    until: Until = Until.CUT, exit_code: int = 1,
) -> Fault:  # fmt: skip
    def build() -> Pair:
        pair = sound_pair()
        spoil(pair)
        return pair

    return Fault(name, build, frozenset(roots), frozenset(alone or ()), until, exit_code)


def _primary_fault(
    name: str, extra: Callable[[Primary], None], root: Root, *, alone: bool = True
) -> Fault:
    """A fault that the primary region wrote and the mirror copied faithfully."""
    roots = frozenset({root})
    return Fault(
        name, lambda: Pair.of(sound_primary(extra)), roots, roots if alone else frozenset()
    )


def _last_marker(log: list[bytes]) -> int:
    """Return where the last COMMIT marker of producer 1000 is: the tidemark covers it."""
    headers = [read_header(batch) for batch in log]
    return max(i for i, h in enumerate(headers) if h.is_control and h.producer_id == 1000)


def _remove_last_marker(pair: Pair) -> None:
    del pair.mirror[A1][_last_marker(pair.mirror[A1])]


def _flip_marker(pair: Pair) -> None:
    log = pair.mirror[A0]
    index = _last_marker(log)
    facts, header = read_marker(log[index]), read_header(log[index])
    flipped_type = ControlType.ABORT if facts.control_type else ControlType.COMMIT
    changed = MarkerFacts(
        facts.producer_id, facts.producer_epoch, flipped_type, facts.coordinator_epoch,
        facts.decision, facts.timestamp_ms,
    )  # fmt: skip
    log[index] = build_marker(
        changed, base_offset=header.base_offset, leader_epoch=header.leader_epoch
    )


def _append_again(pair: Pair) -> None:
    log = pair.mirror[PLAIN]
    log.append(restamped(log[-1], base_offset=end_of(log)))


def _cut_file(place: Place, missing_bytes: int, which: int = -1) -> Callable[[Pair], None]:
    def spoil(pair: Pair) -> None:
        def truncate(_: Path, away: Path) -> None:
            path = segments(away, place)[which]
            path.write_bytes(path.read_bytes()[:-missing_bytes])

        pair.byte_faults.append(truncate)

    return spoil


def _lose_segment(which: int) -> Callable[[Pair], None]:
    def spoil(pair: Pair) -> None:
        pair.byte_faults.append(lambda _, away: segments(away, A0)[which].unlink())

    return spoil


def _lag(pair: Pair) -> None:
    del pair.mirror[PLAIN][-1:]


def _fork(pair: Pair) -> None:
    """The source went on under a new region epoch; the mirror kept its own tail of the old one."""
    log = pair.source[PLAIN]
    for index in (-2, -1):
        log[index] = restamped(with_crc(flipped(log[index], at=-2)), leader_epoch=NEXT_LEADER_EPOCH)


def _old_tail(pair: Pair) -> None:
    """The same, where the new region's log is still the shorter one."""
    log = pair.source[PLAIN]
    del log[-1]
    log[-1] = restamped(log[-1], leader_epoch=NEXT_LEADER_EPOCH)


def _drop_partition(pair: Pair) -> None:
    del pair.mirror[A1]


def _recreate(pair: Pair) -> None:
    pair.mirror_generation["clicks"] = 1


def _lose_decision(pair: Pair) -> None:
    """The PREPARE record of the last transaction is lost in the mirror's ledger."""
    log = pair.mirror[TXN_LEDGER, 0]
    del log[-3]


def _old_open(primary: Primary) -> None:
    primary.play(Txn(1007, (A0,), end=False))
    primary.now_ms += TIMEOUT_MS + 1
    primary.plain(PLAIN)


def _bad_txn(**how: object) -> Callable[[Primary], None]:
    def extra(primary: Primary) -> None:
        primary.play(Txn(producer=1000, places=(A0, A1, OFFSETS), **how))  # type: ignore[arg-type]

    return extra


def _single(**how: object) -> Callable[[Primary], None]:
    def extra(primary: Primary) -> None:
        primary.play(Txn(producer=1009, places=(A1,), **how))  # type: ignore[arg-type]

    return extra


def _repeat(primary: Primary) -> None:
    primary.data(PLAIN, 2000, 0, 1, sequence=2)
    primary.sequences[PLAIN, 2000, 0] = sum(1 + turn % 3 for turn in range(6))


FAULTS: tuple[Fault, ...] = (
    *(edited(name, place, 5) for name in LOCAL_EDITS for place in (PLAIN,)),
    edited("batch_removed", PLAIN, 7),
    edited("batch_removed", PLAIN, 0),
    _pair_fault(
        "last_marker_removed", _remove_last_marker, {(Kind.MISSING, "accounts-1")},
        alone={(Kind.TORN_TXN, "accounts-1")},
    ),
    _pair_fault(
        "marker_flipped", _flip_marker, {(Kind.DIVERGENT, "accounts-0")},
        alone={(Kind.TORN_TXN, "accounts-0")},
    ),
    _pair_fault(
        "appended_again", _append_again, {(Kind.EXTRA_PAST_SOURCE, "clicks-0")}, until=Until.END
    ),
    _pair_fault(
        "cut_mid_batch_above_cut", _cut_file(PLAIN, 9), {(Kind.TAIL_UNREPLICATED, "clicks-0")},
        exit_code=0,
    ),
    _pair_fault("cut_mid_batch_below_cut", _cut_file(OFFSETS, 9), {(Kind.TORN_BATCH, "__consumer_offsets-0")},
                alone={(Kind.TORN_TXN, "__consumer_offsets-0")}),
    _pair_fault("sealed_segment_cut", _cut_file(A0, 30, 1), {(Kind.TORN_BATCH, "accounts-0")}),
    _pair_fault("segment_lost", _lose_segment(1), {(Kind.MISSING, "accounts-0")},
                alone={(Kind.TORN_TXN, "accounts-0")}),
    _pair_fault("first_segment_lost", _lose_segment(0), {(Kind.MISSING, "accounts-0")}),
    _pair_fault("mirror_behind", _lag, {(Kind.TAIL_UNREPLICATED, "clicks-0")}, exit_code=0),
    _pair_fault("fork", _fork, {(Kind.POST_PROMOTION_FORK, "clicks-0")}, until=Until.END),
    _pair_fault("old_tail", _old_tail, {(Kind.POST_PROMOTION_FORK, "clicks-0")}, until=Until.END),
    _pair_fault("partition_lost", _drop_partition, {(Kind.TOPIC_MISMATCH, "accounts-1")}),
    _pair_fault("topic_recreated", _recreate, {(Kind.TOPIC_MISMATCH, "clicks--1")}),
    _pair_fault("decision_lost", _lose_decision, {(Kind.MISSING, "__transaction_state-0")},
                alone={(Kind.ABORTED_VISIBLE, "__consumer_offsets-0")}),
    _primary_fault("sequence_repeated", _repeat, (Kind.DUPLICATE, "clicks-0"), alone=False),
    _primary_fault("sequence_skipped", lambda primary: (primary.data(PLAIN, 2000, 0, skip=4), None)[1],
                (Kind.SEQ_GAP, "clicks-0"), alone=False),
    _primary_fault("marker_never_written", _bad_txn(lose_marker_in=(1,)), (Kind.TORN_TXN, "accounts-1")),
    _primary_fault("marker_contradicts", _bad_txn(flip_marker_in=(0,)), (Kind.TORN_TXN, "accounts-0")),
    _primary_fault("all_markers_lost", _bad_txn(lose_marker_in=(0, 1, 2)), (Kind.COMMITTED_INCOMPLETE, "accounts-0")),
    _primary_fault("committed_shown_as_aborted", _single(flip_marker_in=(0,)), (Kind.COMMITTED_INCOMPLETE, "accounts-1")),
    _primary_fault("aborted_shown", _single(commit=False, flip_marker_in=(0,)), (Kind.ABORTED_VISIBLE, "accounts-1")),
    _primary_fault("aborted_shown_in_one", _bad_txn(commit=False, flip_marker_in=(2,)),
                (Kind.ABORTED_VISIBLE, "__consumer_offsets-0")),
    _primary_fault("abort_marker_lost", _single(commit=False, lose_marker_in=(0,)), (Kind.HANGING_TXN, "accounts-1")),
    _primary_fault("abort_marker_lost_next_commits", _bad_txn(commit=False, lose_marker_in=(0,)),
                (Kind.ABORTED_VISIBLE, "accounts-0")),
    _primary_fault("commit_without_decision", _single(in_ledger=False), (Kind.ABORTED_VISIBLE, "accounts-1")),
    _primary_fault("open_too_long", _old_open, (Kind.HANGING_TXN, "accounts-0")),
)  # fmt: skip
