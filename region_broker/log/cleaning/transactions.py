"""What a cleaner knows of transactions while it walks a log: which batches are aborted, which markers are spent.

INV-CLX1  data of an aborted transaction goes at once; the log is cleaned below the last stable offset only
INV-CLX2  a marker may go (after its delete horizon) once a walk met no batch of its transaction
INV-CLX3  an aborted transaction is named in the new aborted index exactly if its data was met and its ABORT marker
         stays: a reader that is told of it would drop what the producer wrote later, if no marker ended it

Pure. Source: Kafka LogCleaner.scala `CleanedTransactionMetadata`.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from idempotency.record_batch import BatchHeader, ControlType, MarkerFacts
from idempotency.visibility import AbortedTxn


@dataclass(slots=True)
class _Aborted:
    txn: AbortedTxn
    met: bool = False


class CleanedTransactions:
    """One walk, in the order of offsets."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        """Know the aborted transactions that touch what is walked."""
        self._coming = deque(sorted(aborted, key=lambda txn: txn.first_offset))
        self._aborted: dict[int, _Aborted] = {}
        self._committed: set[int] = set()
        self._index: list[AbortedTxn] = []

    def data(self, header: BatchHeader) -> bool:
        """Take a data batch in; return whether it was aborted."""
        self._open_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._aborted.get(header.producer_id)
        if aborted is None:
            self._committed.add(header.producer_id)
            return False
        aborted.met = True
        return True

    def marker(self, header: BatchHeader, marker: MarkerFacts) -> bool:
        """Take a marker in; return whether nothing is left of its transaction."""
        self._open_up_to(header.last_offset)
        if marker.control_type is ControlType.ABORT:
            aborted = self._aborted.pop(header.producer_id, None)
            if aborted is None or not aborted.met:
                return True
            self._index.append(aborted.txn)
            return False
        met = header.producer_id in self._committed
        self._committed.discard(header.producer_id)
        return not met

    def _open_up_to(self, offset: int) -> None:
        while self._coming and self._coming[0].first_offset <= offset:
            txn = self._coming.popleft()
            self._aborted[txn.producer_id] = _Aborted(txn)

    def take_index(self) -> list[AbortedTxn]:
        """Return the entries of the aborted index since the last call: for the segment that was written."""
        index, self._index = self._index, []
        return index
