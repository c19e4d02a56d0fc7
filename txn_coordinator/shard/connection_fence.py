"""The fence of connections over a table: whether a request of a TV1 client came in order.

It is of the process, not of the ledger, and is asked right before the step that it guards, without an `await` between.
Not here: what is in order (`txn_coordinator.connection_order`), whether the fence is on (the driver).
"""

from enum import Enum, auto

from idempotency.identity import ProducerId, ProducerPair, TopicPartition
from txn_coordinator.connection_order import Arrival, ConnectionOrder, Sender
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.table import Entry, TransactionTable
from txn_coordinator.verdicts import TxnVerdict


class CoordinatorRequest(Enum):
    """What may come late, by what its repeat has in common with it."""

    JOIN = auto()
    JOIN_OFFSETS = auto()
    COMMIT = auto()
    ABORT = auto()


class ConnectionFence:
    """Compares connections of the pair in force of each transactional id."""

    __slots__ = ("_pairs", "_table")

    def __init__(self, table: TransactionTable, pairs: PairsInForce) -> None:
        """Take what says which pair is in force, and which of them were given out elsewhere."""
        self._table = table
        self._pairs = pairs

    def judge(
        self, transactional_id: str, pair: ProducerPair, sender: Sender, request: CoordinatorRequest
    ) -> TxnVerdict:
        """Return whether a coordinator request of `pair` came in order (INV-TO1, INV-TO6), and note it.

        A pair that is not in force is let through: its epoch is what refuses it (INV-TO2).
        """
        entry = self._table.get(transactional_id)
        if entry is None or pair != (entry.record.producer_id, entry.record.producer_epoch):
            return TxnVerdict.OK
        order = self._order_of(entry)
        if order.is_late(sender):
            return TxnVerdict.STALE_CONNECTION
        if not order.believes(sender, request):
            return TxnVerdict.UNPROVEN_CONNECTION
        admitted = order.admit(sender)
        assert admitted, f"INV-TO1: {sender}"
        if request is CoordinatorRequest.ABORT:
            order.aborting(sender)
        return TxnVerdict.OK

    def admits_data(
        self,
        transactional_id: str | None,
        producer_id: ProducerId,
        tp: TopicPartition,
        arrival: Arrival,
    ) -> bool:
        """Return whether data of the pair in force may be written now (INV-TO4)."""
        entry = self._table.find(transactional_id, producer_id)
        if entry is None:
            return True
        if entry.connections is None and not self._pairs.is_inherited(entry.record):
            return True
        return self._order_of(entry).admit_data(tp, arrival)

    def _order_of(self, entry: Entry) -> ConnectionOrder:
        """Return what is known of the connections of the entry's pair."""
        if entry.connections is None:
            entry.connections = ConnectionOrder()
        record = entry.record
        pair = (record.producer_id, record.producer_epoch)
        return entry.connections.of(pair, inherited=self._pairs.is_inherited(record))
