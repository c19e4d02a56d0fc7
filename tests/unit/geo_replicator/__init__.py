"""geo_replicator."""
