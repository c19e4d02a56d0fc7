"""A region among others: who acts, what is mirrored, which tidemarks are made and reached, and how a failover goes.

From the top: `view` (operators), `failover`, `tidemarks`, `mirror`, `cluster` (the nodes of one region), `peers`; `role`
starts and stops what runs in each role, and `ports` says what these rooms need of each other and of the node. Begin in
`role`, then `failover.driver`.
Decisions lie in `geo_replicator`; here they are asked for and carried out. May import: `handlers` and below, and all
three pure packages.
"""
