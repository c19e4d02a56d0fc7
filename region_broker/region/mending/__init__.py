"""Who still has them gives a node the bytes that its disk has lost: who may ask, for what, and what proves that they are the same.

Begin in `node_ranges`, between nodes of one region, where a log that does not run is copied again by `copying_anew`; between regions
`range_side` answers, `range_source` asks, and `shared_logs` says how far both hold the same. May import `tidemarks`,
`mirror`, `cluster` and `peers`, and asks as a failover does; decides nothing about damage (`partitions.mending`).
"""
