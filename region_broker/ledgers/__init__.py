"""The transaction ledger and the offsets ledger over this node's partitions: the ports of `txn_coordinator` and `groups`.

Begin in `txn_log`. May import `partitions`, `groups` and what lies below; knows no other region (`region`).
"""
