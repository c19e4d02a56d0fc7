"""One region gives another the bytes that its disk has lost: who may ask, for what, and what proves that they are the same.

Begin in `range_side`, which answers; `range_source` asks, and `shared_logs` says how far both hold the same. May import
`tidemarks`, `mirror` and `peers`, and asks as a failover does; decides nothing about damage (`partitions.mending`).
"""
