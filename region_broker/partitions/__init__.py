"""What a partition is and does here: it judges appends, keeps its log, says what may be read, and wakes who waits.

Begin in `partition`; `table` holds all partitions of a node. May import `log`, `records`, `wire` and the kernel; knows no request and no
other region. Followers and in-sync sets are decided in `replication`, beside it.
"""
