"""The coordinators as the region's role sees them: loaded, adopted, resigned under a term.

Not here: the coordinators themselves; when a term begins (`region.role`); tidemarks (`tidemarks.service`).
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Final

from idempotency.identity import RegionEpoch, TopicPartition
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.region.ports import OrphanCandidate, Term
from txn_coordinator.driver import TransactionCoordinator

_log: Final = logging.getLogger("tidemark.failover")


class TransactionRole:
    """`TransactionSide` on the transaction coordinator."""

    def __init__(self, coordinator: TransactionCoordinator) -> None:
        """Speak for `coordinator`."""
        self._coordinator = coordinator

    async def load(self, term: Term) -> None:
        """Read the ledger and take over under `term`."""
        await self._coordinator.load(term.leader_epoch, term.region_epoch)

    async def adopt(
        self, term: Term, candidates: Sequence[OrphanCandidate], drained: RegionEpoch | None
    ) -> None:
        """Load, decide what does not go on, and write the markers owed (T21, T22)."""
        report = await self._coordinator.adopt(
            term.region_epoch, term.leader_epoch, candidates, drained
        )
        if drained is not None:
            _log.info("%d open transactions go on after the switch", report.kept_open)

    async def resign(self) -> None:
        """Stop deciding."""
        await self._coordinator.resign()

    async def run(self) -> None:
        """Own the background tasks until cancelled."""
        await self._coordinator.run()


class GroupRole:
    """`GroupSide` on the group coordinator."""

    def __init__(self, coordinator: GroupCoordinator) -> None:
        """Speak for `coordinator`."""
        self._coordinator = coordinator
        self._region_epoch = RegionEpoch(0)

    async def load(self, term: Term) -> None:
        """Read the offsets ledger."""
        self._region_epoch = term.region_epoch
        await self._coordinator.load(region_epoch=term.region_epoch)

    async def clamp(self, log_ends: Mapping[TopicPartition, int]) -> None:
        """Write clamped offsets as records, empty all groups (T26)."""
        report = await self._coordinator.clamp(log_ends, region_epoch=self._region_epoch)
        for each in report.clamped:
            _log.warning("clamped to what the cut holds: %s", each)
        unnamed = report.clamped_count - len(report.clamped)
        if unnamed:
            _log.warning("clamped to what the cut holds, and not named here: %d more", unnamed)
        _log.info(
            "%d groups emptied, %d offsets clamped", len(report.emptied), report.clamped_count
        )

    async def resign(self) -> None:
        """Stop serving groups."""
        await self._coordinator.resign()

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._coordinator.run()
