"""What can become of a folder, and what rules T32 to T36 demand then: a table of rows, and the runs that play them.

A row holds for two regions, before any failover and after one, unless it says when. Its fault strikes the acting
region (primary) or its mirror while neither runs. `met`: what that region must do when the other one is up; `alone`:
when it is away; `later`: when it then comes, the same as `met` unless the row says otherwise.

Not here: how a fault is made (`runner`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Fault(StrEnum):
    """What happened to the folder, in words."""

    OWN = "nothing: its own folder"
    EMPTY = "empty folder"
    OLDER = "older copy"
    FORMER = "copy from before the failover"
    EXCHANGED = "folder of another region: both are exchanged"
    COPIED = "copy of the other region's folder"
    NO_LOGS = "metadata without logs"
    NO_METADATA = "logs without metadata"
    LOST_LOG = "one log missing"
    CLOCK = "clock set back by a day"


class Side(StrEnum):
    """Which region it happened to."""

    PRIMARY = "primary"
    MIRROR = "mirror"


class Other(StrEnum):
    """Where the other region is."""

    UP = "up"
    AWAY = "away"
    LATER = "later"


class When(StrEnum):
    """Whether a failover has happened before."""

    BEFORE = "before"
    AFTER = "after"


class Seen(Enum):
    """What a region does, in words for the table."""

    ACTS = "acts"
    MIRRORS = "mirrors, and copies what it lacks"
    FOLLOWS = "shows what it has, and waits for the primary"
    NO_HISTORY = "does not act: it has no history"
    DISPUTED = "closes its writes: the mirror has shown more"
    LOGS_LOST = "does not act, and names the log"
    BEHIND = "does not act: it hears of its own later life"
    REFUSES = "does not open the folder"


class Way(StrEnum):
    """A way out that the region's own words name."""

    NONE = "none needed"
    FAILOVER = "failover to the other region"
    ACCEPT_LOSS = "accept the loss"
    OWN_BACK = "its own folder back"
    EMPTIED = "an empty folder"


