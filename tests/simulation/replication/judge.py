"""What must hold in every step of a life.

INV-RPJ1  what was acknowledged is durably on every member of the in-sync set that has its disk, so whoever is elected from it has all
INV-RPJ2  HW of a log does not go down in a leader epoch
INV-RPJ3  what was committed at an offset stays so: no leader and no follower has anything else below HW
INV-RPJ4  a core that was told of a newer leader epoch asks for nothing more, and what a deposed one acknowledges before that, its
          successor has
INV-RPJ5  nothing is acknowledged while the leader's in-sync set is smaller than the log's `min.insync.replicas`;
          what older leader epochs left is not acknowledged any more
INV-RPJ6  a leader that says it knows the latest offset knows all that older leader epochs acknowledged (R6)
INV-RPJ7  no log is cut, and none stops, below the HW that its member knew
INV-RPJ8  once faults have ended all members are in sync, and all that was written is committed and known to be
INV-RPJ9  in one leader epoch one member leads, once
INV-RPJ10 where a deletion was acknowledged every member of the in-sync set that has its disk starts, durably
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NoReturn

from idempotency.identity import LeaderEpoch, LogKey, Member
from tests.simulation.replication.disks import Row, SimDisk


class Violation(Exception):
    """An invariant does not hold; its text begins with which."""


def violated(invariant: str, text: str) -> NoReturn:
    """Raise `Violation`."""
    raise Violation(f"{invariant}: {text}")


class Judge:
    """Hears what the cores ask for, and looks at the disks."""

    def __init__(self) -> None:
        """Nothing is committed yet."""
        self.committed: dict[LogKey, list[Row]] = defaultdict(list)
        self.deleted_below: dict[LogKey, int] = defaultdict(int)
        self._high_watermarks: dict[tuple[LeaderEpoch, LogKey], int] = {}
        self._at_election: dict[LeaderEpoch, dict[LogKey, int]] = {}
        self._leaders: dict[LeaderEpoch, Member] = {}

    def elected(self, leader_epoch: LeaderEpoch) -> None:
        """Note how much was committed when somebody was elected."""
        self._at_election[leader_epoch] = {key: len(rows) for key, rows in self.committed.items()}

    def leads(self, leader_epoch: LeaderEpoch, member: Member) -> None:
        """Note that a member begins to lead."""
        if leader_epoch in self._leaders:
            violated(
                "INV-RPJ9", f"{member} leads in leader epoch {leader_epoch}, which has had a leader"
            )
        self._leaders[leader_epoch] = member

    def leader_moved(
        self,
        leader_epoch: LeaderEpoch,
        disk: SimDisk,
        key: LogKey,
        high_watermark: int,
        *,
        in_sync: int,
        least: int,
    ) -> None:
        """Judge an acknowledgement: all below `high_watermark`."""
        before = self._high_watermarks.get((leader_epoch, key), 0)
        if high_watermark < before:
            violated(
                "INV-RPJ2",
                f"HW went from {before} to {high_watermark} in leader epoch {leader_epoch}",
            )
        self._high_watermarks[leader_epoch, key] = high_watermark
        if in_sync < least:
            violated("INV-RPJ5", f"acknowledged up to {high_watermark} by {in_sync} of {least}")
        log, committed = disk.log(key), self.committed[key]
        if log.durable < high_watermark:
            violated(
                "INV-RPJ1",
                f"its leader has {log.durable} durably, and acknowledges {high_watermark}",
            )
        self._same(disk, key, min(high_watermark, len(committed)))
        for row in log.rows[len(committed) : high_watermark]:
            assert row is not None
            committed.append(row)

    def follower_moved(self, disk: SimDisk, key: LogKey, high_watermark: int) -> None:
        """Judge what a follower shows."""
        if high_watermark > len(self.committed[key]):
            violated(
                "INV-RPJ3", f"{disk.member} shows {high_watermark} of {len(self.committed[key])}"
            )
        self._same(disk, key, high_watermark)

    def _same(self, disk: SimDisk, key: LogKey, end: int) -> None:
        log = disk.log(key)
        if log.rows[log.start : end] != self.committed[key][log.start : end]:
            violated("INV-RPJ3", f"{disk.member} has other rows below {end} than were committed")

    def deleted(self, disk: SimDisk, key: LogKey, low_watermark: int) -> None:
        """Judge the acknowledgement of a deletion."""
        if disk.log(key).start < low_watermark:
            violated("INV-RPJ10", f"its leader starts below {low_watermark}, and acknowledges that")
        self.deleted_below[key] = max(self.deleted_below[key], low_watermark)

    def look_at(self, in_sync: Mapping[Member, SimDisk]) -> None:
        """Judge the disks of the committed in-sync set: those that are still what they were."""
        for member, disk in in_sync.items():
            for key, rows in self.committed.items():
                if not disk.log(key).holds(rows):
                    violated(
                        "INV-RPJ1",
                        f"{member} is in sync and lacks what was acknowledged, {len(rows)} rows",
                    )
            for key, start in self.deleted_below.items():
                if disk.log(key).start < start:
                    violated("INV-RPJ10", f"{member} is in sync, and starts below {start}")

    def knows_latest(self, leader_epoch: LeaderEpoch, key: LogKey, high_watermark: int) -> None:
        """Judge a leader that answers lookups of the latest offset."""
        before = self._at_election[leader_epoch].get(key, 0)
        if high_watermark < before:
            violated(
                "INV-RPJ6",
                f"latest is {high_watermark}, and {before} rows were acknowledged before it led",
            )
