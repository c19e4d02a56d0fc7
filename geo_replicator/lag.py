"""How far a mirror is behind: in records, bytes and milliseconds, per log and in all; its recovery point.

INV-LG1  lag is counted against the primary's HW as the last answer told it; a link that is down says since when
INV-LG3  the total costs what is behind, however many logs there are: it is asked for at every tidemark
INV-LG2  lag in ms is the time since the mirror last had everything that the primary then had; 0 while it has

Not here: what a failover at this moment would lose (`loss`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from geo_replicator.events import FetchedSlice
from geo_replicator.lineage import LogKey


@dataclass(frozen=True, slots=True)
class Lag:
    """How much is missing here."""

    records: int = 0
    bytes: int = 0
    ms: int = 0


@dataclass(slots=True)
class _LogLag:
    primary_high_watermark: int = 0
    mirror_end: int = 0
    unsent_bytes: int = 0
    whole_at_ms: int = 0


@dataclass(slots=True)
class LagBook:
    """Lag of every copied log; times are the mirror's monotonic ms."""

    _logs: dict[LogKey, _LogLag] = field(default_factory=dict)
    _behind: dict[LogKey, None] = field(default_factory=dict)
    heard_at_ms: int | None = None

    def note(self, parts: tuple[FetchedSlice, ...], *, now_ms: int) -> None:
        """Take one fetch answer, after its batches were appended."""
        self.heard_at_ms = now_ms
        for part in parts:
            log = self._logs.setdefault(part.key, _LogLag(whole_at_ms=now_ms))
            if log.mirror_end >= log.primary_high_watermark:
                log.whole_at_ms = now_ms
            log.primary_high_watermark = part.high_watermark
            log.mirror_end = part.next_position
            log.unsent_bytes = part.unsent_bytes
            if log.mirror_end < log.primary_high_watermark:
                self._behind[part.key] = None
            else:
                self._behind.pop(part.key, None)

    def forget(self, key: LogKey) -> None:
        """Drop a log that is no longer copied."""
        self._logs.pop(key, None)
        self._behind.pop(key, None)

    def of(self, key: LogKey, *, now_ms: int) -> Lag:
        """Return the lag of one log."""
        log = self._logs.get(key)
        if log is None or log.mirror_end >= log.primary_high_watermark:
            return Lag()
        records = log.primary_high_watermark - log.mirror_end
        return Lag(records, log.unsent_bytes, max(0, now_ms - log.whole_at_ms))

    def total(self, *, now_ms: int) -> Lag:
        """Return records and bytes summed, ms of the log that is furthest behind."""
        lags = [self.of(key, now_ms=now_ms) for key in self._behind]
        assert all(lag.records > 0 for lag in lags), "INV-LG3: a log is counted that is not behind"
        return Lag(
            sum(lag.records for lag in lags),
            sum(lag.bytes for lag in lags),
            max((lag.ms for lag in lags), default=0),
        )

    def by_log(self, *, now_ms: int) -> Mapping[LogKey, Lag]:
        """Return the lag of each log."""
        return {key: self.of(key, now_ms=now_ms) for key in sorted(self._logs)}
