"""What the primary region knows by itself of how far each mirror is behind: nobody has to tell it.

INV-MG1  records and bytes are counted from what was sent to the mirror and taken, to this region's own ends: a link that is
         cut shows a lag that grows with every write
INV-MG2  ms is the time since the first tidemark was published that the mirror has not reached, or, where that is longer,
         since something durable here waits for a tidemark: no mirror reaches what none covers
INV-MG3  what is not known is None, never 0: of a mirror that has not come since this node started
INV-MG5  silence of a mirror is counted from when this region began to act at the earliest: before that it had none
Nothing is done per record: positions are kept per answer, times per tidemark, sums are made when they are asked for.

Not here: what a mirror says of itself (`geo_replicator.lag`), answering it (`primary_side`).
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.link.core import FETCHES_IN_FLIGHT
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation

COUNTED_BYTES_MAX: Final = 1 << 40
TIDEMARKS_REMEMBERED: Final = 4_096


class Taken:
    """How far one session's mirror has come: a request says that all answers but the last two were taken."""

    def __init__(self) -> None:
        """Nothing was sent yet."""
        self._open: deque[dict[LogKey, int]] = deque()

    def asked(self) -> None:
        """Note a request: as many answers are under way, with the one to this, as a mirror lets be."""
        while len(self._open) >= FETCHES_IN_FLIGHT:
            self._open.popleft()

    def answered(self, began_at: dict[LogKey, int]) -> None:
        """Note an answer: where each log stood before it."""
        self._open.append(began_at)

    def give_up(self, positions: dict[LogKey, int]) -> None:
        """Take back from `positions` what nobody knows to have arrived: the session is over."""
        while self._open:
            for key, position in self._open.pop().items():
                if key in positions:
                    positions[key] = position


@dataclass(slots=True)
class _Mirror:
    positions: Mapping[LogKey, int] | None = None
    sessions: int = 0
    linked_since_ms: int = 0
    heard_ms: int | None = None
    reached: TidemarkPoint | None = None
    behind_since_ms: int | None = None


@dataclass(slots=True)
class MirrorLags:
    """All mirrors of the primary region; times are its monotonic ms."""

    started_ms: int
    """Since when mirrors may come: the start of the node, or of the term in which it acts."""
    _mirrors: dict[str, _Mirror] = field(default_factory=dict)
    _published: deque[tuple[TidemarkPoint, int]] = field(
        default_factory=lambda: deque(maxlen=TIDEMARKS_REMEMBERED)
    )

    def _of(self, region: str) -> _Mirror:
        return self._mirrors.setdefault(region, _Mirror())

    def term_began(self, now_ms: int) -> None:
        """Note that this region acts from now on: no mirror could be heard before (INV-MG5)."""
        self.started_ms = now_ms

    def forget(self) -> None:
        """Know nothing of any mirror until it comes again: others have led the region meanwhile (INV-MG3)."""
        self._published.clear()
        for mirror in self._mirrors.values():
            mirror.positions = mirror.heard_ms = mirror.reached = mirror.behind_since_ms = None

    def began(self, region: str, positions: Mapping[LogKey, int], now_ms: int) -> None:
        """A mirror's session begins; `positions` follow what it is sent."""
        mirror = self._of(region)
        mirror.positions = positions
        mirror.linked_since_ms = now_ms
        mirror.sessions += 1

    def ended(self, region: str) -> None:
        """One of its sessions is over; what it had copied stays known."""
        self._of(region).sessions -= 1

    def heard(self, region: str, now_ms: int) -> None:
        """Note that the mirror asked or reported."""
        self._of(region).heard_ms = now_ms

    def published(self, point: TidemarkPoint, now_ms: int) -> None:
        """Note a tidemark of this region."""
        self._published.append((point, now_ms))
        for mirror in self._mirrors.values():
            if mirror.behind_since_ms is None and mirror.reached is not None:
                mirror.behind_since_ms = now_ms

    def reached(self, region: str, point: TidemarkPoint) -> None:
        """Note what the mirror has reached."""
        mirror = self._of(region)
        mirror.reached = point
        waits = next(((at, ms) for at, ms in self._published if at > point), None)
        if waits is None:
            mirror.behind_since_ms = None
        elif mirror.behind_since_ms is None or waits != self._published[0]:
            mirror.behind_since_ms = waits[1]

    def positions_of(self, region: str) -> Mapping[LogKey, int] | None:
        """Return how far a mirror has copied each log, None if it has not come since this node started."""
        return self._of(region).positions

    def heard_ms_ago(self, region: str, now_ms: int) -> int | None:
        """Return how long ago a mirror was heard, None if it was not since this node started."""
        heard_ms = self._of(region).heard_ms
        return None if heard_ms is None else now_ms - heard_ms

    def status(
        self,
        region: str,
        partitions: Iterable[Partition],
        now_ms: int,
        *,
        waiting_since_ms: int | None = None,
    ) -> dict[str, Any]:
        """Return all that is known of one mirror, as JSON-able values.

        `waiting_since_ms`: since when something here is under no tidemark, None if nothing is.
        """
        mirror = self._of(region)
        reached = mirror.reached
        began_ms = (mirror.behind_since_ms, waiting_since_ms)
        since_ms = min((at for at in began_ms if at is not None), default=now_ms)
        records, size_bytes = _behind(mirror.positions, partitions)
        heard_ms_ago, silent_ms = self.heard_ms_ago(region, now_ms), now_ms - self.started_ms
        return {
            "connected": mirror.sessions > 0,
            "link_age_ms": now_ms - mirror.linked_since_ms if mirror.sessions > 0 else None,
            "reached": None
            if reached is None
            else {"region_epoch": reached.region_epoch, "number": reached.number},
            "lag": {
                "records": records,
                "bytes": size_bytes,
                "ms": None if reached is None else now_ms - since_ms,
            },
            "heard_ms_ago": heard_ms_ago,
            "silent_ms": silent_ms if heard_ms_ago is None else min(silent_ms, heard_ms_ago),
        }


def _behind(
    positions: Mapping[LogKey, int] | None, partitions: Iterable[Partition]
) -> tuple[int | None, int | None]:
    """Return records and bytes between the positions and the ends; None where no position is known."""
    if positions is None:
        return None, None
    records = size_bytes = 0
    for partition in partitions:
        key = LogKey(partition.topic_id, partition.tp.partition)
        start = max(positions.get(key, 0), partition.log_start_offset)
        if start < partition.high_watermark:
            records += partition.high_watermark - start
            size_bytes += partition.reader.readable_bytes(
                start, Isolation.DURABLE, COUNTED_BYTES_MAX
            )
    return records, size_bytes
