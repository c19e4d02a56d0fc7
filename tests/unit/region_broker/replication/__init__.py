"""Tests of region_broker."""
