"""The disks of a life: logs as lists of (leader epoch, value), with what is synced, and what three kinds of loss leave.

A crash loses what was not synced, or less. An emptied folder is a new incarnation. One that was wound back is shorter, and the same one.
"""

import random
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.replication.events import LocalLog
from region_broker.replication.facts import EpochStart, LogHistory


class Row(NamedTuple):
    """A batch of one record."""

    leader_epoch: LeaderEpoch
    value: int


@dataclass
class SimLog:
    """One log. `rows` begins at offset 0; None stands where this log never had a record, or has it no more."""

    rows: list[Row | None] = field(default_factory=list)
    start: int = 0
    """Below it all is deleted, durably; it may lie above what is durable of the rows."""
    kept: int = 0
    """The bytes begin there."""
    durable: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    high_watermark: int = 0
    """What the member knows of it; after a crash perhaps less."""

    @property
    def end(self) -> int:
        return len(self.rows)

    def append(self, row: Row) -> None:
        self.epochs.note(row.leader_epoch, self.end)
        self.rows.append(row)

    def extend(self, position: int, rows: list[Row]) -> None:
        assert self.end == position, (self.end, position)
        for row in rows:
            self.append(row)

    def cut(self, end: int) -> None:
        assert self.kept <= end <= self.end, (self.kept, end, self.end)
        self.start = min(self.start, end)
        del self.rows[end:]
        self.epochs.truncate_end(end)
        self.durable = end

    def start_at(self, offset: int) -> None:
        self.rows = [None] * offset
        self.start = self.kept = self.durable = self.high_watermark = offset
        self.epochs = LeaderEpochs()

    def trim(self, offset: int) -> None:
        self.start = max(self.start, min(offset, self.end))
        self.kept = max(self.kept, min(self.start, self.durable))
        self.epochs.truncate_start(self.kept)

    def start_from(self, offset: int) -> None:
        """Start where the leader does: below, too, as far as there are bytes."""
        self.start = max(self.kept, min(self.start, offset))
        self.trim(offset)

    def history(self) -> LogHistory:
        entries = tuple(EpochStart(*entry) for entry in self.epochs.entries())
        return LogHistory(entries, self.kept, self.end)

    def local(self) -> LocalLog:
        self.high_watermark = min(max(self.high_watermark, self.start), self.durable)
        return LocalLog(self.history(), self.durable, self.high_watermark)

    def holds(self, rows: list[Row]) -> bool:
        """Return whether all of these are here, durably, but for what was trimmed."""
        return self.durable >= len(rows) and self.rows[self.start : len(rows)] == rows[self.start :]


@dataclass
class SimDisk:
    """The folder of one node."""

    node_id: int
    incarnation: int = 1
    logs: dict[LogKey, SimLog] = field(default_factory=dict)

    @property
    def member(self) -> Member:
        return Member(self.node_id, UUID(int=self.incarnation))

    def log(self, key: LogKey) -> SimLog:
        return self.logs.setdefault(key, SimLog())

    def crash(self, chance: random.Random) -> None:
        """Lose what was not synced, or less; what is found is durable."""
        for log in self.logs.values():
            log.cut(chance.randint(log.durable, log.end))
            log.high_watermark = chance.randint(
                min(log.start, log.high_watermark), log.high_watermark
            )

    def empty(self) -> None:
        self.incarnation += 1
        self.logs = {}

    def wind_back(self, chance: random.Random) -> None:
        for log in self.logs.values():
            log.cut(chance.randint(log.kept, log.end))
            log.high_watermark = min(log.high_watermark, log.end)
