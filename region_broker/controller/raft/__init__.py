"""The metadata quorum: Raft, as one pure core, one durable log and one shell.

Begin in `core` (what a member does with each event), then `entries` (what stands in the log) and `effects` (what a core
asks of its driver). `durable` keeps term, vote, log and snapshot; `shell` runs the core on raftos' node and timers.

What a driver owes the core, as etcd's raft has it:

1. Events one after the other; effects are carried out in their order, all those of one event before those of the next.
2. `Persist` is durable before any later effect is carried out. Whoever batches may take several events first, and then
   sync once, if no `Send`, `Committed` or `Answered` that follows a `Persist` leaves before it. `Committed` may be carried out later than what
   follows it, if they keep their order among themselves, and with an `Answered` that says DONE, and a snapshot that is loaded.
3. After a restart the core is made from what is durable, and nothing else.
4. `now_ms` comes from one monotonic clock; jitter from a chance of the member's own.
5. A message is given to the core of the group it names only from the member that sent it: identity comes from the
   connection, never from what the message says.

May import: `ports`, `limits`, and the pure packages.
"""
