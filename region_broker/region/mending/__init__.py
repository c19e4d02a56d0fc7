"""One region gives another the bytes that its disk has lost: who may ask, for what, and what proves that they are the same.

`range_side` answers, `range_source` asks; `shared_logs` says how far both hold the same. Knows `tidemarks`, `mirror` and
`peers`, and asks as a failover does; decides nothing about damage (`partitions.mending`).
"""
