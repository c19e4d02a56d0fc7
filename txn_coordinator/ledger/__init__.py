"""A ledger shard as a whole: what it comes to."""
