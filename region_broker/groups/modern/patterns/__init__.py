"""Patterns of topics: their syntax, and what they stand for."""
