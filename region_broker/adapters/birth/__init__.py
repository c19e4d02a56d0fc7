"""Whose a data folder is: its identity on disk, and giving birth to a cluster in it."""
