"""Nodes of one region."""
