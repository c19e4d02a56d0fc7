"""What makes several nodes one region: how they speak to each other over the peer port, Raft's messages, and the copies of the logs.

Begin in `transport` (what whoever joins the parts together uses), then `member_line` (one outgoing connection), `send_queue`
(what waits for it) and `raft_messages` (what may come in); `standing` says who is let in.

    transport = PeerTransport(line_parts)
    transport.serve_on(peer_server)                   # before its start
    line = transport.group("metadata")                # GroupSetup(transport=line)
    line.deliver_to(group.request_handler)
    await transport.run()                             # in a task group; cancelled at the end

The copies of the logs: `replica_leading` (followers are served; `replica_term` is one leader epoch, `replica_sending` what goes out),
`replica_following` (the other side; `replica_line` its connection), `replica_messages` (what they say), `replica_logs`.

    leading = ReplicaLeading(LeadingParts(...)); following = ReplicaFollowing(FollowingParts(partitions=..., line=line_parts))
    leading.serve_on(peer_server.node_door.handlers_for(REPLICA))  # once, behind `transport.serve_on`
    await leading.run(), await following.run()        # in a task group, for as long as the process runs

    # this node leads, under a leader epoch that is newer than its start (one step, no await in between):
    following.stop(); each partition.become_leader(leader_epoch); leading.begin(leadership)
    await leading.until_committed()                   # before coordinators load, and ends are told (R6)
    # another one leads, or nobody (also at the start, before anything is read):
    leading.end(); following.follow(leadership.leader, leadership.leader_epoch)
    # each time the metadata have changed: the role first, as above, then
    leading.image_changed(image)
    # each time partitions were opened or dropped, in the same step, behind `become_leader` of new ones where this leads:
    leading.logs_changed(); following.logs_changed()

`begin` and `follow` set `Partition.commit_up_to`, and `Partition.copies` is theirs. In a region of one node neither is called, and HW is
what is durable here.

May import: `region.peers`, `controller`, `partitions`, `replication`, the network's port, and the pure packages; knows neither mirror
nor failover.
"""
