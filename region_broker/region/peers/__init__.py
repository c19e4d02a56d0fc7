"""What nodes of different regions say to each other, and the connections on which they do.

Begin in `protocol`; `client` and `server` are the two ends, `forwarder` sends what a mirror may not execute. May import the
network's port, `wire`, what a request is (`handlers.dispatch`) and values of `geo_replicator`; knows neither link nor failover.
"""
