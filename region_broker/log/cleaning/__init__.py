"""Compaction: what a log keeps of each key, and how cleaned segments take the place of others.

Begin in `planning`, which decides; `rewriting` writes. May import `segment` and `indexes`; when and how far is said by who
asks (`partitions.cleaner`).
"""
