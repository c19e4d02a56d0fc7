"""Every transaction, in both regions, against the ledger."""
