"""Logs that were compacted, each region by its own clock."""
