"""The metadata of a region: one immutable image, changed by commands, kept in SQLite.

Begin in `metadata_commands` (what a command does, pure) and `metadata_store` (how it becomes durable). The log path never
waits here. May import: `wire`, `ports`, `limits`, and the pure packages.
"""
