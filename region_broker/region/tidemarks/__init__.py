"""Tidemarks at work: `cut_leader` makes them, `reached_store` says which this region has reached, and retention and cleaning
wait for what they need (T13, T14). Begin in `service`. May import `mirror`, `peers`, `partitions` and what `geo_replicator` decides.
"""
