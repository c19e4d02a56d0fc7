"""Tests of the groups of the new protocol."""
