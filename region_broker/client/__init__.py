"""The client: reading and writing once over several regions, for asyncio, with confluent-kafka underneath.

    KAFKA = "127.0.0.1:9092,127.0.0.1:9102"                  # brokers of all regions
    HTTP = "http://127.0.0.1:9093,http://127.0.0.1:9103"     # who is asked for verdicts

    async with (
        ReadCommittedConsumer(["orders"], bootstrap=KAFKA, group_id="billing") as consumer,
        TransactionalProducer(bootstrap=KAFKA, urls=HTTP, transactional_id="billing-1") as producer,
    ):
        async for orders in consumer.transactions(producer):
            async with orders as txn:
                for order in orders:
                    await txn.send("invoices", invoice_of(order))

Where nodes want to know who asks, each of them takes `security=Security(ca="ca.pem", user="billing", password=...)`.

Any Kafka client works with Tidemark; this one adds what happens when a region is lost in mid-commit: the
transaction is repeated where it was not written, and never where it was. Everything that an application needs is
imported from here.

Begin in `transactional_producer` and `read_committed_consumer`. May import: `records`, and no part of a node.
"""

from region_broker.client.across_regions import ACROSS_REGIONS, across_regions
from region_broker.client.errors import (
    Fenced,
    OutcomeUnknown,
    Refused,
    TidemarkError,
    TransactionAborted,
    Unreachable,
)
from region_broker.client.producer import Producer
from region_broker.client.read_batches import ReadBatch
from region_broker.client.read_committed_consumer import ReadCommittedConsumer
from region_broker.client.retirement import retire
from region_broker.client.serializers import Unreadable, from_json, from_text, to_json, to_text
from region_broker.client.timeouts import Timeouts
from region_broker.client.transaction import Transaction
from region_broker.client.transactional_producer import TransactionalProducer
from region_broker.client.verdicts import Position, Verdict, VerdictClient, WrittenBy
from region_broker.security.login import LoginRefused, Security

__all__ = [
    "ACROSS_REGIONS",
    "Fenced",
    "LoginRefused",
    "OutcomeUnknown",
    "Position",
    "Producer",
    "ReadBatch",
    "ReadCommittedConsumer",
    "Refused",
    "Security",
    "TidemarkError",
    "Timeouts",
    "Transaction",
    "TransactionAborted",
    "TransactionalProducer",
    "Unreachable",
    "Unreadable",
    "Verdict",
    "VerdictClient",
    "WrittenBy",
    "across_regions",
    "from_json",
    "from_text",
    "retire",
    "to_json",
    "to_text",
]
