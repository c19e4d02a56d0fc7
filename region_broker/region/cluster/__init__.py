"""What makes several nodes one region: how they speak to each other over the peer port, and Raft's messages there.

Begin in `transport` (what whoever joins the parts together uses), then `member_line` (one outgoing connection), `send_queue`
(what waits for it) and `raft_messages` (what may come in); `standing` says who is let in.

    transport = PeerTransport(standing, ports, address_of, watcher)
    transport.serve_on(peer_server)                   # before its start
    line = transport.group("metadata")                # GroupSetup(transport=line)
    line.deliver_to(group.request_handler)
    await transport.run()                             # in a task group; cancelled at the end

May import: `region.peers`, `controller.raft`, the network's port, and the pure packages; knows neither mirror nor failover.
"""
