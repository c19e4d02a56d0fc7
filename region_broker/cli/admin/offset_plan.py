"""Where `tidemark group reset-offsets` puts a group: pure, from bounds, what is committed, and what was asked.

An offset never leaves its log: it is put at the nearest end, and the row says so. Without a committed offset nothing is
shifted: there is nothing to count from.

The words are those of `kafka-consumer-groups.sh --reset-offsets` (KIP-122). A time without an offset of its own
stands for what lies behind it: a moment after the last record is the log's end.
Not here: asking for bounds, committing (`group`).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

_DURATION: Final = re.compile(
    r"P(?:(?P<weeks>\d+)W)?(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d+)?)S)?)?"
)
_UNIT_MS: Final = {
    "weeks": 604_800_000, "days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1000
}  # fmt: skip


class PlanError(ValueError):
    """What was asked cannot be read, or cannot be done for a partition."""


class To(Enum):
    """The places an offset can be put at."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SHIFT = "shift"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Target:
    """A place, with its offset, its distance or its wall time in ms."""

    to: To
    value: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One partition: its log, the offset that the group committed, and the first one at the time asked for."""

    topic: str
    partition: int
    log_start: int
    log_end: int
    committed: int | None
    at_time: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What becomes of one partition's offset."""

    topic: str
    partition: int
    before: int | None
    after: int
    note: str


def plan(target: Target, standing: Standing) -> Move:
    """Return where the offset of this partition goes; raises `PlanError`."""
    wanted, note = _wanted(target, standing)
    if wanted < standing.log_start:
        wanted, note = standing.log_start, f"{wanted} is below the log's start"
    elif wanted > standing.log_end:
        wanted, note = standing.log_end, f"{wanted} is beyond the log's end"
    return Move(
        topic=standing.topic,
        partition=standing.partition,
        before=standing.committed,
        after=wanted,
        note=note,
    )


def _wanted(target: Target, standing: Standing) -> tuple[int, str]:
    match target.to:
        case To.EARLIEST:
            return standing.log_start, ""
        case To.LATEST:
            return standing.log_end, ""
        case To.OFFSET:
            return target.value, ""
        case To.TIME if standing.at_time is None:
            return standing.log_end, "no record is that late: the log's end"
        case To.TIME:
            assert standing.at_time is not None
            return standing.at_time, ""
        case To.SHIFT if standing.committed is None:
            raise PlanError(
                f"the group has no offset in {standing.topic}-{standing.partition}: there is nothing to"
                " shift, give --to-earliest, --to-latest or --to-offset"
            )
        case To.SHIFT:
            assert standing.committed is not None
            return standing.committed + target.value, ""


def parse_topics(words: Iterable[str]) -> dict[str, set[int] | None]:
    """Return the partitions of each topic, None for all, from words as `orders`, `orders:3` or `orders:0,2`."""
    found: dict[str, set[int] | None] = {}
    for word in words:
        topic, colon, numbers = word.partition(":")
        parts = numbers.split(",")
        if not topic or (colon and not all(part.isascii() and part.isdigit() for part in parts)):
            raise PlanError(f"--topic {word!r} is none of: orders, orders:3, orders:0,2")
        present = found.get(topic, set())
        if not colon or present is None:
            found[topic] = None
        else:
            found[topic] = present | {int(part) for part in parts}
    return found


def parse_datetime(text: str, option: str = "--to-datetime") -> int:
    """Return the wall time in ms of an ISO 8601 date and time; without a zone it is UTC. Errors name `option`."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise PlanError(f"{option} {text!r}: {error}; as in 2026-01-31T13:00:00Z") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def parse_duration(text: str) -> int:
    """Return the milliseconds of an ISO 8601 duration without months and years, whose length varies."""
    match = _DURATION.fullmatch(text.upper())
    given = {} if match is None else {k: v for k, v in match.groupdict().items() if v is not None}
    if not given or text.upper().endswith("T"):
        raise PlanError(f"--by-duration {text!r} is not as in PT1H, P7D or P1DT12H30M")
    return round(sum(float(number) * _UNIT_MS[unit] for unit, number in given.items()))
