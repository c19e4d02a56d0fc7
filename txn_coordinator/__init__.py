"""txn_coordinator."""
