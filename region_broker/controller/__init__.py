"""The metadata of a region: one immutable image, changed by commands that go through the log of a quorum, kept in SQLite, too.

Begin in `metadata_commands` (what a command does, pure) and `metadata_store` (how it becomes durable). The log path never
waits here. May import: `wire`, `ports`, `limits`, and the pure packages.
"""
