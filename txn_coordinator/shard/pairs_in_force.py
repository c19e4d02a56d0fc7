"""Which pairs of producer id and epoch are in force: those of this region's term, and what planned switches hand on.

INV-TC14  a pair that a region epoch before gave out is in force only over an unbroken line of planned switches since: each
          of them ends with a tidemark that covers every pair that was given out, so none is unknown (T22, H8)

1. A failover cuts at the newest tidemark that is here. Pairs that the lost region gave out behind it cannot be known, so
all of its pairs are out of force. 2. A planned switch cuts where the drained region has ended: its ledger is all there is.
What may go on there is what may go on after a restart: the pairs, and the transactions that are open.

The line is a record of the ledger (PAIRS), written by the adoption that ends a switch. It names the region epoch that it
counts for: under any other one only that one's own pairs are in force. A version that does not know it fences all of them.
Not here: who is told what whose pair is not in force (the requests), whether a takeover was a switch (the region).
"""

from idempotency.identity import RegionEpoch
from idempotency.ledger_records import PairsRecord, TransactionRecord


class PairsInForce:
    """Since which region epoch the pairs of one ledger shard count."""

    __slots__ = ("_said", "region_epoch", "since")

    def __init__(self, region_epoch: RegionEpoch) -> None:
        """Let those of `region_epoch`, under which this region acts, be in force."""
        self.region_epoch = region_epoch
        self.since = region_epoch
        self._said: PairsRecord | None = None

    def restore(self, record: PairsRecord) -> None:
        """Take what the ledger says, in its order: the last record counts, as everywhere (INV-TC9)."""
        self._said = record
        counts = record.region_epoch == self.region_epoch
        self.since = record.since if counts else self.region_epoch
        assert self.since <= self.region_epoch, f"INV-TC14: {record} under {self.region_epoch}"

    def inherit(self, drained: RegionEpoch) -> PairsRecord:
        """Let the pairs in force under `drained` go on; return the record to append. A repeat changes nothing."""
        assert drained < self.region_epoch, f"INV-TC14: {drained} before {self.region_epoch}"
        said = self._said
        if said is None or said.region_epoch not in (self.region_epoch, drained):
            said = PairsRecord(drained, drained)
        record = PairsRecord(self.region_epoch, said.since)
        self.restore(record)
        return record

    def is_foreign(self, record: TransactionRecord) -> bool:
        """Return whether the entry's pair was given out by a region whose last word is not known here (T22)."""
        return 0 <= record.region_epoch < self.since

    def is_inherited(self, record: TransactionRecord) -> bool:
        """Return whether the entry's pair was given out under a region epoch before this one."""
        return 0 <= record.region_epoch < self.region_epoch
