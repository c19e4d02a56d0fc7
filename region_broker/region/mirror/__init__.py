"""Both sides of a link: `primary_side` at the primary region, `region_link` and `mirror_log` at the mirror.

Begin in `mirror_log`: verbatim appends, and what becomes visible at a tidemark (`mirror_view`).
May import `peers`, `partitions` and what `geo_replicator.link` decides; knows no failover.
"""
