"""What nodes say to each other, of different regions or of one, and the connections on which they do.

Begin in `protocol`; `client` and `server` are the two ends, `forwarder` sends what a mirror may not execute. Nodes of one region
begin with `node_protocol`, and call with `node_client`; `sessions` keeps both kinds apart. May import the network's port,
`wire`, what a request is (`handlers.dispatch`), values of `geo_replicator` and of `controller`; knows neither link nor
failover.
"""
