"""Compaction: what a log keeps of each key, and how cleaned segments take the place of others."""
