"""Consumer groups: their members, their generations, and the offsets that they commit.

This page is the contract between what is pure here and its shells. Begin in `coordinator`, which sends each request where it
belongs: `classic_groups` (the leader assigns) or `modern_groups` (KIP-848), each the shell of the folder of its name;
`offset_service` keeps offsets, in transactions too. What groups need of the node is in `ports`. May import:
`wire.cooperative_yield`, `limits`, and the pure packages.

Who calls what
    Handlers, and the region's role, call `coordinator.GroupCoordinator` and nothing below it, on the loop, while `run` runs.
    It owns shards and timers. A shard (`shard.Shard`) is the replay of one partition of `__consumer_offsets`; only `write`,
    `write_offsets` and `apply_marker` change its table, and only shells call them. `classic.group.Group` takes a request or
    the time, and gives effects; the functions of `modern` take a group and a request, and give the records to write.

Loading a shard
    1. `load` after the role has said that this region acts, `resign` before it acts no more. The ledger is durable to its end
       before it is read, and read to its end before anything is served (B3, C22): a ledger that cannot be is not served in part.
    2. Markers that are applied meanwhile are kept, and applied after the replay. Twice does no harm.
    3. A takeover calls `clamp` after `load`, for the ends that its cut left, before this region takes writes (T26). What it
       returns is durable. It gives way, and fails where a shard is resigned, loaded or failed meanwhile: begin with `load` again.

A request
    1. Judged and appended without an `await` between, all records of it one batch; the table has them in the same step, so it
       is the ledger's replay at any moment. Reading ahead (`modern_groups`: patterns; `offset_service`: a large batch) comes before.
    2. After every `await` compare the term (`Shard.since`) before anything is read or changed: a shard that serves again
       answers nothing of before.
    3. Answered when its records are durable (B15). An answer that needs no record may say nothing that an undurable one holds:
       wait for the group's last record (`wait_durable`), or show durable offsets only.
    4. Effects of a classic group: `Store` first, then answers. A generation goes on by `stored`, once, when its record is
       durable, in the term and the group that wrote it. `AnswerJoin` and `AnswerSync` go to whoever waits; whose client has
       gone gets nothing.
    5. A transaction's offsets are appended in the very step in which `verify` says that it is open (C46).
    6. `on_marker_applied` before the marker is confirmed to the transaction coordinator (P14).

What may fail
    An append or a wait that failed may or may not be in the ledger: the shard leaves (`fail`, once a term), who waits is told
    NOT_AVAILABLE, and only a load serves it again. A crash at any point is a load of a prefix that holds all that was answered.
"""
