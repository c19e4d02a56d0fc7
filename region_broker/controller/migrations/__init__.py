"""Schema migrations of the metadata database."""
