"""Tests of region_broker.replication."""
