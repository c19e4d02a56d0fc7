"""How many partitions transactions may have.

INV-TX3  what a client lets join gives its transaction TRANSACTION_PARTITIONS_MAX partitions at most: each is a marker, in memory, and in each
         record of the transaction, which is written anew with each that joins
INV-TX4  a client lets nothing join while all transactions of a coordinator have OPEN_PARTITIONS_MAX, but offsets to what is open, which end it, and what
         leaves its transaction SMALL_TRANSACTION_PARTITIONS at most: so all have twice that. What is decided on the way may add what the requests
         under way hold
Not here: transactions that the server itself decides, whose partitions have data already (`shard.server_decisions`).
"""

from collections.abc import Sequence
from typing import Final

from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus

TRANSACTION_PARTITIONS_MAX: Final = 10_000
OPEN_PARTITIONS_MAX: Final = 2_000_000
"""Each is some 80 bytes: 160 MB."""
SMALL_TRANSACTION_PARTITIONS: Final = 40
"""As many as make OPEN_PARTITIONS_MAX for each transactional id that there may be by default."""
assert TRANSACTION_PARTITIONS_MAX * 100 < OPEN_PARTITIONS_MAX, (
    "one client must not keep all others out"
)


def has_room(record: TransactionRecord, joining: int, missing: Sequence[TopicPartition]) -> bool:
    """Return whether a transaction, which `joining` others join already, may have these, too (INV-TX3)."""
    present = len(record.partitions) if record.status is TxnStatus.ONGOING else 0
    return present + joining + len(missing) <= TRANSACTION_PARTITIONS_MAX
