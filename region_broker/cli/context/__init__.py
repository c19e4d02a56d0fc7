"""Named clusters: addresses that commands take when none are given."""
