"""What is wrong with a soak so far: a pure function of what was answered, read back, and declared lost.

Every acknowledged record is there where its answer said, or lies in a range that losses name. A planned switch loses
nothing. A reader is never taken back, but in the region that lost the takeover, and only what it lost.

Not here: torn, doubled and missing transfers (`region_broker.workbench.audit`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

LISTED_MAX: Final = 8


class Record(NamedTuple):
    """One record of a plain topic as a reader was given it."""

    partition: int
    offset: int
    value: str


class Shown(NamedTuple):
    """One record of any topic as a reader was shown it."""

    topic: str
    partition: int
    offset: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class LostRange:
    """Offsets (inclusive) of one partition that a returned region had to give up."""

    region: str
    lineage_epoch: int
    topic: str
    partition: int
    first_offset: int
    last_offset: int


def lost_ranges(losses: Iterable[Mapping[str, Any]]) -> list[LostRange]:
    """Return what the regions that returned gave up."""
    return [
        LostRange(
            found["region"], found["lineage_epoch"], lost["topic"], lost["partition"],
            lost["first_offset"], lost["last_offset"],
        )
        for found in losses
        if found["exact"]
        for lost in found["records"]
    ]  # fmt: skip


def judge_plain(
    acked: Mapping[str, tuple[int, int | None]], records: Sequence[Record], lost: Sequence[LostRange],
    topic: str,
) -> list[str]:  # fmt: skip
    """Return what is wrong with the plain producers' records of one region."""
    anomalies = []
    counts = Counter(record.value for record in records)
    doubled = [value for value, count in counts.items() if count > 1]
    anomalies += few("doubled plain record", doubled)
    anomalies += few("plain records out of order", _disorder(records))
    there = {record.value: (record.partition, record.offset) for record in sorted(records)}
    by_partition: dict[int, list[LostRange]] = defaultdict(list)
    for each in lost:
        if each.topic == topic:
            by_partition[each.partition].append(each)
    missing: list[str] = []
    moved: list[str] = []
    for value, (partition, offset) in acked.items():
        found = there.get(value)
        if found == (partition, offset) or (offset is None and found is not None):
            continue
        at = _next_answered(acked, value, partition) if offset is None else offset
        if not any(each.first_offset <= at <= each.last_offset for each in by_partition[partition]):
            where = f"{value!r} acknowledged at {partition}/{offset}"
            (missing if found is None else moved).append(f"{where}, found at {found}")
    anomalies += few("acknowledged plain record lost outside the losses", missing)
    anomalies += few("acknowledged plain record elsewhere", moved)
    return anomalies


def _next_answered(acked: Mapping[str, tuple[int, int | None]], value: str, partition: int) -> int:
    """Return the offset of the producer's next record that was answered with one, -1 if there is none.

    Without an offset, librdkafka drew the answer from that of a later request of the same region: the record
    lies ahead of that one's, and is lost only together with it.
    """
    name, number = value.split(" ")
    later = [
        (int(other.split(" ")[1]), offset)
        for other, (where, offset) in acked.items()
        if offset is not None and where == partition and other.startswith(f"{name} ")
    ]
    return min((each for each in later if each[0] > int(number)), default=(0, -1))[1]


def judge_shown(
    region: str, shown: Iterable[Shown], final: frozenset[Shown], lost: Sequence[LostRange],
    *, transactional: frozenset[str],
) -> list[str]:  # fmt: skip
    """Return what readers of `region` were shown and is not there any more, beyond what it gave up.

    `lost`: what was given up since the last judgement. A record of a lost transaction may lie below the
    cut: it stays, aborted. So of the `transactional` topics a region that gave up anything may lose any.
    """
    ours: dict[tuple[str, int], list[LostRange]] = defaultdict(list)
    for each in lost:
        if each.region == region:
            ours[each.topic, each.partition].append(each)
    gave_up = bool(ours)
    gone = [
        str(record)
        for record in shown
        if record not in final
        and not (gave_up and record.topic in transactional)
        and not any(
            each.first_offset <= record.offset <= each.last_offset
            for each in ours[record.topic, record.partition]
        )
    ]
    return few(f"taken back from a reader of {region}", sorted(gone))


def judge_losses(losses: Iterable[Mapping[str, Any]], planned_epochs: Iterable[int]) -> list[str]:
    """Return what the losses themselves say is wrong."""
    planned, anomalies = set(planned_epochs), []
    for found in losses:
        who = f"{found['region']}, region epoch {found['lineage_epoch']}"
        anomalies += few(f"outside the loss statement ({who})", list(found["unexplained"]))
        count = found["transaction_count"] + found["plain_record_count"]
        # What diverged was cut off while that epoch was followed, not by the switch that began it.
        by_switch = found.get("cause") != "divergence" and found["lineage_epoch"] in planned
        if by_switch and count:
            anomalies.append(f"a planned switch lost {count} transactions or records ({who})")
    return anomalies


def _disorder(records: Sequence[Record]) -> list[str]:
    last: dict[tuple[int, str], int] = {}
    found = []
    for record in sorted(records):
        name, number = record.value.split(" ")
        if last.get((record.partition, name), 0) > int(number):
            found.append(f"{record} after {last[record.partition, name]}")
        last[record.partition, name] = int(number)
    return found


def few(what: str, items: Sequence[str]) -> list[str]:
    shown = [f"{what}: {item}" for item in items[:LISTED_MAX]]
    if len(items) > LISTED_MAX:
        shown.append(f"{what}: {len(items) - LISTED_MAX} more")
    return shown
