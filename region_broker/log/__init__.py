"""The log of one partition on disk, and what all logs of a node share: journal, group commit, reads that wait.

Begin in `partition_log`, which puts `parts` together; `group_commit` makes durable, `recovery` opens, `cleaning` compacts,
`indexes` are the small files beside a segment. May import: `wire`, `ports`, `limits`, `metrics`, `idempotency`.
"""
