"""D of a log that another node of the region leads while leaders are spread: read from the main leader's own copy (ADR 53, T9).

INV-SCU1  D of such a log is read once HW of the copy covers all that was durable in the copy at one moment after the round was closed
          (T9), in which this member was in sync in the log's group; where the copy is cut, or stops, that begins anew
INV-SCU2  such a log has news for a tidemark as soon as anything is durable in the copy, committed or not: what its leader has shown may
          be known here to be committed a little later, and would be under no tidemark
INV-SCU3  what the leader of such a log has deleted stays on the main leader's disk for as long as a mirror may need it (INV-RH1)
INV-SCU4  where rounds begin in a log (T7) is kept where D of it is read: at the main leader of a region that acts, and nowhere else

Why INV-SCU1 is enough, without asking anybody. HW of a data group counts whoever is in sync (INV-RPL1), and the main leader is, for as long
as leaders are spread. So nobody was ever shown more of the log than what was durable in this copy at that moment: not the data of a
transaction that was decided before the round was closed (T8), no input that its coordinator was told the offsets of, no record
that led to it. All that lies below D then. Nor does it lie in the part of the copy that a next leader of the group cuts off: that was
not committed (INV-RPL1), and the wait begins anew.

1. A consumer reads up to 100 at the log's leader; the copy knows HW 90. 2. It commits offset 100 with its output, in one transaction;
its decision is below L. 3. With D = 90 a takeover would hold the output and the offset, without the input.

No marker can be torn off: one that was confirmed before the round was closed was below HW at its leader, so it is below D. Of those that were
not confirmed the decision is in the ledger below L, their data below D, and a takeover writes them again (T21). Those of stamps at or above the
round are bound by T7, in the copy as anywhere: the first one of them lies behind all data of the rounds below, as its transaction was
decided after ENTER. What is behind HW of the copy does not count. Abort markers neither wait nor bound D (T5), and an abandoned round
leaves nothing behind (T4): its markers have stamps below the next one.

Nothing is held meanwhile: the round was released as it was closed, so transactions go on for as long as a group has no leader, or lags.
Tidemarks wait, as for a stopped log (T12), and that is said. The spread's end ends the term, and the wait with it.

Not here: what a tidemark says (`cut_leader`), who copies (`region.cluster`).
"""

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from idempotency.identity import LeaderEpoch, LogKey, Member
from idempotency.ports import Clock
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.log.failures import LogError
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.ports import MetadataSide

AGAIN_MS: Final = 100
LOUD_MS: Final = 10_000
_log: Final = logging.getLogger("tidemark.cut_leader")


class CoveredCopy(NamedTuple):
    """A copy whose HW covers `covers`; what may be read of it now is what INV-SCU1 allows. `leader_epoch`: of who leads the log."""

    partition: Partition
    leader_epoch: LeaderEpoch
    covers: int


@dataclass(slots=True)
class CopiedLogs:
    """The logs of data groups at the main leader, `me`; None in a region of one node, which copies nothing."""

    me: Member | None
    metadata: MetadataSide
    partitions: PartitionTable
    clock: Clock
    waits_for: str = ""
    """Which log a tidemark waits for, and why; empty while it waits for none."""

    def has(self, key: LogKey) -> bool:
        """Return whether a log is led apart from the main group now."""
        return self.metadata.image.group_of(key) != MAIN_GROUP

    def end_of(self, partition: Partition) -> int:
        """Return up to where a tidemark may have to go in a log: HW, of a copy what is durable here (INV-SCU2)."""
        if self.has(partition.key):
            return partition.commits.durable_end
        return partition.high_watermark

    async def covered(self, key: LogKey, durable_end: int | None = None) -> CoveredCopy | None:
        """Return a copy once D may be read from it, in the step in which this returns (INV-SCU1).

        `durable_end`: what was durable in it at one moment after the round was closed; now, where None. All logs of a round are looked at in
        one moment, or each would wait for what came while the one before it was waited for. None where the log is gone, or is led
        here. It waits for as long as that takes.
        """
        try:
            while True:
                partition = self.partitions.by_id(key.topic_id, key.partition)
                row = self.metadata.image.leadership_of(key)
                if partition is None or not self.has(key):
                    return None
                covers = (
                    partition.commits.durable_end
                )  # less than it was, if the copy was cut since
                if durable_end is not None:
                    covers, durable_end = min(covers, durable_end), None
                if row is None or self.me not in row.in_sync:
                    why = "this node is not in sync with who leads it"
                elif not (why := await self._until_committed(partition, covers)):
                    return CoveredCopy(partition, row.leader_epoch, covers)
                self.waits_for = f"{partition.tp}: {why}"
                await self.clock.sleep_ms(AGAIN_MS)
        finally:
            self.waits_for = ""

    async def _until_committed(self, partition: Partition, end: int) -> str:
        """Return "" once HW covers `end`, in the step in which it is looked at again, or why that was not waited for."""
        if partition.high_watermark >= end and partition.failed is None:
            return ""
        self.waits_for = f"{partition.tp}: its leader has not said that {end} is committed"
        try:
            await partition.wait_committed(end)
        except LogError as error:
            return str(error)
        # 1. HW covers it. 2. The copy is cut. 3. Whoever waited goes on.
        return "" if partition.high_watermark >= end else "it was cut"

    async def say_what_lags(self) -> None:
        """Say again and again for which log tidemarks wait, until cancelled."""
        while True:
            await self.clock.sleep_ms(LOUD_MS)
            _log.error(
                "tidemarks wait, so no mirror shows anything newer; transactions go on: %s. See: tidemark cluster status",
                self.waits_for,
            )
