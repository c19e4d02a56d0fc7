"""How the nodes of a region keep the same logs: who counts, and who copies from whom. Pure cores.

Begin in `leading` (what is committed, and who is in sync), then `following` (what is cut, copied and reported);
`facts` has the values that all of them speak of, `events` and `effects` what goes in and out. May import the
kernel only, and knows no file, no socket, no partition.

A *replica group* is a set of logs that one member leads under one leader epoch, with one in-sync set, kept in the metadata log
with a version. Today's only group is all logs of the region; nothing here counts on that.

What a driver owes the cores, and the metadata owe the driver:

1. Events one after the other; the effects of one are carried out in their order, before the next event is given. `CutLog` and
   `StartAt` are durable (all that is left of the log is on stable storage), and `AppendSlices` is written (not synced), before the effect behind it.
2. `now_ms` comes from one monotonic clock.
3. A member leads under a leader epoch once: a process that has started again leads only under a leader epoch that is newer than
   the metadata had at its start. 1. The leader of epoch 5 writes x, which a follower copies. 2. It crashes before its own sync,
   and goes on in epoch 5 with y at that offset. 3. The follower's history agrees with it, and the logs differ for good.
   Where the leader cuts a log, or its start goes back, a new core goes on in that leader epoch (`LeadingCore.anew`), with new
   sessions only.
   One that is deposed forgets, in each log, a leader epoch of which that log has no record (INV-E3): what it copies next may be older.
4. Who sent a report or an answer is said by its connection, never by what it says; what it says is checked where it is decoded (no
   negative offset, no leader epoch above the one asked for). `session` numbers connections, and grows.
5. Durable means: on stable storage, under the flush policy of the node, of the log as it is now. A sync that was begun before a cut
   says nothing about the log after it.
6. The in-sync set changes by a compare-and-set on (leader epoch, version), and with each election both grow. An election names a member
   of the committed set (`controller.cluster`). Without being asked by the leader the metadata may only take members out, never in.
7. The driver tells a core of a newer leader epoch before it gives it anything else that it learned with it.
"""
