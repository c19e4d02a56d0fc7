"""The controller of a region: whoever leads the metadata quorum fences nodes that are not heard, and has leaders elected.

Begin in `core` (what is done with each event), then `elections` (who leads next) and `sessions` (who is heard). One pure core on each
voter; that of the quorum's leader decides. What it decides are commands (`cluster_commands`), which are judged again where they are
applied, so a core that knows too little can be refused, and do no harm.

What a driver owes the core:

1. Events one after the other, with one monotonic clock; effects are carried out in their order.
2. `Leads(term, image)` when an entry of that term is applied here: `image` holds all that former terms committed. `LeadsNoMore` when
   the quorum says so, before anything of another term.
3. `ImageChanged` with each image that is applied, in order, also while it does not lead.
4. `Propose(number, term, command)`: proposed to the quorum only while it leads that very term. One `CommandSettled` for each, after
   the `ImageChanged` of what it came to. UNKNOWN only where it may yet be applied or not: the entry is in the log, and this member
   leads no more, or most voters do not take it, or the disk failed.
5. `Heard(member, life, opens_logs)` for each heartbeat of a process, its own included, at least each
   `ControllerSettings.heartbeat_ms`. Identity comes from the connection, and so does whether it is still about to open its logs. `Lost` when a connection of that process is reset: after what was heard over it.
   `DamageKnown` whenever it has changed who says of itself that it has damage; none at the beginning.
6. `Ticked` at least each `look_max_ms`, behind all that has arrived by then: time that passed without any event counts as that much
   (INV-CK6), and who is silent is judged there.
7. Registering: a node sends who it is, and the driver has `RegisterNode` applied as any other command. A process whose life was
   replaced, or whose node was removed, ends.
8. Whoever is elected under a new region epoch cuts its logs to the lineage's base, durably, before it leads (T20). A leader that the
   image does not name any more acknowledges nothing. A leader drops from the in-sync set, at once, whoever is fenced, drains, or is not
   registered with that folder: nobody else does (INV-MH3), and its high watermarks wait for it.

May import: the metadata's values and commands, `raft.entries`, and the pure packages.
"""
