"""The fence of connections over a table: whether a request of a TV1 client came in order.

It is of the process, not of the ledger, and is asked right before the step that it guards, without an `await` between.
Not here: what is in order (`txn_coordinator.connection_order`), whether the fence is on (the driver).
"""

from idempotency.identity import ProducerId, ProducerPair, TopicPartition
from txn_coordinator.connection_order import Arrival, ConnectionOrder, Sender
from txn_coordinator.shard.table import TransactionTable


class ConnectionFence:
    """Compares connections of the pair in force of each transactional id."""

    __slots__ = ("_table",)

    def __init__(self, table: TransactionTable) -> None:
        """Take the table that says which pair is in force."""
        self._table = table

    def admits(
        self, transactional_id: str, pair: ProducerPair, sender: Sender, *, aborting: bool
    ) -> bool:
        """Return whether a coordinator request of `pair` came in order (INV-TO1), and note it.

        A pair that is not in force is let through: its epoch is what refuses it (INV-TO2).
        """
        entry = self._table.get(transactional_id)
        if entry is None or pair != (entry.record.producer_id, entry.record.producer_epoch):
            return True
        if entry.connections is None:
            entry.connections = ConnectionOrder()
        order = entry.connections.of(pair)
        if not order.admit(sender):
            return False
        if aborting:
            order.aborting(sender)
        return True

    def admits_data(
        self,
        transactional_id: str | None,
        producer_id: ProducerId,
        tp: TopicPartition,
        arrival: Arrival,
    ) -> bool:
        """Return whether data of the pair in force may be written now (INV-TO4)."""
        entry = self._table.find(transactional_id, producer_id)
        if entry is None or entry.connections is None:
            return True
        pair = (entry.record.producer_id, entry.record.producer_epoch)
        return entry.connections.of(pair).admit_data(tp, arrival)
