"""Tests of txn_coordinator."""
