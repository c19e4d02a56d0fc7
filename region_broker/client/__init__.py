"""The client: transactions over several regions, for asyncio, with confluent-kafka underneath.

    async with (
        TransactionalProducer(
            bootstrap="127.0.0.1:9092,127.0.0.1:9102",      # brokers of all regions
            urls="http://127.0.0.1:9093,http://127.0.0.1:9103",   # who is asked for verdicts
            transactional_id="billing-1",
        ) as producer,
        ReadCommittedConsumer(["orders"], bootstrap="127.0.0.1:9092,127.0.0.1:9102", group_id="billing")
        as consumer,
    ):
        async for order in consumer:
            try:
                async with producer.transaction() as txn:
                    await txn.send("invoices", invoice_of(order))
                    await txn.send_offsets(consumer)
            except TransactionAborted:
                await consumer.rewind()

Any Kafka client works with Tidemark; this one adds what happens when a region is lost in mid-commit: the
transaction is repeated where it was not written, and never where it was.
"""

from region_broker.client.errors import (
    Fenced,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
)
from region_broker.client.read_committed_consumer import ReadCommittedConsumer
from region_broker.client.transaction import Transaction
from region_broker.client.transactional_producer import TransactionalProducer
from region_broker.client.verdicts import Position, Verdict, VerdictClient

__all__ = [
    "Fenced",
    "OutcomeUnknown",
    "Position",
    "ReadCommittedConsumer",
    "Refused",
    "TidemarkError",
    "Transaction",
    "TransactionAborted",
    "TransactionalProducer",
    "Unreachable",
    "Verdict",
    "VerdictClient",
]
