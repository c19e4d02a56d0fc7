"""The parts of one ledger shard's core: each keeps its own rules, `txn_coordinator.core` puts them together."""