@dataclass(frozen=True, slots=True)
class Expected:
    """What must be seen; `words` must be told, with {other} for the other region."""

    seen: Seen
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One fault on one side; see the module."""

    name: str
    fault: Fault
    side: Side
    alone: Expected
    met: Expected
    ways_met: tuple[Way, ...] = (Way.NONE,)
    ways_later: tuple[Way, ...] = (Way.NONE,)
    when: tuple[When, ...] = (When.BEFORE, When.AFTER)
    written_alone: str = ""
    """What becomes of records that it took while it was alone."""

    @property
    def ways(self) -> Sequence[Way]:
        """Return all ways out, in the order of the enum."""
        return [way for way in Way if way in {*self.ways_met, *self.ways_later}]


@dataclass(frozen=True, slots=True)
class Run:
    """A row played once. `other` is up, or first away and then back: that run plays both."""

    row: Row
    when: When
    other: Other
    way: Way

    @property
    def name(self) -> str:
        """Return what `--case` and the lines of a run say."""
        way = "" if self.way is Way.NONE else f"-{self.way.name.lower().replace('_', '-')}"
        return f"{self.row.name}-{self.when}-{self.other}{way}"


_ACTS: Final = Expected(Seen.ACTS)
_MIRRORS: Final = Expected(Seen.MIRRORS)
_FOLLOWS: Final = Expected(Seen.FOLLOWS, ("cannot reach",))
_WAITS_FOR_ANY: Final = Expected(
    Seen.NO_HISTORY, ("has no history", "it waits for a region that acts", "tidemark init")
)
_NOT_ITS_OWN: Final = Expected(
    Seen.REFUSES, ("holds the data of region {other}", "the data_dir of its own region", "empty")
)
_WHOLE: Final = ("is not whole", "Give the whole folder back", "empty it")
_WITHOUT_LOGS: Final = Expected(Seen.REFUSES, ("logs is missing", *_WHOLE))
_WITHOUT_METADATA: Final = Expected(Seen.REFUSES, ("metadata.db is missing", *_WHOLE))
_FAILOVER_TO: Final = "region failover --to {other}"
_LOG_LOST: Final = ("not on its disk any more", "kept-", "give its whole data folder back")


def _refused(fault: Fault, name: str, told: Expected, met: Way, later: Way) -> list[Row]:
    """Return the two rows of a folder that is not opened wherever the other region is."""
    return [Row(f"{name}-{side}", fault, side, told, told, (met,), (later,)) for side in Side]


ROWS: Final[Sequence[Row]] = (
    Row("own-primary", Fault.OWN, Side.PRIMARY, _ACTS, _ACTS),
    Row(
        "empty-primary", Fault.EMPTY, Side.PRIMARY, _WAITS_FOR_ANY,
        Expected(Seen.NO_HISTORY, ("region {other} has history, and nobody acts", _FAILOVER_TO)),
        (Way.FAILOVER,), (Way.FAILOVER,),
    ),
    Row("empty-mirror", Fault.EMPTY, Side.MIRROR, _WAITS_FOR_ANY, _MIRRORS),
    Row(
        "older-primary", Fault.OLDER, Side.PRIMARY, _ACTS,
        Expected(Seen.DISPUTED, ("region {other} has shown", _FAILOVER_TO, "accept-loss")),
        (Way.FAILOVER, Way.ACCEPT_LOSS), (Way.FAILOVER, Way.ACCEPT_LOSS),
        written_alone="both keep what they have until the operator chooses",
    ),
    Row("older-mirror", Fault.OLDER, Side.MIRROR, _FOLLOWS, _MIRRORS),
    Row(
        "former-primary", Fault.FORMER, Side.PRIMARY, _FOLLOWS,
        Expected(Seen.BEHIND, ("itself took over under region epoch", "this data folder is from before", _FAILOVER_TO)),
        (Way.FAILOVER,), (Way.FAILOVER,), (When.AFTER,),
    ),
    Row("former-mirror", Fault.FORMER, Side.MIRROR, _ACTS, _MIRRORS, when=(When.AFTER,),
        written_alone="what it wrote alone goes to quarantine",
    ),
    *_refused(Fault.EXCHANGED, "exchanged", _NOT_ITS_OWN, Way.EMPTIED, Way.OWN_BACK),
    *_refused(Fault.COPIED, "copied", _NOT_ITS_OWN, Way.EMPTIED, Way.OWN_BACK),
    *_refused(Fault.NO_LOGS, "no-logs", _WITHOUT_LOGS, Way.OWN_BACK, Way.EMPTIED),
    *_refused(Fault.NO_METADATA, "no-metadata", _WITHOUT_METADATA, Way.EMPTIED, Way.OWN_BACK),
    Row(
        "lost-log-primary", Fault.LOST_LOG, Side.PRIMARY, Expected(Seen.LOGS_LOST, _LOG_LOST),
        Expected(Seen.LOGS_LOST, (*_LOG_LOST, _FAILOVER_TO)),
        (Way.FAILOVER, Way.OWN_BACK), (Way.FAILOVER,),
    ),
    Row(
        "lost-log-mirror", Fault.LOST_LOG, Side.MIRROR,
        Expected(Seen.FOLLOWS, ("the disk has lost a part of it", "until the primary region has sent the rest again")),
        _MIRRORS,
    ),
    Row("clock-primary", Fault.CLOCK, Side.PRIMARY, _ACTS, _ACTS),
    Row("clock-mirror", Fault.CLOCK, Side.MIRROR, _FOLLOWS, _MIRRORS),
)  # fmt: skip


def runs() -> list[Run]:
    """Return all runs, those of one row together."""
    return [
        Run(row, when, other, way)
        for row in ROWS
        for when in row.when
        for other, ways in ((Other.UP, row.ways_met), (Other.LATER, row.ways_later))
        for way in ways
    ]
