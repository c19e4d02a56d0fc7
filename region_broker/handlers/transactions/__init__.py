"""Transactions over Kafka's protocol: producers' requests, markers, and what operators list and describe.

Begin in `init_producer_id`, then `add_partitions_to_txn` and `end_txn`; `errors` has each verdict of the coordinator as
Kafka's number. What is judged here is `txn_coordinator`'s. May import: `dispatch`, and of `groups` what offsets in a
transaction share with others.
"""
