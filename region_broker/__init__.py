"""The process of one node: sockets, disks, Kafka's protocol, HTTP, the command line and the clients.

Begin in `node.node`, where everything is joined, or with a request in `wire.server`. Rooms from the top: `cli`, `node`,
`http_api`, `region`, `ledgers`, `handlers`, `partitions`, `controller`, `groups`, `client`, `log`, `wire`, `ports`; a
room imports only what is below it (contracts in pyproject.toml, docs/ARCHITECTURE.md). May import: all of
`idempotency`, `txn_coordinator` and `geo_replicator`.
"""
